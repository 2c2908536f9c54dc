"""Measure a policy on texts it has not seen: score with an interval, speed-up, depths, and whether its promise held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.analysis import oracles, static_exit
from exitpoll.errors import InputError
from exitpoll.policy import Decisions, Policy
from exitpoll.promises import Promise, full_answers, losses_of
from exitpoll.tallies import tally_named
from exitpoll.tasks import DEFAULT_METRICS
from exitpoll.trace import CHUNK, Trace

RESAMPLES = 2000
INTERVAL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A figure and the interval in which it would lie for other texts of the same kind."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One way to decide, measured."""

    name: str
    score: Estimate
    speedup: float
    drop: Estimate  # how much lower the score is than the full model's, on the same texts


@dataclass(frozen=True)
class Kept:
    """Whether a promise held on texts it was not made on."""

    promise: Promise
    measured: Estimate
    held: bool


@dataclass(frozen=True)
class Evaluation:
    """All that is measured of a policy on some texts."""

    metric: str
    texts: int
    rows: Sequence[Row]  # the policy, the full model, every static exit, the oracles
    depths: Mapping[int, int]  # how many texts left after each layer
    promise: Kept | None
    groups: Mapping[str, Evaluation]  # the same for parts of the texts

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        return asdict(self)


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
        trace: What every exit said of them, with labels.
        policy: When to leave.
        metric: What to score by; the task's by default.
        groups: The group of each text, if each is to be measured on its own too: does leaving early cost one more?
        resamples: How many bootstrap samples the intervals rest on.
        seed: Seed of these samples.

    Returns:
        The measurements.
    """
    if not len(trace):
        raise InputError("there are no texts to evaluate on")
    if groups is not None and len(groups) != len(trace):
        raise InputError(f"there are {len(groups)} groups for {len(trace)} texts")
    metric = metric or trace.about.get("metric") or DEFAULT_METRICS[trace.problem_type]
    names = np.asarray([] if groups is None else groups)
    decided = {"policy": policy.decide(trace), "full model": static_exit(trace, len(trace.layers) - 1)}
    decided |= {f"exit {layer}": static_exit(trace, number) for number, layer in enumerate(trace.layers[:-1])}
    decided |= oracles(trace)
    decisions, full = list(decided.values())[:2]
    chance = np.random.default_rng(seed)
    return Evaluation(
        metric=metric,
        texts=len(trace),
        rows=[_row(name, trace, each, full, metric, resamples, chance) for name, each in decided.items()],
        depths=decisions.histogram,
        promise=_kept(trace, policy, decisions, resamples, chance),
        groups={
            str(name): evaluate(
                trace.select(np.flatnonzero(names == name)), policy, metric=metric, resamples=resamples, seed=seed
            )
            for name in np.unique(names)
        },
    )


def _row(
    name: str,
    trace: Trace,
    decisions: Decisions,
    full: Decisions,
    metric: str,
    resamples: int,
    chance: np.random.Generator,
) -> Row:
    """Measure one way to decide, against the full model."""
    score, drop = measure(trace, decisions, full, metric=metric, resamples=resamples, chance=chance)
    return Row(name, score, decisions.speedup, drop)


def measure(
    trace: Trace,
    decisions: Decisions,
    other: Decisions,
    *,
    metric: str,
    resamples: int = RESAMPLES,
    chance: np.random.Generator | None = None,
) -> tuple[Estimate, Estimate]:
    """Score decisions, and how far they are below others, both by bootstrap over the same texts.

    Args:
        trace: The texts, with labels.
        decisions: What is measured.
        other: What it is measured against.
        metric: What to score by.
        resamples: How many bootstrap samples to draw.
        chance: Draws them.

    Returns:
        The score, and the other's minus it.
    """
    gold, classes = trace.gold("an evaluation"), trace.logits.shape[-1]
    tally = tally_named(metric, trace.problem_type, classes)
    notes = np.concatenate([tally.notes(gold, each.answer, classes) for each in (decisions, other)], axis=1)
    sums = _resampled(notes, resamples, chance or np.random.default_rng(0))
    ours, theirs = (tally.score(half) for half in np.split(sums, 2, axis=1))
    return _estimate(ours), _estimate(theirs - ours)


def _resampled(notes: NDArray, resamples: int, chance: np.random.Generator) -> NDArray:
    """Sum notes of texts, (texts, notes), over the texts themselves and over bootstrap samples: (samples, notes).

    Texts with the same notes are drawn together: of classes there are few kinds, however many texts.
    """
    kinds, counts = np.unique(notes, axis=0, return_counts=True)
    sums = [counts[None] @ kinds]
    at_once = max(1, CHUNK // len(kinds))
    for start in range(0, resamples, at_once):
        samples = min(at_once, resamples - start)
        sums.append(chance.multinomial(len(notes), counts / len(notes), size=samples) @ kinds)
    return np.concatenate(sums)


def _estimate(figures: NDArray) -> Estimate:
    """Take the figure of the texts themselves, and the middle of the samples' figures as the interval."""
    tail = 100 * (1 - INTERVAL) / 2
    low, high = np.percentile(figures[1:], [tail, 100 - tail])
    return Estimate(float(figures[0]), float(low), float(high))


def _kept(
    trace: Trace, policy: Policy, decisions: Decisions, resamples: int, chance: np.random.Generator
) -> Kept | None:
    """See whether the policy's promise held here."""
    certificate = policy.certificate or {}
    if not certificate.get("met"):
        return None
    promise = Promise(**certificate["promise"])
    losses = losses_of(trace, decisions.answer, full_answers(trace), promise.risk)
    measured = _estimate(_resampled(losses[:, None], resamples, chance)[:, 0] / len(losses))
    return Kept(promise, measured, measured.value <= promise.at_most)
