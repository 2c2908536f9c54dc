"""Measure a policy on held-out texts: score with an interval, speed-up, depths, and whether its guarantee held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.analysis import oracles, static_exit
from exitpoll.decide.bootstrap import (
    RESAMPLES,
    Estimate,
    bootstrap_mean,
    bootstrap_scores,
    estimate,
    estimate_share,
)
from exitpoll.decide.certificate import Guarantee
from exitpoll.decide.decisions import Decisions
from exitpoll.decide.guarantee import losses_of
from exitpoll.decide.metrics import REGRESSION, agreement
from exitpoll.decide.policy import Policy
from exitpoll.decide.scoring import full_answers, to_score
from exitpoll.decide.shift import ProfileCounter, Shift
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError
from exitpoll.files import JsonObject

MOST_GROUPS = 100

Verdict = Literal["held", "broken", "too few texts"]


@dataclass(frozen=True)
class Measurement:
    """One way to decide, measured."""

    name: str
    score: Estimate
    speedup: float
    drop: Estimate  # how much lower the score is than the full model's, on the same texts
    differs: float  # share of texts whose answer differs from the full model's; NaN for values


@dataclass(frozen=True)
class GuaranteeCheck:
    """Whether a guarantee held on texts it was not calibrated on."""

    guarantee: Guarantee
    measured: Estimate

    @property
    def verdict(self) -> Verdict:
        """What the interval of the measured risk says: it is below the limit, above it, or on both sides."""
        if self.measured.high <= self.guarantee.at_most:
            return "held"
        return "broken" if self.measured.low > self.guarantee.at_most else "too few texts"


@dataclass(frozen=True)
class Evaluation:
    """What was measured of a policy on some texts."""

    metric: str  # or "agreement" with the full model, where there are no labels
    texts: int
    rows: Sequence[Measurement]  # the policy, the full model, every static exit, the oracles
    depths: Mapping[int, int]  # number of texts that left, by layer
    guarantee: GuaranteeCheck | None
    groups: Mapping[str, Evaluation]  # the same for groups of the texts
    shift: Shift | None = None  # how the texts differ from the calibration texts, if they do

    def __repr__(self) -> str:
        """Describe the policy against the full model."""
        ours, full = self.rows[:2]
        check = "" if self.guarantee is None else f"; guarantee: {self.guarantee.verdict}"
        scores = f"{100 * ours.score.value:.1f} % against {100 * full.score.value:.1f} % of the full model"
        return f"Evaluation({self.metric} {scores}, {ours.speedup:.2f} × in layers, {self.texts} texts{check})"

    def to_dict(self) -> JsonObject:
        """Return plain values, for JSON."""
        plain = asdict(self)
        if self.guarantee is not None:
            plain["guarantee"]["verdict"] = self.guarantee.verdict
        plain["groups"] = {name: group.to_dict() for name, group in self.groups.items()}
        return plain


def evaluate(
    trace: Trace,
    policy: Policy,
    *,
    metric: str | None = None,
    groups: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Evaluation:
    """Measure a policy on texts it was not calibrated on.

    Args:
        trace: Every exit's logits on them; without labels, agreement with the full model is measured.
        policy: When to exit.
        metric: What to score by; the task's by default.
        groups: The groups of the texts, if every group is to be measured too: does early exit cost one of them more?
        resamples: How many bootstrap samples the intervals rest on.
        seed: Seed of these samples.

    Returns:
        The measurements.
    """
    if not len(trace):
        raise InputError("there are no texts to evaluate on")
    if groups is not None and len(groups) != len(trace):
        raise InputError(f"there are {len(groups)} groups for {len(trace)} texts")
    scored = to_score(trace, metric)
    decided = _decide(scored.trace, policy, with_oracles=trace.labels is not None)
    return Evaluation(
        metric=scored.name,
        texts=len(trace),
        rows=_measure(scored.trace, decided, scored.metric, resamples, seed),
        depths=decided["policy"].histogram,
        guarantee=_check_guarantee(trace, policy, decided, resamples, seed),
        groups={
            name: evaluate(trace.select(rows), policy, metric=metric, resamples=resamples, seed=seed)
            for name, rows in _rows_by_group(() if groups is None else groups).items()
        },
        shift=_shift(trace, policy, decided["policy"]),
    )


def _shift(trace: Trace, policy: Policy, decisions: Decisions) -> Shift | None:
    """Compare the texts with the calibration texts, where the certificate describes these."""
    profile = None if policy.certificate is None else policy.certificate.profile
    if profile is None or not set(policy.asked(trace.exit_layers)) <= set(profile.depths):
        return None
    counter = ProfileCounter(profile)
    counter.add(decisions.depth, decisions.probability, trace.lengths)
    return counter.shift()


def _decide(trace: Trace, policy: Policy, *, with_oracles: bool) -> dict[str, Decisions]:
    """Decide by the policy and by what it is compared with."""
    decided = {"policy": policy.decide(trace), "full model": static_exit(trace, -1)}
    decided |= {f"layer {layer}": static_exit(trace, number) for number, layer in enumerate(trace.exit_layers[:-1])}
    return decided | (oracles(trace) if with_oracles else {})


def _measure(
    trace: Trace, decided: Mapping[str, Decisions], metric: str, resamples: int, seed: int
) -> list[Measurement]:
    """Score all decisions, also against the full model."""
    scores = bootstrap_scores(trace, list(decided.values()), metric, resamples=resamples, seed=seed)
    by_name, full = dict(zip(decided, scores, strict=True)), full_answers(trace)
    return [
        Measurement(
            name,
            estimate(by_name[name]),
            decisions.speedup,
            estimate(by_name["full model"] - by_name[name]),
            _disagreement(decisions, full, trace),
        )
        for name, decisions in decided.items()
    ]


def _disagreement(decisions: Decisions, full: NDArray, trace: Trace) -> float:
    """Return the share of texts whose answers differ; values nearly always do."""
    if trace.problem_type == REGRESSION:
        return float("nan")
    return float(1 - agreement(decisions.answer, full).mean())


def _check_guarantee(
    trace: Trace, policy: Policy, decided: Mapping[str, Decisions], resamples: int, seed: int
) -> GuaranteeCheck | None:
    """Measure the risk that a policy bounds; None where it bounds none, or labels are needed and missing."""
    guarantee = None if policy.certificate is None else policy.certificate.guarantee
    if guarantee is None or (guarantee.risk == "accuracy" and trace.labels is None):
        return None
    losses = losses_of(trace, decided["policy"].answer, full_answers(trace), guarantee)
    if np.isin(losses, (0, 1)).all():
        measured = estimate_share(losses)
    else:
        measured = estimate(bootstrap_mean(losses, resamples=resamples, seed=seed))
    return GuaranteeCheck(guarantee, measured)


def measure(
    trace: Trace, decisions: Decisions, other: Decisions, *, metric: str, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Estimate, Estimate]:
    """Score decisions, and how far they are below others, both by bootstrap over the same texts.

    Args:
        trace: The texts, with labels.
        decisions: What is measured.
        other: What it is measured against.
        metric: What to score by.
        resamples: How many bootstrap samples to draw.
        seed: Seed of the draws.

    Returns:
        The score, and the other's minus it.
    """
    ours, theirs = bootstrap_scores(trace, [decisions, other], metric, resamples=resamples, seed=seed)
    return estimate(ours), estimate(theirs - ours)


def _rows_by_group(groups: Sequence[str]) -> dict[str, NDArray]:
    """Find the texts of every group, in the order of their names, numbers by size."""
    names = np.asarray([str(name) for name in groups])
    distinct = np.unique(names)
    if len(distinct) > MOST_GROUPS:
        raise InputError(f"there are {len(distinct)} groups, more than the {MOST_GROUPS} allowed; use another column")
    ordered = sorted(distinct, key=lambda name: (0, float(name), "") if _is_number(name) else (1, 0.0, name))
    return {str(name): np.flatnonzero(names == name) for name in ordered}


def _is_number(name: str) -> bool:
    """Return whether a group's name is a number to sort by."""
    try:
        return not np.isnan(float(name))
    except ValueError:
        return False
