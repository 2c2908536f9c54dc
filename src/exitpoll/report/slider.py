"""The slider of the page: a policy's strategy at all its thresholds, from the most cautious to the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.bootstrap import INTERVAL
from exitpoll.decide.decisions import speedup_at
from exitpoll.decide.fitting import candidates
from exitpoll.decide.metrics import REGRESSION, agreement, metric_named
from exitpoll.decide.policy import Policy
from exitpoll.decide.scoring import full_answers
from exitpoll.decide.strategies import STATIC, members, strategy_named
from exitpoll.decide.sweep import Curve, best_point
from exitpoll.decide.trace import Trace

POINTS = 150  # thresholds, at most
SPEEDUPS = (2.0, 1.5, 0.0)  # a policy that never exits early is replaced by the best at the first that is reached


class Slider(TypedDict):
    """What the page's script shows; the lists have one entry per threshold, by rising speed-up."""

    name: str  # strategy and settings
    unit: str  # what the threshold is of
    thresholds: list[str]
    speedup: list[float]
    score: list[float]
    differs: list[list[float]]  # share of answers that differ from the full model's, and its interval; none for values
    depths: list[list[int]]  # number of texts that leave, by exit
    own: int | None  # the policy's own threshold


@dataclass(frozen=True)
class _Opened:
    """A policy whose threshold can be moved."""

    policy: Policy  # without a threshold
    unit: str
    sign: int  # turns a level into natural units
    own: float | None  # the level of the policy itself
    offsets: NDArray | float = 0.0  # (exits,) levels that are moved together


@dataclass(frozen=True)
class _Answers:
    """What texts are answered at every exit, and what their scores must not reach to get there."""

    highest: NDArray  # (texts, exits) the highest score so far
    by_exit: NDArray  # (texts, exits + 1, …) the last column is for texts that never fire

    def at(self, level: float) -> tuple[NDArray, NDArray]:
        """Return the exit numbers and the answers of all texts, for a level that scores must reach."""
        passed = (self.highest < level).sum(axis=1)  # (texts,)
        answers = self.by_exit[np.arange(len(passed)), passed]
        return np.minimum(passed, self.highest.shape[1] - 1), answers


def slide(trace: Trace, policy: Policy, curves: Sequence[Curve]) -> Slider | None:
    """Evaluate a policy at all its thresholds.

    Args:
        trace: A trace with labels.
        policy: The policy; for one that never exits early, the best of the curves stands in.
        curves: The result of a sweep of the trace.

    Returns:
        The points; None for a policy that has no threshold to move.
    """
    opened = _open(policy, trace.exit_layers, curves)
    if opened is None:
        return None
    answers = _ask(trace, opened)
    levels = _levels(answers.highest[:, :-1], opened.own)  # falling
    layers, full = np.asarray(trace.exit_layers), full_answers(trace)
    scored_by = metric_named(trace.metric, trace.problem_type, trace.logits.shape[-1])
    gold = trace.gold("a slider over the threshold")
    numbers = np.searchsorted(layers, opened.policy.asked(trace.exit_layers))  # of the exits that are asked
    decided = [(numbers[exits], answer) for exits, answer in map(answers.at, levels)]
    differing = [int((~agreement(answer, full)).sum()) for _, answer in decided]
    return Slider(
        name=opened.policy.name,
        unit=opened.unit,
        thresholds=_write(opened, levels),
        speedup=[round(float(speedup_at(layers[exits], trace.exit_layers)), 4) for exits, _ in decided],
        score=[round(float(scored_by(gold, answer)), 4) for _, answer in decided],
        differs=[] if trace.problem_type == REGRESSION else _shares(differing, len(trace)),
        depths=[np.bincount(exits, minlength=len(layers)).tolist() for exits, _ in decided],
        own=None if opened.own is None else int(np.flatnonzero(levels == opened.own)[0]),
    )


# ---- thresholds that can be moved -----------------------------------------------------------------------------------


def _open(policy: Policy, exit_layers: Sequence[int], curves: Sequence[Curve]) -> _Opened | None:
    """Take the threshold out of a policy, or out of the best one for a policy that never exits early."""
    if policy.threshold is not None:
        return _opened(policy, exit_layers)
    if policy.max_depth is not None:
        return None  # a static exit
    curve, point = next(best for speedup in SPEEDUPS if (best := best_point(curves, speedup)) is not None)
    stand_in = _opened(curve.policy_at(point), exit_layers)
    return None if stand_in is None else replace(stand_in, own=None)


def _opened(policy: Policy, exit_layers: Sequence[int]) -> _Opened | None:
    """Take the threshold out of a policy that has one; None where several would have to be moved."""
    free, levels = replace(policy, threshold=None), policy.levels(len(policy.asked(exit_layers)))
    sign = strategy_named(policy.strategy).sign_for(policy.problem_type)
    combined = list(members(policy.settings))
    if not combined and np.ptp(levels) > 0:
        return _Opened(free, "all thresholds, moved by", sign, 0.0, levels)
    if not combined:
        unit = "exit" if policy.strategy == STATIC else "threshold"
        return _Opened(free, unit, sign, float(levels[0]))
    *others, last = combined
    if policy.threshold != 1 or policy.fallback != "head":
        return None  # it counts how many fire
    settings = {**policy.settings, "policies": [*others, {**last, "threshold": None}]}
    sign = strategy_named(last["strategy"]).sign_for(policy.problem_type)
    return _Opened(replace(free, settings=settings), f"threshold of {last['strategy']}", sign, sign * last["threshold"])


def _ask(trace: Trace, opened: _Opened) -> _Answers:
    """Ask a policy about all texts, whatever its threshold."""
    [candidate] = candidates(trace, [opened.policy])
    policy, opinion, trace = candidate.policy, candidate.opinion, trace.at_exits(opened.policy.exit_layers)
    logits = np.asarray(trace.logits)
    end = int(policy.ends(trace.exit_layers).argmax())
    columns = [(number, policy.answer) for number in range(end + 1)] + [(end, policy.fallback)]
    answers = [policy.answers_at(number, by, opinion, logits) for number, by in columns]
    scores = (opinion.score - opened.offsets)[:, : end + 1]
    return _Answers(np.maximum.accumulate(scores, axis=1), np.stack(answers, axis=1))


def _levels(scores: NDArray, own: float | None) -> NDArray:
    """Choose levels midway between the scores that occur, from one that none reaches to one that all reach, falling."""
    values = np.unique(scores[np.isfinite(scores)])
    if not len(values):
        return np.array([0.0 if own is None else own])
    between = (values[1:] + values[:-1]) / 2
    if len(between) > POINTS:
        between = between[np.linspace(0, len(between) - 1, POINTS).round().astype(int)]
    ends = [values[0], np.nextafter(values[-1], np.inf)]
    return np.unique([*ends, *between, *([] if own is None else [own])])[::-1]


# ---- numbers --------------------------------------------------------------------------------------------------------


def _write(opened: _Opened, levels: NDArray) -> list[str]:
    """Write levels in natural units; no score reaches the first, the most cautious."""
    if opened.policy.strategy == STATIC:
        return [f"{exit_number:.0f}" for exit_number in np.ceil(levels)]
    first, *others = (f"{threshold:.5g}" for threshold in levels * opened.sign + 0.0)  # no −0
    return [f"{'below' if opened.sign < 0 else 'above'} {first}", *others]


def _shares(counts: Sequence[int], texts: int) -> list[list[float]]:
    """Return shares with their exact intervals, Clopper and Pearson (1934): (counts, 3)."""
    from scipy.stats import beta

    tail, events = (1 - INTERVAL) / 2, np.asarray(counts)
    low = np.nan_to_num(beta.ppf(tail, events, texts - events + 1), nan=0.0)
    high = np.nan_to_num(beta.ppf(1 - tail, events + 1, texts - events), nan=1.0)
    return np.stack([events / texts, low, high], axis=1).round(4).tolist()
