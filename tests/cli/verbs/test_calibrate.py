"""exitpoll calibrate: from a trace to a policy, or to one line on why there is none."""

from __future__ import annotations

import json

import numpy as np
import pytest

from exitpoll import EarlyExitModel, Policy, Trace
from exitpoll.models.folder import MANIFEST


@pytest.mark.parametrize("goal", [("--speedup", "1.5"), ("--latency-ms", "500")])
def test_goals_without_a_guarantee(recorded, run, tmp_path, goal):
    arguments = ("--trace", recorded / "calibration.safetensors", "--out", tmp_path / "p.json", *goal)
    code, out, err = run("calibrate", recorded / "model", *arguments)
    assert code == 0, err
    assert "of the full model" in out
    assert "not guaranteed for others" in out
    assert ("ms a text on average" in out) == (goal[0] == "--latency-ms")
    assert Policy.load(tmp_path / "p.json").certificate.goal


@pytest.mark.parametrize("exits", ["1,3", "auto"])
def test_some_exits(recorded, run, tmp_path, exits):
    arguments = ("--trace", recorded / "calibration.safetensors", "--out", tmp_path / "p.json", "--exits", exits)
    code, out, err = run("calibrate", recorded / "model", *arguments, "--latency-ms", "500", "--strategy", "margin")
    assert code == 0, err
    policy = Policy.load(tmp_path / "p.json")
    assert ("chosen by measured milliseconds" in out) == (exits == "auto")
    if exits == "1,3":
        assert policy.exit_layers == (1, 3)
        assert "asking only the exits after layers 1, 3" in out


def test_exports_keep_their_policy(recorded, model, run):
    manifest = model / "onnx" / MANIFEST
    manifest.parent.mkdir()
    manifest.write_text("{}")
    code, out, err = run(
        "calibrate", model, "--trace", recorded / "calibration.safetensors", "--max-disagreement", "0.05"
    )
    assert code == 0, err
    assert f"{manifest.parent} keeps the policy it has" in out


def test_a_test_split_is_noted(recorded, model, run):
    _, out, _ = run("calibrate", model, "--trace", recorded / "test.safetensors", "--max-disagreement", "0.05")
    assert "this is a test split" in out
    _, out, _ = run("calibrate", model, "--trace", recorded / "calibration.safetensors", "--max-disagreement", "0.05")
    assert "this is a test split" not in out


def test_no_guarantee_is_possible(recorded, run, tmp_path):
    calibration = Trace.load(recorded / "calibration.safetensors")
    noise = 10 * np.random.default_rng(0).normal(size=calibration.logits.shape).astype(np.float32)
    Trace(noise, np.array(calibration.labels), calibration.exit_layers, calibration.about).save(tmp_path / "noise")
    arguments = ("--trace", tmp_path / "noise", "--strategy", "max_prob", "--max-disagreement", "0.02")
    code, out, err = run("calibrate", recorded / "model", *arguments, "--out", tmp_path / "p.json")
    assert code == 1, err
    assert "no guarantee is possible" in out
    assert "the nearest that these texts could prove" in out
    assert Policy.load(tmp_path / "p.json").threshold is None
    code, out, _ = run(
        "evaluate", recorded / "model", "--trace", recorded / "test.safetensors", "--policy", tmp_path / "p.json"
    )
    assert "the policy never exits early: no guarantee is possible that answers differ" in out
    Policy("votes", 1.5).save(tmp_path / "p.json")
    code, out, err = run("calibrate", recorded / "model", *arguments, "--out", tmp_path / "p.json")
    assert code == 1
    assert f"kept {tmp_path / 'p.json'} as it was" in out
    assert Policy.load(tmp_path / "p.json") == Policy("votes", 1.5)


def test_the_policy_is_written_before_anything_is_printed(recorded, run, tmp_path, monkeypatch):
    """Nobody may read on, as in `| head -1`, and what was printed must be true."""
    from exitpoll.cli.verbs import calibrate as verb

    def closed(*lines):
        raise SystemExit(141)

    monkeypatch.setattr(verb, "say", closed)
    arguments = ("--trace", recorded / "calibration.safetensors", "--out", tmp_path / "p.json", "--speedup", "1.5")
    code, _, _ = run("calibrate", recorded / "model", *arguments)
    assert code == 141
    assert Policy.load(tmp_path / "p.json").certificate.speedup >= 1.5


def test_json(recorded, run, tmp_path):
    arguments = ("--trace", recorded / "calibration.safetensors", "--out", tmp_path / "p.json", "--speedup", "1.5")
    code, out, err = run("calibrate", recorded / "model", *arguments, "--json")
    assert code == 0, err
    assert json.loads(out) == json.loads((tmp_path / "p.json").read_text())


def test_training_texts(recorded, refused, run, tmp_path):
    arguments = ("--data", recorded / "data", "--split", "train", "--out", tmp_path / "t")
    assert run("record", recorded / "model", *arguments)[0] == 0
    goal = ("--trace", tmp_path / "t", "--speedup", "1.5", "--out", tmp_path / "p.json")
    refused("this trace is of the training split", "calibrate", recorded / "model", *goal)
    code, out, err = run("calibrate", recorded / "model", *goal, "--allow-training-texts")
    assert code == 0, err
    assert "the model was trained on 100.0 % of the calibration texts" in out
    _, out, _ = run("evaluate", recorded / "model", "--trace", tmp_path / "t", "--policy", tmp_path / "p.json")
    assert "the model was trained on 100.0 % of these texts" in out


class TestRefusals:
    @pytest.fixture
    def rejected(self, refused, recorded):
        """Check that a calibration of the model on its calibration split is refused."""
        trace = ("--trace", recorded / "calibration.safetensors")
        return lambda message, *arguments: refused(message, "calibrate", recorded / "model", *trace, *arguments)

    def test_goals(self, rejected):
        rejected("name exactly one goal: --speedup, --latency-ms, --max-disagreement or --max-accuracy-drop")
        rejected("name exactly one goal", "--speedup", "2", "--max-disagreement", "0.1")

    def test_exits(self, rejected):
        rejected("exits '1-3' must be all, auto or layers such as 2,4,6,12", "--speedup", "2", "--exits", "1-3")

    def test_unknown_strategies(self, rejected):
        rejected('Invalid value "guess"', "--strategy", "guess", "--speedup", "2")

    def test_too_few_texts(self, rejected):
        rejected("2995 or more are needed", "--max-disagreement", "0.001")
        rejected("5990 or more are needed", "--max-disagreement", "0.001", "--strategy", "learned")
        for limit in ("1e-9", "1e-300"):
            rejected("or more are needed", "--max-disagreement", limit)

    def test_a_negative_seed(self, rejected):
        rejected("seed -1 must be 0", "--max-disagreement", "0.3", "--seed", "-1")

    def test_a_file_of_another_kind_is_never_replaced(self, rejected, recorded):
        trace = recorded / "calibration.safetensors"
        before = trace.read_bytes()
        rejected("exists and is not a file of the kind policy", "--speedup", "1.1", "--out", trace)
        assert trace.read_bytes() == before

    def test_a_trace_without_labels(self, refused, recorded, tmp_path):
        test = Trace.load(recorded / "test.safetensors")
        Trace(np.array(test.logits), None, test.exit_layers, test.about).save(tmp_path / "t")
        goal = ("--max-accuracy-drop", "0.1")
        refused("a loss of accuracy needs labels", "calibrate", recorded / "model", "--trace", tmp_path / "t", *goal)

    def test_a_trace_of_another_model(self, refused, recorded, model, tmp_path):
        other = EarlyExitModel.from_pretrained(model)
        other.heads[0].out.bias.data += 1
        other.save_pretrained(model)
        (model / "training.json").unlink()  # states the fingerprint of the weights it was written with
        trace = ("--trace", recorded / "test.safetensors")
        refused("was made from another fingerprint than", "calibrate", model, *trace, "--speedup", "2")

    def test_a_model_that_does_not_exist(self, refused, recorded, tmp_path):
        trace = ("--trace", recorded / "test.safetensors", "--speedup", "2")
        refused("is not a folder; name the model folder", "calibrate", tmp_path / "none", *trace)
