"""Sentences state the numbers of certificates, evaluations and exports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from exitpoll import Certificate, Guarantee, Policy, Trace, evaluate, sweep
from exitpoll.decide.certificate import Latency, Nearest, Source, Speedup, StaticExit
from exitpoll.decide.compare import compare
from exitpoll.decide.shift import Profile
from exitpoll.export.export import Exported
from exitpoll.report.wording import (
    describe_best,
    describe_calibration,
    describe_export,
    note_not_finite,
    note_same_texts,
    percent,
    verdict,
)
from tests.samples import SETTINGS, certified, random_trace, regression_trace

MEASURED = Certificate(Guarantee(at_most=0.05), 500, 1.5, Source(), measured=0.01, bound=0.04)


def with_certificate(certificate, **changes):
    return replace(Policy("max_prob", 0.9), certificate=certificate, **changes)


def test_percent():
    assert percent(0.1234) == "12.3"
    assert percent(float("nan")) == ""


class TestCalibration:
    def test_a_guarantee(self):
        assert describe_calibration(with_certificate(MEASURED)) == [
            "max_prob, threshold 0.9: speed-up 1.50 × in layers",
            "guarantee: answers differ from the full model's on at most 5 % of texts, with 95 % confidence",
            "measured on 500 texts: 1.0 % of answers differ; upper bound with that confidence: 4.0 % differ",
        ]

    def test_a_loss_of_accuracy(self):
        certificate = replace(MEASURED, goal=Guarantee("accuracy", 0.05), measured=-0.01)
        scored = replace(certificate, metric="accuracy", score=0.91, full_score=0.9)
        lines = describe_calibration(with_certificate(scored), "the calibration texts")
        assert lines[2].endswith("accuracy 1.0 points higher than the full model's; "
                                 "upper bound with that confidence: 4.0 points lower")  # fmt: skip
        assert lines[3] == "accuracy 91.0 % against 90.0 % of the full model, on the calibration texts"

    def test_a_certificate_without_measurements(self):
        assert len(describe_calibration(with_certificate(certified()))) == 2

    @pytest.mark.parametrize(
        ("nearest", "line"),
        [
            (None, "no policy exits early enough to be worth a guarantee"),
            (
                Nearest(Guarantee(at_most=0.2), 1.25),
                "the nearest that these texts could prove: answers differ from the full model's on at most 20 % of "
                "texts, with 95 % confidence (speed-up 1.25 × in layers)",
            ),
        ],
    )
    def test_a_guarantee_that_is_not_possible(self, nearest, line):
        certificate = replace(MEASURED, met=False, nearest=nearest)
        lines = describe_calibration(with_certificate(certificate, threshold=None))
        assert lines == [f"no guarantee is possible that {MEASURED.goal}", line]

    def test_a_speedup_and_a_latency(self):
        [line, last] = describe_calibration(with_certificate(Certificate(Speedup(2), 10, 2.1, Source())))
        assert line == "max_prob, threshold 0.9: speed-up 2.10 × in layers (goal: at least 2 ×)"
        assert "not guaranteed for others" in last
        latency = Certificate(Latency(5), 10, 2.1, Source(), latency_ms=4.5)
        assert "4.5 ms a text on average, one text at a time" in describe_calibration(with_certificate(latency))[0]


class TestStatic:
    """Where all texts leave at one exit, the smaller model that does the same is named."""

    SPEEDUP = Certificate(Speedup(2), 10, 2.1, Source(), metric="accuracy", score=0.8, full_score=0.9)

    def test_every_text_at_one_exit(self):
        certificate = replace(self.SPEEDUP, profile=Profile({2: 0, 4: 9, 6: 0}))
        lines = describe_calibration(with_certificate(certificate))
        assert lines[2] == "every text exits at layer 4: this is a static model of 4 layers"
        proven = replace(MEASURED, profile=Profile({2: 9, 4: 0}))
        assert "every text exits at layer 2: this is a static model of 2 layers" in describe_calibration(
            with_certificate(proven)
        )

    def test_no_text_leaves_early(self):
        certificate = replace(self.SPEEDUP, profile=Profile({2: 0, 4: 9}))
        assert describe_calibration(with_certificate(certificate))[2] == "no text exits early: this is the full model"

    def test_a_static_exit_that_is_better_than_the_strategy_asked_for(self):
        certificate = replace(self.SPEEDUP, profile=Profile({2: 5, 4: 5}), static=StaticExit(3, 2.0, 0.85))
        assert describe_calibration(with_certificate(certificate))[2] == (
            "note: a static model of 3 layers is better: accuracy 85.0 % at 2.00 × in layers; "
            "the strategies best and static take it"
        )
        worse = replace(certificate, static=StaticExit(3, 2.0, 0.75))
        assert not any("static" in line for line in describe_calibration(with_certificate(worse)))

    def test_the_exit_of_a_static_policy(self):
        policy = replace(Policy("static", 2.5), certificate=replace(self.SPEEDUP))
        assert describe_calibration(policy)[0].startswith("static, exit 3: speed-up 2.10 × in layers")

    def test_an_evaluation_says_it_too(self):
        policy = Policy("static", 2)
        assert verdict(evaluate(random_trace(0), policy), policy)[-1] == (
            "every text exits at layer 2: this is a static model of 2 layers"
        )

    def test_a_sweep_in_which_a_static_exit_wins(self):
        trace = random_trace(0, clarity=0)
        logits = np.array(trace.logits)
        logits[:, 1] = np.eye(3)[trace.labels]  # only the second exit knows
        known = Trace(logits, trace.labels)
        lines = describe_best(compare(known, sweep(known, ["patience", "static"])))
        assert lines[2] == "best at ≥ 2×: 100.0 at 2.00×, every text exits at layer 2"
        assert lines[5].endswith(" at 4.00×, every text exits at layer 1")  # whatever the strategy


class TestSearch:
    def last_line(self, **fields):
        return describe_calibration(with_certificate(replace(MEASURED, **fields)))[-1]

    def test_what_best_did(self):
        few = "500 texts are too few to search on half of them: max_prob, fixed beforehand, was tested on all"
        assert self.last_line(fixed="max_prob") == few
        assert self.last_line(searched_on=400) == "searched on 400 texts, and tested on 500 others"
        assert self.last_line(fixed="max_prob", searched_on=250) == (
            "max_prob, fixed beforehand, was tested on all 500 texts and is faster than what a search on 250 texts "
            "could prove on others"
        )

    def test_training_texts(self):
        assert self.last_line(trained_on=0.5) == (
            "note: the model was trained on 50.0 % of the calibration texts, which makes figures too good"
        )


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        (Policy("max_prob", (0.9, 0.8, 0.7, 0.6)), "policy: max_prob, one threshold per exit"),
        (Policy("hybrid", 1.0, SETTINGS["hybrid"]), "policy: hybrid (votes k=0.5 ≥ 1.5, entropy ≤ 0.4)"),
        (Policy("votes", None), "the policy never exits early"),
    ],
)
def test_thresholds(policy, line):
    assert verdict(evaluate(random_trace(0), policy), policy)[0] == line


class TestVerdict:
    trace = random_trace(0)

    def lines(self, certificate, trace=None):
        policy = with_certificate(certificate)
        return verdict(evaluate(trace or self.trace, policy), policy)

    def test_a_guarantee_that_held_or_not(self):
        assert "held on these texts" in self.lines(replace(MEASURED, goal=Guarantee(at_most=0.99)))[1]
        assert "did NOT hold on these texts" in self.lines(replace(MEASURED, goal=Guarantee(at_most=1e-6)))[1]
        policy = with_certificate(MEASURED)
        differs = evaluate(self.trace, policy).rows[0].differs
        near = self.lines(replace(MEASURED, goal=Guarantee(at_most=differs)))
        assert near[1].startswith("these texts are too few to tell whether the guarantee held: answers differ")

    def test_values_are_not_advised_to_be_guaranteed(self):
        policy = Policy("static", 2, problem_type="regression")
        assert verdict(evaluate(regression_trace(0), policy), policy)[1] == (
            "it guarantees nothing: guarantees are for classes"
        )

    def test_no_guarantee(self):
        lines = self.lines(None)
        advice = "calibrate with --max-disagreement or --max-accuracy-drop for a guarantee"
        assert lines[1] == f"it guarantees nothing: {advice}"
        assert "of answers differ from the full model's" in lines[2]

    def test_texts_without_labels(self):
        lines = self.lines(replace(MEASURED, goal=Guarantee("accuracy")), Trace(self.trace.logits))
        assert lines[1].startswith("its guarantee cannot be checked on texts without labels: accuracy")


def test_notes():
    trace = random_trace(0)
    assert note_not_finite(trace) == []
    logits = np.array(trace.logits)
    logits[:2, 1] = np.inf
    assert note_not_finite(Trace(logits)) == [
        "note: 2 of 60 texts have logits that are not finite; these never exit early"
    ]
    policy = with_certificate(certified(data="toy", split="test"))
    assert note_same_texts(policy, {"data": "toy", "split": "calibration"}) == []
    [note] = note_same_texts(policy, {"data": "toy", "split": "test"})
    assert "calibrated on this very split, toy test" in note


def test_the_best_policies_of_a_sweep():
    trace = random_trace(0)
    *lines, last = describe_best(compare(trace, sweep(trace, ["margin"])))
    assert all(", margin, threshold " in line for line in lines[:-1])
    assert lines[-1].endswith("at 4.00×, every text exits at layer 1")
    assert [line.split(":")[0] for line in lines[:2]] == ["best at ≥ 1.3×", "best at ≥ 1.5×"]
    assert "picked on these same texts" in last


class TestExport:
    def lines(self, policy, runtime="onnx int8", **fields):
        return describe_export(Exported(Path("m"), runtime, policy, **fields))

    def test_its_cost(self):
        fields = {"metric": "accuracy", "texts": 100, "before": 0.9}
        lines = self.lines(Policy("votes", 1.0), int8=True, after=0.88, **fields)
        assert lines[0] == (
            "accuracy of all layers on 100 texts: 90.0 % before, 88.0 % exported; note: that is 2.0 points less"
        )
        assert "note" not in self.lines(Policy("votes", 1.0), int8=True, after=0.9, **fields)[0]

    def test_a_cost_that_was_not_measured(self):
        note = "note: the cost of int8 was not measured; --data measures it"
        assert self.lines(None, int8=True)[0] == note
        assert note not in self.lines(None, runtime="onnx float32")

    def test_its_policy(self):
        assert "exported with it, unchanged: votes, threshold 1" in self.lines(Policy("votes", 1.0))[0]
        carried = with_certificate(certified(carried_from="torch float32"))
        assert "exported with it, unchanged: max_prob, threshold 0.9" in self.lines(carried)[0]
        assert self.lines(with_certificate(MEASURED))[1].startswith("guarantee: ")
        assert "never exits early: too few texts" in self.lines(None, note="too few texts")[0]
        assert "exitpoll calibrate make one" in self.lines(None)[0]
