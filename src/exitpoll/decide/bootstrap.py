"""Scores with confidence intervals, by bootstrap over the texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.decisions import Decisions
from exitpoll.decide.metrics import Metric, metric_named
from exitpoll.decide.trace import CHUNK, Trace

RESAMPLES = 2000
INTERVAL = 0.95
ROUNDING = 1e-12  # of sums


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 or -1 where the whole interval is above or below zero, else 0."""
        return int(self.low > ROUNDING) - int(self.high < -ROUNDING)


def estimate(figures: NDArray) -> Estimate:
    """Return the figure of the texts themselves with the percentile interval of the bootstrap samples.

    Args:
        figures: Of the texts themselves and of every bootstrap sample, (1 + samples,).

    Returns:
        The figure and its interval.
    """
    tail = 100 * (1 - INTERVAL) / 2
    low, high = np.percentile(figures[1:], [tail, 100 - tail])
    return Estimate(float(figures[0]), float(low), float(high))


def estimate_share(events: NDArray) -> Estimate:
    """Return the share of texts for which something holds, with the exact interval of Clopper and Pearson (1934).

    Args:
        events: 0 or 1 for every text, (texts,).

    Returns:
        The share and its interval, which is right also where all texts are alike and bootstrap samples are constant.
    """
    from scipy.stats import binomtest

    interval = binomtest(int(events.sum()), len(events)).proportion_ci(confidence_level=INTERVAL)
    return Estimate(float(events.mean()), float(interval.low), float(interval.high))


def bootstrap_scores(
    trace: Trace, decided: Sequence[Decisions], metric: str, *, resamples: int = RESAMPLES, seed: int = 0
) -> list[NDArray]:
    """Score decisions on the texts themselves and on bootstrap samples, the same for all of them.

    Args:
        trace: The texts, with labels.
        decided: Decisions about these texts.
        metric: What to score by.
        resamples: How many bootstrap samples to draw.
        seed: Seed of the draws.

    Returns:
        An array of scores, (1 + samples,), for each of them.
    """
    gold, classes = trace.gold("an evaluation"), trace.logits.shape[-1]
    scored_by = metric_named(metric, trace.problem_type, classes)
    if scored_by.ranked:
        return _bootstrap_ranked(scored_by, gold, [decisions.answer for decisions in decided], resamples, seed)
    counts = [scored_by.counts(gold, decisions.answer, classes) for decisions in decided]
    sums = _resample(np.concatenate(counts, axis=1), resamples, seed)  # (1 + samples, counts of all)
    width = counts[0].shape[1]
    return [scored_by.score(sums[:, start : start + width]) for start in range(0, width * len(decided), width)]


def bootstrap_mean(values: NDArray, *, resamples: int = RESAMPLES, seed: int = 0) -> NDArray:
    """Compute the mean of one number per text, and that of bootstrap samples: (1 + samples,)."""
    return _resample(values[:, None], resamples, seed)[:, 0] / len(values)


def _resample(counts: NDArray, resamples: int, seed: int) -> NDArray:
    """Sum the counts of texts over the texts themselves and over bootstrap samples: (1 + samples, counts).

    Texts with the same counts are drawn together: of classes there are few kinds, however many texts.
    """
    generator = np.random.default_rng(seed)
    kinds, sizes = np.unique(counts, axis=0, return_counts=True)
    sums = [sizes[None] @ kinds]
    at_once = max(1, CHUNK // len(kinds))
    for start in range(0, resamples, at_once):
        samples = min(at_once, resamples - start)
        sums.append(generator.multinomial(len(counts), sizes / len(counts), size=samples) @ kinds)
    return np.concatenate(sums)


def _bootstrap_ranked(
    metric: Metric, gold: NDArray, answers: Sequence[NDArray], resamples: int, seed: int
) -> list[NDArray]:
    """Score answers by a metric of ranks, with the texts of every bootstrap sample ranked anew."""
    generator, texts = np.random.default_rng(seed), len(gold)
    figures: list[list[NDArray]] = [[] for _ in answers]
    at_once = max(1, CHUNK // texts)
    for start in range(-1, resamples, at_once):
        samples = min(at_once, resamples - start)
        drawn = generator.multinomial(texts, np.full(texts, 1 / texts), size=samples).astype(np.float64)
        if start < 0:
            drawn[0] = 1.0  # the texts themselves come first
        first = _ranks_in(gold, drawn)
        for answer, scores in zip(answers, figures, strict=True):
            samples_of = zip(drawn, first, _ranks_in(answer, drawn), strict=True)
            sums = [times @ metric.counts(ours, theirs, 0) for times, ours, theirs in samples_of]
            scores.append(metric.score(np.stack(sums)))
    return [np.concatenate(scores) for scores in figures]


def _ranks_in(values: NDArray, drawn: NDArray) -> NDArray:
    """Rank values among those of bootstrap samples, equal ones by their mean rank, less the mean of all ranks.

    Args:
        values: (texts,)
        drawn: How often every text was drawn, (samples, texts).

    Returns:
        Ranks, (samples, texts).
    """
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(values[order]) > 0]))  # of groups of equal values
    sizes = np.add.reduceat(drawn[:, order], starts, axis=1)  # (samples, groups)
    middle = sizes.cumsum(axis=1) - (sizes + len(values)) / 2
    ranked = np.empty_like(drawn)
    ranked[:, order] = np.repeat(middle, np.diff(np.append(starts, len(values))), axis=1)
    return ranked
