"""An exit before the first layer: it costs no layer, and every speed-up stays a finite number."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from exitpoll.decide.analysis import static_exit
from exitpoll.decide.calibrate import calibrate
from exitpoll.decide.compare import compare
from exitpoll.decide.decisions import speedup_at
from exitpoll.decide.policy import Policy
from exitpoll.decide.strategies import STRATEGIES
from exitpoll.decide.sweep import sweep
from exitpoll.models.card import _speedup_interval
from exitpoll.report.content import page_data
from exitpoll.report.html import build_report
from tests.samples import random_trace

LAYERS = (0, 2, 3, 6)
ABOUT = {"metric": "accuracy", "milliseconds": [0.1, 2.0, 3.0, 6.0]}


def trace_of(texts=80, clarity=4.0):
    trace = random_trace(0, texts=texts, clarity=clarity)
    return replace(trace, exit_layers=LAYERS, about=ABOUT)


def test_the_speedup_is_layers_over_mean_depth_with_at_least_one_text_at_the_next_exit():
    depths = np.array([[0, 0, 6], [0, 0, 2], [0, 0, 0]])
    assert speedup_at(depths, LAYERS).tolist() == [3.0, 9.0, 9.0]
    assert static_exit(trace_of(), 0).speedup == 80 * 6 / 2
    assert static_exit(trace_of(), -1).speedup == 1


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_sweep_is_what_deciding_gives(name):
    trace = trace_of()
    for curve in sweep(trace, [name], points=9):
        for point in range(len(curve.levels)) if "towards" not in curve.policy.settings else ():
            assert curve.speedup[point] == pytest.approx(curve.policy_at(point).decide(trace).speedup)
        assert curve.speedup.max() == pytest.approx(240)


@pytest.mark.parametrize("goal", [{"speedup": 200.0}, {"latency_ms": 0.2}, {"max_disagreement": 0.2}, {"max_depth": 0}])
def test_policies_that_leave_at_exit_zero_are_saved_and_loaded(goal, tmp_path):
    trace = trace_of(texts=400, clarity=9.0)
    policy = Policy("max_prob", 0.5, max_depth=0) if "max_depth" in goal else calibrate(trace, **goal)
    assert (policy.decide(trace).depth == 0).mean() > 0.3
    policy.save(tmp_path / "policy.json")
    again = Policy.load(tmp_path / "policy.json")
    assert again == policy
    assert again.decide(trace).depth.tolist() == policy.decide(trace).depth.tolist()


def test_a_goal_out_of_reach_names_the_speedup_of_exit_zero():
    with pytest.raises(Exception, match="leaving at the first exit gives 240 × in layers"):
        calibrate(trace_of(), speedup=1e6)


def test_comparisons_reports_and_cards_have_finite_numbers():
    trace = trace_of()
    comparison = compare(trace, sweep(trace, ["max_prob"]))
    json.dumps(comparison.to_dict(), allow_nan=False)
    for policy in (Policy("max_prob", 0.0), Policy("max_prob", 0.9), Policy("static", 1.0)):
        report = build_report("toy", ["a", "b", "c"], policy, trace, [str(row) for row in range(len(trace))])
        json.dumps(page_data(report), allow_nan=False)
    assert _speedup_interval({0: 50, 2: 0, 6: 0}) == "150.00 to 150.00"
    assert _speedup_interval({0: 40, 2: 5, 6: 5}) == "4.57 to 20.92"
