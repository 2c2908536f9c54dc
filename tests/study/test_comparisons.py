"""Comparisons are made at the same speed-up with intervals; findings and figures are complete."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from exitpoll.decide.bootstrap import Estimate
from exitpoll.study.comparisons import ALL, Gain, averages, choose, compute_gains
from exitpoll.study.execute import execute_all
from exitpoll.study.figures import draw_all, draw_curves, draw_lambda
from exitpoll.study.outcomes import Outcomes
from exitpoll.study.paper import ROWS, ROWS_BY_NAME, VARIANTS, Contrast
from exitpoll.study.plan import Plan
from exitpoll.study.reproduce import compute_findings, runs_of
from tests.study.conftest import FAST

PABEE, PATIENCE, VOTES = (ROWS_BY_NAME[name] for name in ("PABEE", "ours, patience", "ours, votes"))


@pytest.fixture(scope="module")
def studied(data, encoder_folder, cache):
    """Two tasks, one of them with two seeds and two variants."""
    rows = [row for row in ROWS if row.name in ("full model", "RightTool", "PABEE") or row.name.startswith("ours")]
    plan = Plan(str(encoder_folder), 3, str(data), ["trec", "rte"], rows, seeds=(0, 1), settings=FAST)
    variants = replace(plan, tasks=["trec"], rows=VARIANTS[:2]).runs()
    assert {run.name for run in [*plan.runs(), *variants]} < {run.name for run in runs_of(plan, "trec")}
    runs = [run for run in plan.runs() if run.settings.seed == 0 or run.task == "trec"]
    return plan, execute_all([*runs, *variants], cache)[0]


def test_gains_are_antisymmetric_and_within_their_intervals(studied):
    outcomes = Outcomes(*studied)
    against_itself = list(compute_gains(outcomes, {"nothing": Contrast((VOTES,), VOTES)}, [1.3]))
    assert [(gain.task, gain.tasks, gain.seeds) for gain in against_itself] == [("trec", 1, 2), ("rte", 1, 1)]
    for gain in against_itself:
        assert (gain.gain.value, gain.gain.low, gain.gain.high) == (0, 0, 0)
    gains = list(compute_gains(outcomes))
    assert len({gain.contrast for gain in gains}) > 5
    for gain in gains:
        assert gain.gain.low <= gain.gain.value <= gain.gain.high
        if "full model" not in gain.contrast:
            assert min(gain.speedups) > 1
    forward, backward = (
        next(compute_gains(outcomes, {"c": Contrast((first,), second)}, [1.3])).gain.value
        for first, second in ((PABEE, PATIENCE), (PATIENCE, PABEE))
    )
    assert forward == pytest.approx(-backward)


def test_averages_do_not_depend_on_when_tasks_were_run(studied):
    plan, outcomes = studied
    parts = [compute_findings(replace(plan, tasks=[task]), outcomes, None)["contests"] for task in plan.tasks]
    assert all(parts)
    assert {gain["task"] for part in parts for gain in part} == set(plan.tasks)
    one_by_one = averages(Gain.from_dict(gain) for part in reversed(parts) for gain in part)
    together = [gain for gain in compute_findings(plan, outcomes, None)["contests"] if gain["task"] == ALL]
    assert together
    by_contrast = {(gain.contrast, gain.speedup): gain for gain in one_by_one}
    for gain in together:
        again = asdict(by_contrast[gain["question"], gain["speedup"]])
        assert again["tasks"] == gain["tasks"] == 2
        assert again["seeds"] == gain["seeds"] == 1
        assert again["gain"] == pytest.approx(gain["gain"])
        assert again["speedups"] == pytest.approx(gain["speedups"])


def test_a_gain_survives_json():
    gain = Gain("c", "a", 2.0, Estimate(1.0, 0.5, 1.5), 1, 1, (2.0, 2.1), ("ours",), ("a",))
    again = Gain.from_dict(json.loads(json.dumps(gain.to_dict())))
    assert again.to_dict().keys() == gain.to_dict().keys()
    assert (again.contrast, again.gain, again.speedups) == ("c", gain.gain, [2.0, 2.1])


@pytest.mark.parametrize(
    ("values", "rests_on"),
    [((0.0, 0.0, 6.0), ("c",)), ((2.0, 2.0, 2.0), ()), ((0.0, 2.0, 2.0), ("b", "c")), ((0.0, 0.0, 1.0), ())],
)
def test_an_average_names_the_tasks_it_rests_on(values, rests_on):
    for side in (1, -1):
        gains = [
            Gain("q", task, 2.0, Estimate(side * value, side * value - 1.5, side * value + 1.5), 1, 1, (2.0, 2.0), ())
            for task, value in zip("abc", values, strict=True)
        ]
        [mean] = averages(gains)
        assert mean.gain.sign == (0 if sum(values) == 1 else side)
        assert mean.rests_on == rests_on


def test_speedups_that_are_never_reached_and_missing_runs_are_left_out(studied):
    plan, outcomes = studied
    itself = Contrast((PATIENCE,), PATIENCE)
    assert not list(compute_gains(Outcomes(plan, outcomes), {"too fast": itself}, [3.5]))
    assert not list(compute_gains(Outcomes(plan, []), {"nothing was run": itself}, [1.3]))


def test_two_neighbouring_thresholds_are_mixed_for_a_speedup_between_them(studied):
    outcomes = Outcomes(*studied)
    choice = choose(outcomes, "trec", [PATIENCE], 0, 1.2)
    assert str(choice).startswith("ours, patience: patience at ")
    shares = [share for share, _ in choice.mixture]
    assert [share > 0 for share in shares] == [True, True]
    calibration = outcomes.get("trec", PATIENCE, 0).trace("calibration")
    depth = sum(
        share / policy.decide(calibration).speedup for share, policy in zip(shares, choice.policies, strict=True)
    )
    assert 1 / depth == pytest.approx(1.2)
    assert choose(outcomes, "trec", [PATIENCE], 0, 3.5) is None


# ---- findings and figures -------------------------------------------------------------------------------------------


def test_findings_and_figures(studied, tmp_path):
    plan, outcomes = studied
    findings = json.loads(json.dumps(compute_findings(plan, outcomes, "trec")))
    trec = findings["tasks"]["trec"]
    assert len(trec["exits"]) == 3
    assert trec["oracle"]["first_right"]["score"] >= max(trec["exits"])
    for front in (*trec["curves"].values(), *trec["k"].values()):
        speedup, score = np.asarray(front).T
        assert (np.diff(speedup) > 0).all()
        assert (np.diff(score) < 0).all()
    for leaving in trec["leaving"].values():
        assert 0 < sum(leaving["shares"]) <= 1
    np.testing.assert_allclose(np.sum(trec["closest"], axis=1), [0, 1, 1], atol=1e-4)
    assert np.asarray(trec["alpha"]["alpha"]).shape == (len(trec["alpha"]["steps"]), 2)
    assert set(findings["states"]) == {"with diversity", "without diversity"}
    variants = findings["variants"]
    names = [variant["name"] for variant in variants]
    assert names == ["λ = 0.2 (ours)", "λ = 0", "λ = 0.1"]  # the second variant is ours
    assert [variant["diversity_weight"] for variant in variants] == [0.2, 0.0, 0.1]
    assert {variant["seeds"] for variant in variants} == {2}
    ours, without = (variant["above_ours"]["exits"] for variant in variants[:2])
    assert ours == {"value": 0, "low": 0, "high": 0}
    means = [np.mean(variant["exits"]) for variant in variants[:2]]
    assert without["value"] == pytest.approx(means[1] - means[0], abs=1e-4)
    drawn = [path.name for path in draw_all(findings, tmp_path)]
    assert {"curves.png", "oracle.png", "lambda.png", "values.png", "states.png", "closest-rte.png"} <= set(drawn)
    assert all((tmp_path / name).stat().st_size > 5_000 for name in drawn)


def test_a_method_looks_the_same_on_every_task():
    one: Any = {"points": [], "metric": "accuracy", "curves": {"A": [[1, 0.9]], "B": [[2, 0.8]]}}
    other: Any = {**one, "curves": {"B": [[2, 0.7]]}}
    first, second = draw_curves({"first": other, "second": one}).axes
    colors = [{line.get_label(): line.get_color() for line in axes.get_lines()} for axes in (first, second)]
    assert colors[0]["B"] == colors[1]["B"] != colors[1]["A"]


def test_the_figure_of_lambda_shows_variants_of_lambda_alone_in_order():
    variants = [
        {"name": name, "diversity_weight": weight, "curve": [[1, 0.9]]}
        for name, weight in (("ours", 0.2), ("none", 0.0), ("λ of another head", None), ("some", 0.1))
    ]
    [axes] = draw_lambda(variants, "trec").axes
    assert [line.get_label() for line in axes.get_lines()] == ["none", "some", "ours"]


def test_figures_without_runs(plan, tmp_path):
    findings = compute_findings(plan, [], None)
    assert [path.name for path in draw_all(findings, tmp_path)] == ["values.png"]


def test_the_verb_draws(run, studied, cache, data, encoder_folder, monkeypatch):
    arguments = ["--encoder", encoder_folder, "--data", data, "--out", cache.parent, "--tasks", "trec"]
    small = ["--methods", "full model", "RightTool", "PABEE", "ours, votes", "--epochs", "1", "--logs-per-epoch", "1"]
    code, printed, error = run("reproduce", "figures", *arguments, *small, "--varied", "trec")
    assert code == 0, error
    assert "## Multi-class" not in printed
    assert "wrote" in printed
    findings = json.loads((cache.parent / "findings.json").read_text())
    assert findings["varied"] == "trec"
    names = [variant["name"] for variant in findings["variants"]]
    assert names[:2] == ["λ = 0.2 (ours)", "λ = 0"]
    same = {"λ = 0.2", "weights by depth"}  # as ours on BERT
    assert set(names[2:]) == {row.name for row in VARIANTS} - same
    by_weight = {variant["diversity_weight"] for variant in findings["variants"]}
    assert by_weight == {0.0, 0.1, 0.2, 0.3, None}
    assert (cache.parent / "figures" / "lambda.png").exists()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, error = run("reproduce", "all", *arguments, *small)
    assert code == 2
    assert "drawing figures needs more packages" in error
