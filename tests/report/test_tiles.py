"""The tiles state the loss with its interval, the verdict on the guarantee, and both factors of wall-clock time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exitpoll import Guarantee, Policy, Trace, evaluate
from exitpoll.decide.certificate import Speedup
from exitpoll.report.clock import fastest
from exitpoll.report.tiles import points, tiles_of
from tests.report.samples import benchmark
from tests.samples import certified, random_trace, regression_trace

TRACE = random_trace(0, texts=200)
POLICY = Policy("max_prob", 0.6)
MEASURED = evaluate(TRACE, POLICY).rows[0].differs
VERDICTS = [(0.99, "held", "good"), (1e-6, "broken", "bad"), (MEASURED, "too few texts to tell", "open")]


def tiles(policy=POLICY, trace=TRACE, gain=None):
    return {tile.title: tile for tile in tiles_of(evaluate(trace, policy), policy, trace.exit_layers[-1], gain)}


def guarantee(goal, trace=TRACE, **changes):
    certificate = replace(certified(goal), **changes)
    return tiles(replace(POLICY, certificate=certificate), trace)["Guarantee"]


def test_points():
    assert [points(share) for share in (-0.012, -0.0001, 0.5)] == ["−1.2", "0.0", "50.0"]


@pytest.mark.parametrize(("labels", "change"), [(TRACE.labels, "more"), (TRACE.logits[:, -1].argmax(-1), "less")])
def test_the_first_is_the_loss_with_its_interval(labels, change):
    trace = replace(TRACE, labels=labels)
    [first, *_] = tiles(trace=trace).values()
    ours, full = evaluate(trace, POLICY).rows[:2]
    [(value, what)] = first.values
    assert value == f"{100 * abs(ours.drop.value):.1f} points"
    assert what == f"{change} accuracy than the full model"
    low, high = points(ours.drop.low), points(ours.drop.high)
    assert first.details[0] == f"95 % interval of the loss: {low} to {high}"
    scores = f"{100 * ours.score.value:.1f} % with early exit, {100 * full.score.value:.1f} % without"
    assert first.details[1:] == [scores, f"{100 * ours.differs:.1f} % of answers differ from the full model’s"]


def test_without_labels_the_loss_is_the_share_of_answers_that_differ():
    [(value, what)] = tiles(trace=Trace(TRACE.logits))["Cost of early exit"].values
    assert value == f"{100 * evaluate(TRACE, POLICY).rows[0].differs:.1f} %"
    assert what == "of answers differ from the full model’s"


def test_values_have_no_answers_that_differ():
    policy = Policy("patience", 1.0, problem_type="regression")
    assert len(tiles(policy, regression_trace(0))["Cost of early exit"].details) == 2


@pytest.mark.parametrize(("at_most", "verdict", "mood"), VERDICTS)
def test_a_guarantee_that_held_or_not_or_is_open(at_most, verdict, mood):
    tile = guarantee(Guarantee(at_most=at_most))
    assert (tile.values[0][0], tile.mood) == (verdict, mood)
    assert tile.values[0][1] == str(Guarantee(at_most=at_most))
    assert tile.details[0].startswith("measured here: ")


def test_a_guarantee_that_cannot_be_checked():
    assert guarantee(Guarantee("accuracy"), Trace(TRACE.logits)).values[0][0] == "not checked"
    assert guarantee(Guarantee(), met=False).values[0][0] == "not possible"
    assert guarantee(Speedup(2)).values == [("none", "calibrated for another goal: at least 2 ×")]
    assert tiles()["Guarantee"].values == [("none", "the policy was never calibrated")]


def test_speedup_in_layers():
    speedup = evaluate(TRACE, POLICY).rows[0].speedup
    [(value, what)] = tiles()["Speed-up in layers"].values
    assert (value, what) == (f"{speedup:.2f} ×", f"4 layers ÷ {4 / speedup:.1f} on average")


def test_wall_clock_time_has_both_factors_at_one_batch_size():
    tile = tiles(gain=fastest(benchmark()))["Wall-clock speed-up"]
    assert tile.values == [
        ("1.25 ×", "by early exit (1.25 to 1.25)"),
        ("2.00 ×", "by running all layers in onnx (2.00 to 2.00)"),
    ]
    assert tile.details[0].startswith("both at batch size 1;")
    assert "Wall-clock speed-up" not in tiles()
