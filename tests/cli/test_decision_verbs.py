"""record, sweep, calibrate, evaluate as a user meets them, from a model folder to a promise that held."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from exitpoll import EarlyExitModel, Policy, Trace
from exitpoll.files import write_json
from exitpoll.models.folder import MANIFEST
from tests.samples import certified
from tests.tiny import toy_rows, write_tsv


@pytest.fixture(scope="module")
def place(tmp_path_factory, model_folder):
    """A folder with the toy data, a copy of the model and its traces, made by the verbs themselves."""
    folder = tmp_path_factory.mktemp("place")
    for name, count, seed in (("train", 40, 1), ("dev", 300, 2), ("test", 120, 3)):
        rows = [(*row, "short" if len(row[0]) < 25 else "long") for row in toy_rows(count, seed)]
        write_tsv(folder / "data" / f"{name}.tsv", rows, ("text", "label", "length"))
    shutil.copytree(model_folder, folder / "model")
    return folder


@pytest.fixture
def recorded(place, run):
    for split in ("calibration", "test"):
        out = place / f"{split}.safetensors"
        if not out.exists():
            code, _, err = run("record", place / "model", "--data", place / "data", "--split", split, "--out", out)
            assert code == 0, err
    return place


def test_record_says_what_it_wrote(place, run, tmp_path):
    code, out, err = run("record", place / "model", "--data", place / "data", "--out", tmp_path / "t.safetensors")
    assert code == 0, err
    assert "300 texts, 3 exits, 3 classes" in out
    trace = Trace.load(tmp_path / "t.safetensors")
    assert trace.about["split"] == "calibration"
    assert trace.about["metric"] == "accuracy"


def test_record_a_file_without_labels(place, run, tmp_path):
    (tmp_path / "texts.csv").write_text("text\ngood film\nbad film\n")
    arguments = ("--data", tmp_path / "texts.csv", "--split", "all", "--out", tmp_path / "t")
    code, out, err = run("record", place / "model", *arguments)
    assert code == 0, err
    assert "2 texts" in out
    assert Trace.load(tmp_path / "t").labels is None


def test_sweep_shows_a_table_and_writes_three_files(recorded, run, tmp_path):
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


def test_the_table_and_the_file_say_what_deciding_says(recorded, run, tmp_path):
    arguments = ("--strategies", "votes", "entropy", "--ks", "0.5", "--out", tmp_path / "s")
    code, out, _ = run("sweep", recorded / "test.safetensors", *arguments)
    assert code == 0
    assert "soft_votes" not in out
    trace = Trace.load(recorded / "test.safetensors")
    for curve in json.loads((tmp_path / "s" / "curves.json").read_text())["curves"]:
        for threshold, score, speedup in zip(curve["thresholds"], curve["score"], curve["speedup"], strict=True):
            decisions = Policy(curve["strategy"], threshold, curve["policy"]["settings"]).decide(trace)
            assert (decisions.accuracy, decisions.speedup) == (pytest.approx(score), pytest.approx(speedup))


def test_sweep_beside_the_trace_and_without_matplotlib(recorded, run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    code, out, err = run("sweep", recorded / "test.safetensors", "--strategies", "margin")
    assert code == 0, err
    assert "no figure: drawing figures needs more packages: pip install 'exitpoll[plots]'" in out
    assert (recorded / "test-sweep" / "curves.json").exists()


def test_calibrate_then_evaluate(recorded, run, tmp_path):
    arguments = ("--trace", recorded / "calibration.safetensors", "--max-drop", "0.05")
    code, out, err = run("calibrate", recorded / "model", *arguments)
    assert code == 0, err
    assert "guarantee: answers differ from the full model's on at most 5 % of texts, with 95 % confidence" in out
    policy = Policy.load(recorded / "model" / "policy.json")
    assert policy.certificate.met
    assert policy.certificate.source.data == "data"
    assert "keeps the policy" not in out

    code, out, err = run("evaluate", recorded / "model", "--data", recorded / "data", "--out", tmp_path / "e.json")
    assert code == 0, err
    assert "the guarantee held on these texts" in out
    assert "where texts left" in out
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["rows"][0]["score"]["value"] == pytest.approx(
        policy.decide(Trace.load(recorded / "test.safetensors")).accuracy
    )

    code, by_trace, err = run("evaluate", recorded / "model", "--trace", recorded / "test.safetensors")
    assert code == 0, err
    assert by_trace == out.split("wrote")[0]
    code, out, _ = run("evaluate", recorded / "model", "--trace", recorded / "calibration.safetensors")
    assert "calibrated on this very split, data calibration" in out
    code, out, _ = run("calibrate", recorded / "model", *arguments[2:], "--trace", recorded / "test.safetensors")
    assert "this is a test split" in out


def test_exports_keep_their_policy_and_calibrate_says_so(recorded, run):
    manifest = recorded / "model" / "onnx" / MANIFEST
    manifest.parent.mkdir()
    manifest.write_text("{}")
    arguments = ("--trace", recorded / "calibration.safetensors", "--max-drop", "0.05")
    code, out, err = run("calibrate", recorded / "model", *arguments)
    manifest.unlink()
    manifest.parent.rmdir()
    assert code == 0, err
    assert f"{manifest.parent} keeps the policy it has" in out


def test_evaluate_by_group(recorded, run, tmp_path):
    Policy("margin", 0.5).save(tmp_path / "p.json")
    arguments = ("--data", recorded / "data", "--by", "length", "--policy", tmp_path / "p.json")
    code, out, err = run("evaluate", recorded / "model", *arguments)
    assert code == 0, err
    assert "accuracy in % by group" in out
    assert "│ long " in out
    assert "│ short " in out
    assert "it guarantees nothing" in out


@pytest.mark.parametrize("goal", [("--speedup", "1.5"), ("--latency-ms", "500")])
def test_other_goals(recorded, run, tmp_path, goal):
    arguments = ("--trace", recorded / "calibration.safetensors", "--out", tmp_path / "p.json", *goal)
    code, out, err = run("calibrate", recorded / "model", *arguments)
    assert code == 0, err
    assert "of the full model" in out
    assert "not guaranteed for others" in out
    assert ("ms a text on average" in out) == (goal[0] == "--latency-ms")
    assert Policy.load(tmp_path / "p.json").certificate.goal


def test_a_promise_that_cannot_be_kept(recorded, run, tmp_path):
    calibration = Trace.load(recorded / "calibration.safetensors")
    noise = 10 * np.random.default_rng(0).normal(size=calibration.logits.shape).astype(np.float32)
    Trace(noise, np.array(calibration.labels), calibration.exit_layers, calibration.about).save(tmp_path / "noise")
    arguments = ("--trace", tmp_path / "noise", "--strategy", "max_prob", "--max-drop", "0.02")
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
    assert "p.json stays as it was" in out
    assert Policy.load(tmp_path / "p.json") == Policy("votes", 1.5)


def test_logits_that_are_no_numbers_are_reported(recorded, run, tmp_path):
    test = Trace.load(recorded / "test.safetensors")
    logits = np.array(test.logits)
    logits[:3, 1] = np.nan
    Trace(logits, np.array(test.labels), test.exit_layers, test.about).save(tmp_path / "broken")
    Policy("margin", 0.5).save(tmp_path / "p.json")
    for words in (
        ("evaluate", recorded / "model", "--trace", tmp_path / "broken", "--policy", tmp_path / "p.json"),
        ("calibrate", recorded / "model", "--trace", tmp_path / "broken", "--speedup", "1.1", "--out", tmp_path / "c"),
        ("sweep", tmp_path / "broken", "--strategies", "margin"),
    ):
        code, out, err = run(*words)
        assert code == 0, err
        assert "3 of 120 texts have logits that are not finite" in out


class TestRefusals:
    @pytest.fixture
    def refused(self, run):
        def check(message, *arguments):
            code, _, err = run(*arguments)
            assert code == 2
            assert message in err
            assert "unexpected" not in err  # as a crash is named
            assert err.startswith("exitpoll: ")
            assert err.count("\n") == 1

        return check

    def test_traces(self, refused, recorded, tmp_path):
        whole = (recorded / "test.safetensors").read_bytes()
        (tmp_path / "cut").write_bytes(whole[:-40])
        (tmp_path / "short").write_bytes(whole[:5])
        (tmp_path / "text").write_text("not a trace at all, but long enough to have a header")
        refused("its data are cut off", "sweep", tmp_path / "cut")
        refused("is no trace, or a broken one", "sweep", tmp_path / "short")
        refused("is no trace, or a broken one", "sweep", tmp_path / "text")
        refused("does not exist", "sweep", tmp_path / "none")
        refused("is a folder", "sweep", tmp_path)

    def test_a_trace_without_labels(self, refused, recorded, tmp_path):
        test = Trace.load(recorded / "test.safetensors")
        Trace(np.array(test.logits), None, test.exit_layers, test.about).save(tmp_path / "t")
        refused("a sweep needs labels, and this trace has none", "sweep", tmp_path / "t")
        goal = ("--max-drop", "0.1", "--risk", "accuracy")
        refused("a loss of accuracy needs labels", "calibrate", recorded / "model", "--trace", tmp_path / "t", *goal)

    def test_a_trace_of_another_model(self, refused, recorded, tmp_path):
        other = EarlyExitModel.from_pretrained(recorded / "model")
        other.heads[0].out.bias.data += 1
        shutil.copytree(recorded / "model", tmp_path / "other")
        other.save_pretrained(tmp_path / "other")
        trace = ("--trace", recorded / "test.safetensors")
        refused("recorded from another model", "calibrate", tmp_path / "other", *trace, "--speedup", "2")

    def test_a_policy_of_another_runtime(self, refused, recorded, tmp_path):
        Policy("margin", 0.5, certificate=certified(runtime="onnx int8")).save(tmp_path / "p.json")
        arguments = ("--trace", recorded / "test.safetensors", "--policy", tmp_path / "p.json")
        refused("calibrated on runtime onnx int8, and this is", "evaluate", recorded / "model", *arguments)

    def test_too_few_texts(self, refused, recorded):
        arguments = ("--trace", recorded / "calibration.safetensors", "--max-drop", "0.001")
        refused("5990 or more could do", "calibrate", recorded / "model", *arguments)

    def test_unknown_strategies_and_metrics(self, refused, recorded):
        refused("strategy 'guess' is unknown", "sweep", recorded / "test.safetensors", "--strategies", "guess")
        refused("metric 'bleu' does not score", "sweep", recorded / "test.safetensors", "--metric", "bleu")
        refused("points 0 must be at least 1", "sweep", recorded / "test.safetensors", "--points", "0")
        arguments = ("--trace", recorded / "calibration.safetensors", "--strategy", "guess", "--speedup", "2")
        refused("strategy 'guess' is unknown", "calibrate", recorded / "model", *arguments)

    def test_goals(self, refused, recorded):
        trace = ("--trace", recorded / "calibration.safetensors")
        refused("name one goal", "calibrate", recorded / "model", *trace)
        refused("name one goal", "calibrate", recorded / "model", *trace, "--speedup", "2", "--max-drop", "0.1")

    def test_policies(self, refused, recorded, tmp_path):
        trace = ("--trace", recorded / "test.safetensors")
        write_json(tmp_path / "p.json", {"version": 2, "strategy": "votes", "threshold": [1, 2]})
        refused("2 thresholds were given for 3 exits", "evaluate", recorded / "model", *trace, "--policy",
                tmp_path / "p.json")  # fmt: skip
        refused("exitpoll calibrate writes one", "evaluate", recorded / "model", *trace, "--policy", tmp_path / "n")

    def test_evaluate_on_nothing_or_twice(self, refused, recorded):
        refused("either --data or --trace", "evaluate", recorded / "model")
        trace = ("--trace", recorded / "test.safetensors")
        refused("either --data or --trace", "evaluate", recorded / "model", *trace, "--data", recorded / "data")
        refused("--by needs --data", "evaluate", recorded / "model", *trace, "--by", "length")

    def test_outputs(self, refused, recorded, tmp_path):
        data = ("--data", recorded / "data")
        refused("exists already", "record", recorded / "model", *data, "--out", recorded / "test.safetensors")
        refused("is a folder; name a file", "record", recorded / "model", *data, "--out", tmp_path)
        refused("there is no folder", "record", recorded / "model", *data, "--out", tmp_path / "no" / "t")

    def test_models(self, refused, recorded, tmp_path):
        trace = ("--trace", recorded / "test.safetensors", "--speedup", "2")
        refused("is no folder; name the model folder", "calibrate", tmp_path / "none", *trace)
        data = ("--data", recorded / "data", "--out", tmp_path / "t")
        refused("does not exist, and is no name of the hub", "record", tmp_path / "none", *data)

    def test_models_of_another_kind(self, refused, recorded, encoder_folder, classifier_folder, tmp_path):
        texts = write_tsv(tmp_path / "d.tsv", toy_rows(5))
        arguments = ("--data", texts, "--split", "all", "--out", tmp_path / "t")
        for folder in (encoder_folder, classifier_folder):
            refused("is not an exitpoll model (model_type: bert)", "record", folder, *arguments)
        refused("is a file; name the model folder", "record", recorded / "model" / "config.json", *arguments)
        lacking = shutil.copytree(recorded / "model", tmp_path / "lacking")
        weights = load_file(lacking / "model.safetensors")
        weights.pop("heads.0.out.bias")
        save_file(weights, lacking / "model.safetensors", metadata={"format": "pt"})
        refused("lacks weights, heads.0.out.bias among them", "record", lacking, *arguments)
        (lacking / "model.safetensors").write_bytes(b"junk")
        refused("cannot be loaded", "record", lacking, *arguments)

    def test_a_training_that_cannot_be_read(self, refused, recorded, tmp_path):
        """Splits cut with another seed would put training texts into the test split."""
        texts = write_tsv(tmp_path / "d.tsv", toy_rows(40))
        model = shutil.copytree(recorded / "model", tmp_path / "m")
        (model / "training.json").write_text("{")
        refused("training.json' is broken", "record", model, "--data", texts, "--out", tmp_path / "t")
        (model / "training.json").unlink()
        refused("how training cut it is not known", "record", model, "--data", texts, "--out", tmp_path / "t")

    def test_files_of_another_kind_are_never_replaced(self, refused, recorded):
        trace = recorded / "calibration.safetensors"
        before = trace.read_bytes()
        refused("exists and is no policy", "calibrate", recorded / "model", "--trace", trace, "--speedup", "1.1",
                "--out", trace)  # fmt: skip
        refused("exists and is no evaluation", "evaluate", recorded / "model", "--trace", trace, "--out", trace)
        assert trace.read_bytes() == before

    def test_promises_beyond_all_measure(self, refused, recorded):
        trace = ("--trace", recorded / "calibration.safetensors")
        for limit in ("1e-9", "1e-300"):
            refused("or more could do", "calibrate", recorded / "model", *trace, "--max-drop", limit)
        refused("seed -1 must be 0", "calibrate", recorded / "model", *trace, "--max-drop", "0.3", "--seed", "-1")

    def test_exponents_and_strategies(self, refused, recorded):
        for k in ("nan", "1000", "-1"):
            refused("must be between 0 and 1", "sweep", recorded / "test.safetensors", f"--ks={k}")

    def test_broken_certificates(self, refused, recorded, tmp_path):
        arguments = ("--trace", recorded / "test.safetensors", "--policy", tmp_path / "p.json")
        for certificate, message in (
            ({"version": 2, "goal": []}, "the goal of the certificate must be names with values"),
            ({"version": 2, "goal": {"kind": "guarantee", "risk": "x"}}, "risk 'x' is unknown"),
            ("x", "must be names with values"),
        ):
            write_json(
                tmp_path / "p.json", {"version": 2, "strategy": "votes", "threshold": 1, "certificate": certificate}
            )
            refused(message, "evaluate", recorded / "model", *arguments)

    def test_a_column_that_is_not_there(self, refused, recorded, tmp_path):
        Policy("margin", 0.5).save(tmp_path / "p.json")
        arguments = ("--data", recorded / "data", "--by", "age", "--policy", tmp_path / "p.json")
        refused("no column 'age'", "evaluate", recorded / "model", *arguments)


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


def test_texts_without_labels_all_the_way(recorded, run, tmp_path):
    test = Trace.load(recorded / "test.safetensors")
    Trace(np.array(test.logits), None, test.exit_layers, dict(test.about) | {"split": "other"}).save(tmp_path / "t")
    policy = ("--policy", tmp_path / "p.json")
    arguments = ("--trace", recorded / "calibration.safetensors", "--max-drop", "0.05", "--out", tmp_path / "p.json")
    run("calibrate", recorded / "model", *arguments)
    code, out, err = run("evaluate", recorded / "model", "--trace", tmp_path / "t", *policy)
    assert code == 0, err
    assert "agreement in % on 120 texts" in out
    assert "the guarantee held" in out


def test_names_of_groups_are_shown_as_they_are(recorded, run, tmp_path):
    rows = [(*row, "[/b]" if number % 2 else "[red]a") for number, row in enumerate(toy_rows(20))]
    write_tsv(tmp_path / "d.tsv", rows, ("text", "label", "group"))
    Policy("margin", 0.5).save(tmp_path / "p.json")
    arguments = ("--data", tmp_path / "d.tsv", "--split", "all", "--by", "group", "--policy", tmp_path / "p.json")
    code, out, err = run("evaluate", recorded / "model", *arguments)
    assert code == 0, err
    assert "│ [/b] " in out
    assert "│ [red]a" in out


def test_a_recording_that_is_ended_leaves_nothing(recorded, tmp_path):
    write_tsv(tmp_path / "d.tsv", toy_rows(4000))
    command = [sys.executable, "-c", "from exitpoll.cli.main import main; main()", "record", recorded / "model"]
    process = subprocess.Popen([*command, "--data", "d.tsv", "--split", "all", "--out", "t"], cwd=tmp_path)
    while process.poll() is None and not list(tmp_path.glob("t.*.partial")):
        time.sleep(0.05)
    process.terminate()
    assert process.wait(60) == 143
    assert [path.name for path in tmp_path.iterdir()] == ["d.tsv"]
