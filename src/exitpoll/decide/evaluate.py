"""Measure a policy on texts it has not seen: score with an interval, speed-up, depths, and whether its promise held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.analysis import oracles, static_exit
from exitpoll.decide.decisions import Decisions
from exitpoll.decide.guarantee import Promise, by_full_model, losses_of
from exitpoll.decide.metrics import REGRESSION, agreement, metric_named
from exitpoll.decide.policy import Policy
from exitpoll.decide.trace import CHUNK, Trace
from exitpoll.errors import InputError

RESAMPLES = 2000
INTERVAL = 0.95
MOST_GROUPS = 100
ROUNDING = 1e-12  # of sums


@dataclass(frozen=True)
class Estimate:
    """A figure and the interval in which it would lie for other texts of the same kind."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 or -1 where the whole interval is above or below nought, else 0."""
        return int(self.low > ROUNDING) - int(self.high < -ROUNDING)


@dataclass(frozen=True)
class Row:
    """One way to decide, measured."""

    name: str
    score: Estimate
    speedup: float
    drop: Estimate  # how much lower the score is than the full model's, on the same texts
    differs: float  # share of texts that are answered otherwise than by the full model


@dataclass(frozen=True)
class Kept:
    """Whether a promise held on texts it was not made on."""

    promise: Promise
    measured: Estimate
    held: bool


@dataclass(frozen=True)
class Evaluation:
    """All that is measured of a policy on some texts."""

    metric: str  # or "agreement" with the full model, where there are no labels
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
        trace: What every exit said of them; without labels, agreement with the full model is measured.
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
    labelled = trace.labels is not None
    parts = {} if groups is None else {name: trace.select(part) for name, part in _rows_by_group(groups).items()}
    trace = trace if labelled else by_full_model(trace)
    metric = (metric if labelled else None) or trace.metric
    decided = {"policy": policy.decide(trace), "full model": static_exit(trace, -1)}
    decided |= {f"layer {layer}": static_exit(trace, number) for number, layer in enumerate(trace.exit_layers[:-1])}
    decided |= oracles(trace) if labelled else {}
    decisions, full = decided["policy"], decided["full model"]
    promise = Promise.of(policy) if (policy.certificate or {}).get("met") else None
    if promise is not None and promise.risk == "accuracy" and not labelled:
        promise = None  # who is right cannot be told
    losses = None if promise is None else losses_of(trace, decisions.answer, full.answer, promise.risk)
    scores, lost = _bootstrap(trace, list(decided.values()), metric, losses, resamples, seed)
    rows = [
        Row(name, estimate(score), each.speedup, estimate(scores[1] - score), _differs(each, full, trace))
        for (name, each), score in zip(decided.items(), scores, strict=True)
    ]
    kept = None
    if promise is not None and losses is not None and lost is not None:
        kept = Kept(promise, _lost(losses, lost), bool(lost[0] <= promise.at_most))
    return Evaluation(
        metric=metric if labelled else "agreement",
        texts=len(trace),
        rows=rows,
        depths=decisions.histogram,
        promise=kept,
        groups={
            name: evaluate(part, policy, metric=metric, resamples=resamples, seed=seed) for name, part in parts.items()
        },
    )


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
    (ours, theirs), _ = _bootstrap(trace, [decisions, other], metric, None, resamples, seed)
    return estimate(ours), estimate(theirs - ours)


Mixture = Sequence[tuple[float, Decisions]]  # decisions, each with the share of texts that it decides about


def mean_gain(
    trace: Trace, pairs: Sequence[tuple[Mixture, Mixture]], *, metric: str, resamples: int = RESAMPLES, seed: int = 0
) -> NDArray:
    """Say how far the first of two ways to decide is above the second, on average over several such pairs.

    Bootstrap samples are of the texts, and where there are several pairs, of the pairs as well: by models of several
    seeds, they say how much the gain depends on the training. Of n pairs, samples vary by n − 1 parts in n of what
    pairs do; that is made up for, but of two or three pairs that differ more than texts do, too little is known: their
    interval is too short.

    Args:
        trace: The texts, with labels.
        pairs: Two ways to decide about these texts, by models of several seeds for instance; each may be a mixture.
        metric: What to score by; a mixture's score is the mean of its parts' scores.
        resamples: How many bootstrap samples to draw.
        seed: Seed of the draws.

    Returns:
        The gain on the texts themselves and on every bootstrap sample, (1 + samples,).
    """
    decided = [decisions for pair in pairs for mixture in pair for _, decisions in mixture]
    scores = iter(_bootstrap(trace, decided, metric, None, resamples, seed)[0])
    gains = np.stack([_mixed(first, scores) - _mixed(second, scores) for first, second in pairs])  # (pairs, samples)
    drawn = np.random.default_rng((seed, len(pairs))).integers(len(pairs), size=gains.shape)
    drawn[:, 0] = np.arange(len(pairs))
    middle, sampled = gains.mean(axis=0), np.take_along_axis(gains, drawn, axis=0).mean(axis=0)
    return middle + (sampled - middle) * np.sqrt(len(pairs) / max(len(pairs) - 1, 1))


def _mixed(mixture: Mixture, scores: Iterator[NDArray]) -> NDArray:
    """Take the next scores, as many as a mixture has parts, and weigh them."""
    return np.sum([share * next(scores) for share, _ in mixture], axis=0)


def _lost(losses: NDArray, resampled: NDArray) -> Estimate:
    """Estimate a mean loss: exactly where texts are lost or not, for samples of texts that are all alike say nothing.

    The interval of a share is Clopper and Pearson's.
    """
    if not np.isin(losses, (0, 1)).all():
        return estimate(resampled)
    from scipy.stats import binomtest

    interval = binomtest(int(losses.sum()), len(losses)).proportion_ci(confidence_level=INTERVAL)
    return Estimate(float(losses.mean()), float(interval.low), float(interval.high))


def _differs(decisions: Decisions, full: Decisions, trace: Trace) -> float:
    """Say on which share of the texts answers differ; values nearly always do."""
    if trace.problem_type == REGRESSION:
        return float("nan")
    return float(1 - agreement(decisions.answer, full.answer).mean())


def _rows_by_group(groups: Sequence[str]) -> dict[str, NDArray]:
    """Find the texts of every group, in the order of their names, numbers by size."""
    names = np.asarray([str(name) for name in groups])
    found = np.unique(names)
    if len(found) > MOST_GROUPS:
        raise InputError(f"there are {len(found)} groups and at most {MOST_GROUPS} are measured; choose another column")
    ordered = sorted(found, key=lambda name: (0, float(name), "") if _is_number(name) else (1, 0.0, name))
    return {str(name): np.flatnonzero(names == name) for name in ordered}


def _is_number(name: str) -> bool:
    """Whether a group's name is a number to sort by."""
    try:
        return not np.isnan(float(name))
    except ValueError:
        return False


def _bootstrap(
    trace: Trace, decided: Sequence[Decisions], metric: str, losses: NDArray | None, resamples: int, seed: int
) -> tuple[list[NDArray], NDArray | None]:
    """Score all decisions on the texts themselves and on the same bootstrap samples: (samples,) each; losses too."""
    gold, classes = trace.gold("an evaluation"), trace.logits.shape[-1]
    tally = metric_named(metric, trace.problem_type, classes)
    notes = [tally.counts(gold, each.answer, classes) for each in decided]
    notes += [] if losses is None else [losses[:, None]]
    sums = _resampled(np.concatenate(notes, axis=1), resamples, np.random.default_rng(seed))  # (samples, all notes)
    width = notes[0].shape[1]
    scores = [tally.score(sums[:, start : start + width]) for start in range(0, width * len(decided), width)]
    return scores, None if losses is None else sums[:, -1] / len(trace)


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


def estimate(figures: NDArray) -> Estimate:
    """Take the figure of the texts themselves, and the middle of the samples' figures as the interval.

    Args:
        figures: On the texts themselves and on every bootstrap sample, (1 + samples,).

    Returns:
        The figure and its interval.
    """
    tail = 100 * (1 - INTERVAL) / 2
    low, high = np.percentile(figures[1:], [tail, 100 - tail])
    return Estimate(float(figures[0]), float(low), float(high))


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Average estimates of separate texts, from their intervals alone: for what was measured at different times.

    Either side of the interval adds up like a standard deviation, so that one-sided intervals stay so (Zou and Donner,
    "Construction of confidence limits about effect measures", 2008).

    Args:
        estimates: What was measured, each on texts of its own.

    Returns:
        The mean and its interval.
    """
    value, low, high = np.array([(each.value, each.low, each.high) for each in estimates]).T  # (estimates,)
    middle, below, above = value.mean(), *(np.linalg.norm(value - end) / len(value) for end in (low, high))
    return Estimate(float(middle), float(middle - below), float(middle + above))
