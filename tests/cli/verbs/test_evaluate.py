"""exitpoll evaluate: score, speed-up and whether the guarantee held, on held-out texts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from exitpoll import Guarantee, Policy, Trace
from exitpoll.files import write_json
from tests.samples import certified
from tests.tiny import toy_rows, write_tsv


@pytest.fixture
def margin(tmp_path):
    """The option that names a policy which was never calibrated."""
    Policy("margin", 0.5).save(tmp_path / "p.json")
    return ("--policy", tmp_path / "p.json")


def test_calibrate_then_evaluate(recorded, model, run, tmp_path):
    arguments = ("--trace", recorded / "calibration.safetensors", "--max-disagreement", "0.05")
    code, out, err = run("calibrate", model, *arguments)
    assert code == 0, err
    assert "guarantee: answers differ from the full model's on at most 5 % of texts, with 95 % confidence" in out
    policy = Policy.load(model / "policy.json")
    assert policy.certificate.met
    assert policy.certificate.source.data == "data"
    assert "keeps the policy" not in out

    code, out, err = run("evaluate", model, "--data", recorded / "data", "--out", tmp_path / "e.json")
    assert code == 0, err
    assert "the guarantee held on these texts" in out
    assert "where texts exit" in out
    content = json.loads((tmp_path / "e.json").read_text())
    accuracy = policy.decide(Trace.load(recorded / "test.safetensors")).accuracy
    assert content["rows"][0]["score"]["value"] == pytest.approx(accuracy)

    code, by_trace, err = run("evaluate", model, "--trace", recorded / "test.safetensors")
    assert code == 0, err
    assert by_trace == out.split("wrote")[0]
    code, out, _ = run("evaluate", model, "--trace", recorded / "calibration.safetensors")
    assert "calibrated on this very split, data calibration" in out


@pytest.mark.parametrize(("limit", "code"), [(0.9, 0), (0.01, 3), (1e-9, 1)])
def test_the_exit_code_tells_the_verdict(recorded, run, tmp_path, limit, code):
    Policy("margin", 0.01, certificate=certified(Guarantee(at_most=limit))).save(tmp_path / "p.json")
    test = Trace.load(recorded / "test.safetensors")
    logits = np.array(test.logits)
    logits[:] = 9 * np.eye(3)[0]
    logits[0, -1] = 9 * np.eye(3)[1]  # one text leaves with another answer
    Trace(logits, np.array(test.labels), test.exit_layers, test.about).save(tmp_path / "t")
    arguments = ("--trace", tmp_path / "t", "--policy", tmp_path / "p.json")
    assert run("evaluate", recorded / "model", *arguments)[0] == 0
    assert run("evaluate", recorded / "model", *arguments, "--check")[0] == code


def test_texts_that_differ_from_the_calibration_texts(recorded, run, tmp_path):
    calibration, test = (Trace.load(recorded / f"{split}.safetensors") for split in ("calibration", "test"))
    goal = ("--trace", recorded / "calibration.safetensors", "--speedup", "1.5", "--out", tmp_path / "p.json")
    assert run("calibrate", recorded / "model", *goal)[0] == 0
    profile = Policy.load(tmp_path / "p.json").certificate.profile
    assert profile.texts == len(calibration)
    arguments = ("--policy", tmp_path / "p.json")
    _, out, _ = run("evaluate", recorded / "model", "--trace", recorded / "test.safetensors", *arguments)
    assert "differ from the calibration texts" not in out
    Trace(0 * np.array(test.logits), np.array(test.labels), test.exit_layers, test.about).save(tmp_path / "t")
    _, out, _ = run("evaluate", recorded / "model", "--trace", tmp_path / "t", *arguments)
    assert "note: these 120 texts differ from the calibration texts in " in out


def test_json(recorded, run, margin, tmp_path):
    arguments = ("--trace", recorded / "test.safetensors", *margin, "--out", tmp_path / "e.json", "--json")
    code, out, err = run("evaluate", recorded / "model", *arguments)
    assert code == 0, err
    assert json.loads(out)["texts"] == 120


def test_by_group(recorded, run, margin):
    code, out, err = run("evaluate", recorded / "model", "--data", recorded / "data", "--by", "length", *margin)
    assert code == 0, err
    assert "accuracy in % by group" in out
    assert "│ long " in out
    assert "│ short " in out
    assert "it guarantees nothing" in out


def test_names_of_groups_are_shown_as_they_are(recorded, run, tmp_path, margin):
    rows = [(*row, "[/b]" if number % 2 else "[red]a") for number, row in enumerate(toy_rows(20))]
    write_tsv(tmp_path / "d.tsv", rows, ("text", "label", "group"))
    arguments = ("--data", tmp_path / "d.tsv", "--split", "all", "--by", "group", *margin)
    code, out, err = run("evaluate", recorded / "model", *arguments)
    assert code == 0, err
    assert "│ [/b] " in out
    assert "│ [red]a" in out


def test_texts_without_labels(recorded, run, tmp_path):
    test = Trace.load(recorded / "test.safetensors")
    Trace(np.array(test.logits), None, test.exit_layers, dict(test.about) | {"split": "other"}).save(tmp_path / "t")
    goal = ("--max-disagreement", "0.05", "--out", tmp_path / "p.json")
    run("calibrate", recorded / "model", "--trace", recorded / "calibration.safetensors", *goal)
    arguments = ("--trace", tmp_path / "t", "--policy", tmp_path / "p.json")
    code, out, err = run("evaluate", recorded / "model", *arguments)
    assert code == 0, err
    assert "agreement in % on 120 texts" in out
    assert "the guarantee held" in out


def test_logits_that_are_not_finite_are_reported(recorded, run, tmp_path, margin):
    test = Trace.load(recorded / "test.safetensors")
    logits = np.array(test.logits)
    logits[:3, 1] = np.nan
    Trace(logits, np.array(test.labels), test.exit_layers, test.about).save(tmp_path / "broken")
    for words in (
        ("evaluate", recorded / "model", "--trace", tmp_path / "broken", *margin),
        ("calibrate", recorded / "model", "--trace", tmp_path / "broken", "--speedup", "1.1", "--out", tmp_path / "c"),
        ("sweep", tmp_path / "broken", "--strategies", "margin"),
    ):
        code, out, err = run(*words)
        assert code == 0, err
        assert "3 of 120 texts have logits that are not finite" in out


class TestRefusals:
    def test_nothing_to_check(self, refused, run, recorded, margin, tmp_path):
        arguments = ("--trace", recorded / "test.safetensors", *margin, "--check")
        refused("this policy guarantees nothing that --check could check", "evaluate", recorded / "model", *arguments)
        test = Trace.load(recorded / "test.safetensors")
        Trace(np.array(test.logits), None, test.exit_layers, test.about).save(tmp_path / "t")
        Policy("margin", 0.5, certificate=certified(Guarantee("accuracy"))).save(tmp_path / "p.json")
        arguments = ("--trace", tmp_path / "t", *margin, "--check")
        code, _, err = run("evaluate", recorded / "model", *arguments)
        assert code == 2
        assert "cannot be checked on texts without labels" in err

    @pytest.fixture
    def rejected(self, refused, recorded, tmp_path):
        """Check that an evaluation on the trace of the test split is refused, by a policy of these values."""

        def check(message, policy, *arguments):
            write_json(tmp_path / "p.json", {"version": 3} | policy)
            trace = ("--trace", recorded / "test.safetensors", "--policy", tmp_path / "p.json")
            refused(message, "evaluate", recorded / "model", *trace, *arguments)

        return check

    def test_policies(self, rejected, refused, recorded, tmp_path):
        rejected("2 thresholds were given for 3 exits", {"strategy": "votes", "threshold": [1, 2]})
        arguments = ("--trace", recorded / "test.safetensors", "--policy", tmp_path / "none")
        refused("exitpoll calibrate writes one", "evaluate", recorded / "model", *arguments)

    def test_a_policy_of_another_runtime(self, rejected):
        policy = Policy("margin", 0.5, certificate=certified(runtime="onnx int8"))
        rejected("calibrated for runtime onnx int8, and this is runtime torch float32", policy.to_dict())

    @pytest.mark.parametrize(
        ("certificate", "message"),
        [
            ({"version": 3, "goal": []}, "the goal of the certificate must be names with values"),
            ({"version": 3, "goal": {"kind": "guarantee", "risk": "x"}}, "risk 'x' is unknown"),
            ("x", "must be names with values"),
        ],
    )
    def test_broken_certificates(self, rejected, certificate, message):
        rejected(message, {"strategy": "votes", "threshold": 1, "certificate": certificate})

    def test_evaluate_on_nothing_or_twice(self, refused, recorded):
        refused("either --data or --trace", "evaluate", recorded / "model")
        trace = ("--trace", recorded / "test.safetensors")
        refused("either --data or --trace", "evaluate", recorded / "model", *trace, "--data", recorded / "data")
        refused("--by needs --data", "evaluate", recorded / "model", *trace, "--by", "length")

    def test_a_column_that_is_not_there(self, refused, recorded, margin):
        arguments = ("--data", recorded / "data", "--by", "age", *margin)
        refused("no column 'age'", "evaluate", recorded / "model", *arguments)

    def test_a_file_of_another_kind_is_never_replaced(self, refused, recorded):
        trace = recorded / "calibration.safetensors"
        before = trace.read_bytes()
        arguments = ("--trace", trace, "--out", trace)
        refused("exists and is not a file of the kind evaluation", "evaluate", recorded / "model", *arguments)
        assert trace.read_bytes() == before
