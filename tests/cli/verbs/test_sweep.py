"""exitpoll sweep: a table and three files that agree with what policies decide."""

from __future__ import annotations

import csv
import json
import shutil
import sys

import numpy as np
import pytest

from exitpoll import Policy, Trace
from exitpoll.decide.costs import ExitCosts
from exitpoll.files import write_json


def test_it_shows_a_table_and_writes_three_files(recorded, run, tmp_path):
    code, out, err = run("sweep", recorded / "test.safetensors", "--out", tmp_path / "s", "--points", "20")
    assert code == 0, err
    for word in (
        "≥1.3×",
        "≥4×",
        "best at ≥ 2×: ",
        "picked on these same texts",
        "votes",
        "learned",
        "static exit",
        "oracle: first right",
        "full model",
    ):
        assert word in out
    content = json.loads((tmp_path / "s" / "curves.json").read_text())
    assert content["texts"] == 120
    assert len(content["best"]["votes"]) == 6
    rows = list(csv.DictReader((tmp_path / "s" / "curves.csv").open()))
    assert {row["kind"] for row in rows} == {"strategy", "static exit", "oracle"}
    assert {row["name"] for row in rows} >= {"entropy", "layer 1", "oracle: first right"}
    assert (tmp_path / "s" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_and_the_file_agree_with_the_decisions(recorded, run, tmp_path):
    arguments = ("--strategies", "votes", "entropy", "--ks", "0.5", "--out", tmp_path / "s")
    code, out, _ = run("sweep", recorded / "test.safetensors", *arguments)
    assert code == 0
    assert "soft_votes" not in out
    trace = Trace.load(recorded / "test.safetensors")
    for curve in json.loads((tmp_path / "s" / "curves.json").read_text())["curves"]:
        for threshold, score, speedup in zip(curve["thresholds"], curve["score"], curve["speedup"], strict=True):
            decisions = Policy(curve["strategy"], threshold, curve["policy"]["settings"]).decide(trace)
            assert (decisions.accuracy, decisions.speedup) == (pytest.approx(score), pytest.approx(speedup))


def test_by_the_clock(recorded, run, tmp_path):
    arguments = ("--clock", "--strategies", "margin", "--out", tmp_path / "s")
    code, out, err = run("sweep", recorded / "test.safetensors", *arguments)
    assert code == 0, err
    assert "measured milliseconds" in " ".join(out.split())
    trace, content = Trace.load(recorded / "test.safetensors"), json.loads((tmp_path / "s" / "curves.json").read_text())
    assert content["unit"] == "milliseconds"
    costs = ExitCosts.measured(trace.exit_layers, trace.about)
    [curve] = content["curves"]
    for threshold, speedup in zip(curve["thresholds"], curve["speedup"], strict=True):
        exits = Policy("margin", threshold).decide(trace).exit
        assert speedup == pytest.approx(costs.full / costs.of(trace.exit_layers)[exits].mean())
    assert content["exits"][0]["speedup"] == pytest.approx(costs.full / costs.static[0])
    assert "speedup_in_milliseconds" in (tmp_path / "s" / "curves.csv").read_text().splitlines()[0]


def test_policies_of_a_sweep_can_be_decided_by(recorded, run, tmp_path):
    run("sweep", recorded / "test.safetensors", "--strategies", "hybrid", "votes", "--out", tmp_path / "s")
    trace = Trace.load(recorded / "test.safetensors")
    for points in json.loads((tmp_path / "s" / "curves.json").read_text())["best"].values():
        for point in filter(None, points):
            write_json(tmp_path / "p.json", point["policy"])
            decisions = Policy.load(tmp_path / "p.json").decide(trace)
            assert (decisions.accuracy, decisions.speedup) == (
                pytest.approx(point["score"]),
                pytest.approx(point["speedup"]),
            )


def test_beside_the_trace_and_without_matplotlib(recorded, run, tmp_path, monkeypatch):
    shutil.copy(recorded / "test.safetensors", tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run("sweep", tmp_path / "test.safetensors", "--strategies", "margin")
    assert code == 0, err
    assert "no figure: drawing figures needs more packages: pip install 'exitpoll[plots]'" in out
    assert (tmp_path / "test-sweep" / "curves.json").exists()


def test_a_trace_without_labels_is_scored_by_agreement(recorded, run, tmp_path):
    test = Trace.load(recorded / "test.safetensors")
    Trace(np.array(test.logits), None, test.exit_layers, test.about).save(tmp_path / "t")
    code, out, err = run("sweep", tmp_path / "t", "--strategies", "margin", "static", "--out", tmp_path / "s")
    assert code == 0, err
    assert "best agreement in % on 120 texts; full model 100.0" in out
    assert "these texts have no labels: scores are the agreement with the full model" in out
    assert json.loads((tmp_path / "s" / "curves.json").read_text())["metric"] == "agreement"
    assert run("sweep", tmp_path / "t", "--strategies", "static", "--out", tmp_path / "s")[0] == 0


def test_json(recorded, run, tmp_path):
    arguments = ("--strategies", "margin", "--out", tmp_path / "s", "--json")
    code, out, err = run("sweep", recorded / "test.safetensors", *arguments)
    assert code == 0, err
    assert json.loads(out)["best"] == json.loads((tmp_path / "s" / "curves.json").read_text())["best"]


class TestRefusals:
    def test_traces(self, refused, recorded, tmp_path):
        whole = (recorded / "test.safetensors").read_bytes()
        (tmp_path / "cut").write_bytes(whole[:-40])
        (tmp_path / "short").write_bytes(whole[:5])
        (tmp_path / "text").write_text("not a trace at all, but long enough to have a header")
        refused("its data are truncated", "sweep", tmp_path / "cut")
        refused("is not a trace, or a broken one", "sweep", tmp_path / "short")
        refused("is not a trace, or a broken one", "sweep", tmp_path / "text")
        refused("does not exist", "sweep", tmp_path / "none")
        refused("is a folder", "sweep", tmp_path)

    def test_a_metric_of_a_trace_without_labels(self, refused, recorded, tmp_path):
        test = Trace.load(recorded / "test.safetensors")
        Trace(np.array(test.logits), None, test.exit_layers, test.about).save(tmp_path / "t")
        refused("metric 'accuracy' needs labels, and this trace has", "sweep", tmp_path / "t", "--metric", "accuracy")

    def test_unknown_strategies_and_metrics(self, refused, recorded):
        trace = recorded / "test.safetensors"
        refused('Invalid value "guess"', "sweep", trace, "--strategies", "guess")
        refused('Invalid value "bleu"', "sweep", trace, "--metric", "bleu")
        refused("metric 'r2' does not score", "sweep", trace, "--metric", "r2")

    def test_numbers(self, refused, recorded):
        refused("points 0 must be at least 1", "sweep", recorded / "test.safetensors", "--points", "0")
        for k in ("nan", "1000", "-1"):
            refused("must be between 0 and 1", "sweep", recorded / "test.safetensors", f"--ks={k}")
