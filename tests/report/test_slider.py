"""The slider shows at every threshold what the policy with that threshold decides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from exitpoll import Policy, sweep
from exitpoll.decide.bootstrap import estimate_share
from exitpoll.report import slider
from exitpoll.report.slider import slide
from tests.samples import SETTINGS, multi_label_trace, random_trace, regression_trace

HYBRID = Policy("hybrid", 1.0, SETTINGS["hybrid"], fallback="head")
POLICIES = [
    Policy("max_prob", 0.7),
    Policy("entropy", 0.3, fallback="head"),
    Policy("votes", 1.2, {"k": 0.5}, answer="head"),
    Policy("max_prob", 0.7, max_depth=3),
    Policy("max_prob", (0.9, 0.8, 0.7, 0.6)),
    Policy("votes", 1.2, {"k": 0.5}, exit_layers=(2, 4)),
    HYBRID,
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.name}, {policy.threshold}")
def test_its_own_point_is_the_policy(policy):
    trace = random_trace(0)
    points, decisions = slide(trace, policy, []), policy.decide(trace)
    full = trace.logits[:, -1].argmax(-1)
    own = points["own"]
    assert points["speedup"][own] == round(decisions.speedup, 4)
    assert points["score"][own] == round(decisions.accuracy, 4)
    assert points["depths"][own] == list(decisions.histogram.values())
    share = estimate_share(decisions.answer != full)
    np.testing.assert_allclose(points["differs"][own], [share.value, share.low, share.high], atol=1e-4)


@pytest.mark.parametrize("policy", POLICIES[:3], ids=lambda policy: policy.name)
def test_every_other_point_is_the_policy_at_that_threshold(policy):
    trace = random_trace(0)
    points = slide(trace, policy, [])
    for number, threshold in list(enumerate(points["thresholds"]))[1:-1:7]:
        decisions = replace(policy, threshold=float(threshold)).decide(trace)
        assert points["depths"][number] == list(decisions.histogram.values())
        assert points["score"][number] == round(decisions.accuracy, 4)


def test_from_never_early_to_the_first_exit():
    points = slide(random_trace(0), Policy("entropy", 0.3), [])
    assert points["depths"][0] == [0, 0, 0, 60]
    assert points["depths"][-1] == [60, 0, 0, 0]
    assert points["thresholds"][0].startswith("below ")
    assert points["speedup"] == sorted(points["speedup"])
    assert (points["name"], points["unit"]) == ("entropy", "threshold")


def test_not_more_points_than_a_slider_can_show(monkeypatch):
    monkeypatch.setattr(slider, "POINTS", 10)
    assert len(slide(random_trace(0), Policy("margin", 0.3), [])["score"]) <= 10 + 3


def test_what_is_moved():
    trace = random_trace(0)
    assert slide(trace, Policy("max_prob", (0.9, 0.8, 0.7, 0.6)), [])["unit"] == "all thresholds, moved by"
    assert slide(trace, HYBRID, [])["unit"] == "threshold of entropy"
    assert slide(trace, replace(HYBRID, threshold=2.0), []) is None
    assert slide(trace, Policy("votes", None, max_depth=2), []) is None


def test_a_static_exit_is_moved_from_exit_to_exit():
    trace, policy = random_trace(0), Policy("static", 2.0)
    points = slide(trace, policy, [])
    assert points["unit"] == "exit"
    assert sorted(set(points["thresholds"])) == ["1", "2", "3", "4"]
    assert points["thresholds"][points["own"]] == "2"
    for threshold, depths in zip(points["thresholds"], points["depths"], strict=True):
        assert depths[int(threshold) - 1] == 60


def test_the_best_strategy_stands_in_for_a_policy_that_never_exits_early():
    trace = random_trace(0)
    points = slide(trace, Policy("votes", None), sweep(trace, ["margin"]))
    assert (points["name"], points["own"]) == ("margin", None)


@pytest.mark.parametrize("make", [multi_label_trace, regression_trace])
def test_other_problem_types(make):
    trace = make(0)
    strategy = "patience" if trace.problem_type == "regression" else "max_prob"
    policy = Policy(strategy, 1.5 if strategy == "patience" else 0.7, problem_type=trace.problem_type)
    points, decisions = slide(trace, policy, []), policy.decide(trace)
    assert points["score"][points["own"]] == round(decisions.score(trace.metric), 4)
    assert (points["differs"] == []) == (trace.problem_type == "regression")
