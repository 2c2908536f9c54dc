"""Compare two ways to decide at the same speed-up, with confidence intervals: by task, and on average over tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.analysis import static_exit
from exitpoll.decide.bootstrap import RESAMPLES, Estimate, bootstrap_scores, estimate
from exitpoll.decide.decisions import Decisions
from exitpoll.decide.policy import Policy
from exitpoll.decide.sweep import Curve
from exitpoll.decide.trace import Trace
from exitpoll.study.outcomes import Outcomes
from exitpoll.study.paper import CONTRASTS, Contrast, TableRow

SPEEDUPS = (1.3, 1.5, 2.0, 2.5, 3.0)
ALL = "all tasks"

Mixture = Sequence[tuple[float, Decisions]]  # decisions, and the share of the texts that they apply to


@dataclass(frozen=True)
class Gain:
    """How far the first way of a contrast is above the second."""

    contrast: str  # its name
    task: str  # or ALL, for an average
    speedup: float  # for which thresholds were chosen on calibration texts
    gain: Estimate  # in the task's metric, on test texts
    tasks: int  # averaged over
    seeds: int  # of every task, at least
    speedups: tuple[float, float]  # of both ways, measured on test texts
    chosen: tuple[str, ...]  # for every seed, training, strategies and thresholds of the first way
    rests_on: tuple[str, ...] = ()  # of a significant average: the tasks without which it is not significant

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; the contrast is called a question there, as in all committed results."""
        plain = asdict(self)
        return {"question": plain.pop("contrast"), **plain}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Gain:
        """Rebuild a gain from plain values.

        Args:
            plain: What `to_dict` returned, or the same read from JSON.

        Returns:
            The gain.
        """
        fields = {name: value for name, value in plain.items() if name != "question"}
        return cls(**{**fields, "contrast": plain["question"], "gain": Estimate(**plain["gain"])})


@dataclass(frozen=True)
class Choice:
    """A way to decide about test texts at a given speed-up, chosen on calibration texts."""

    row: str  # the name of the training
    policies: tuple[Policy, ...]  # none for a static model
    mixture: Mixture

    def __str__(self) -> str:
        """Describe training, strategies and thresholds."""
        return f"{self.row}: " + " and ".join(f"{policy.name} at {policy.threshold:g}" for policy in self.policies)


def choose(outcomes: Outcomes, task: str, rows: Sequence[TableRow], seed: int, speedup: float) -> Choice | None:
    """Decide about the test texts at exactly one speed-up, so that strategies with few thresholds can be compared.

    The two neighbouring thresholds between which the speed-up lies on calibration texts are mixed: either decides
    about a share of the texts. Of several settings or rows the one with the best score on calibration texts is taken.

    Args:
        outcomes: The completed runs.
        task: The task.
        rows: Ways to decide, of one training or of several.
        seed: The seed.
        speedup: The speed-up; a static model has its own.

    Returns:
        What was chosen and decided; None where no threshold is that fast.
    """
    candidates = []
    for row in rows:
        outcome = outcomes.get(task, row, seed)
        if row.share is not None:
            return Choice(row.name, (), [(1.0, static_exit(outcome.trace("test"), -1))])
        for curve in outcome.curves("calibration", row.strategies):
            mixed = _mix_at(curve, speedup)
            if mixed is not None:
                candidates.append((*mixed, row, outcome))
    if not candidates:
        return None
    _, parts, row, outcome = max(candidates, key=lambda candidate: candidate[0])
    test = outcome.trace("test")
    decided = [(share, policy.decide(test)) for share, policy in parts]
    return Choice(row.name, tuple(policy for _, policy in parts), decided)


def _mix_at(curve: Curve, speedup: float) -> tuple[float, list[tuple[float, Policy]]] | None:
    """Mix the two neighbouring points of a curve around a speed-up: return the score, and shares with policies."""
    order = np.argsort(curve.speedup, kind="stable")
    speeds, scores = curve.speedup[order], curve.score[order]
    above = int(np.searchsorted(speeds, speedup))
    if above == len(speeds) or np.isnan(scores[max(above - 1, 0) : above + 1]).any():
        return None
    faster = curve.policy_at(int(order[above]))
    if above == 0 or speeds[above] == speedup:
        return float(scores[above]), [(1.0, faster)]
    slow, fast, wanted = 1 / speeds[above - 1], 1 / speeds[above], 1 / speedup  # mean depths, as shares of all layers
    share = float((slow - wanted) / (slow - fast))
    score = share * scores[above] + (1 - share) * scores[above - 1]
    return float(score), [(share, faster), (1 - share, curve.policy_at(int(order[above - 1])))]


def compute_gains(
    outcomes: Outcomes, contrasts: Mapping[str, Contrast] = CONTRASTS, speedups: Sequence[float] = SPEEDUPS
) -> Iterator[Gain]:
    """Compute the gain of every contrast at every speed-up, task by task.

    Args:
        outcomes: The completed runs.
        contrasts: Two ways to decide, by name.
        speedups: Where to compare them.

    Yields:
        The gains; a task that lacks a run, or on which a way is never that fast, is left out.
    """
    for (name, contrast), speedup, task in product(contrasts.items(), speedups, outcomes.plan.tasks):
        choices, trace = _choose_both(outcomes, task, contrast, speedup)
        if trace is not None:
            pairs = [(first.mixture, second.mixture) for first, second in choices]
            gain = estimate(mean_gain(trace, pairs, metric=trace.metric))
            chosen = tuple(str(first) for first, _ in choices)
            yield Gain(name, task, speedup, gain, 1, len(pairs), _speedups(pairs), chosen)


def averages(gains: Iterable[Gain]) -> Iterator[Gain]:
    """Average the gains of every contrast and speed-up over the tasks.

    Args:
        gains: Gains by task.

    Yields:
        The mean for every contrast and speed-up that was compared on several tasks.
    """
    grouped: dict[tuple[str, float], list[Gain]] = defaultdict(list)
    for gain in gains:
        grouped[gain.contrast, gain.speedup].append(gain)
    for (contrast, speedup), by_task in grouped.items():
        if len(by_task) > 1:
            first, second = (float(np.mean([gain.speedups[side] for gain in by_task])) for side in (0, 1))
            mean, seeds = mean_of([gain.gain for gain in by_task]), min(gain.seeds for gain in by_task)
            rests_on = _decisive_tasks(by_task, mean)
            yield Gain(contrast, ALL, speedup, mean, len(by_task), seeds, (first, second), (), rests_on)


def _decisive_tasks(gains: Sequence[Gain], mean: Estimate) -> tuple[str, ...]:
    """Return the tasks without which the mean is no longer significantly different from zero."""
    without = {left_out.task: mean_of([gain.gain for gain in gains if gain is not left_out]) for left_out in gains}
    return tuple(task for task, other in without.items() if mean.sign != 0 and other.sign != mean.sign)


def _choose_both(
    outcomes: Outcomes, task: str, contrast: Contrast, speedup: float
) -> tuple[list[tuple[Choice, Choice]], Trace | None]:
    """Let both ways decide about the test texts, with every seed; no trace where one of them cannot."""
    seeds = outcomes.seeds(task, *contrast.first, contrast.second)
    sides = (contrast.first, (contrast.second,))
    choices = [[choose(outcomes, task, rows, seed, speedup) for rows in sides] for seed in seeds]
    both = [(first, second) for first, second in choices if first is not None and second is not None]
    complete = seeds and len(both) == len(seeds)
    return both, outcomes.get(task, contrast.second, seeds[0]).trace("test") if complete else None


def _speedups(pairs: Sequence[tuple[Mixture, Mixture]]) -> tuple[float, float]:
    """Compute the speed-ups of both ways on test texts, over all pairs."""
    first, second = (
        1 / np.mean([sum(share / decisions.speedup for share, decisions in pair[side]) for pair in pairs])
        for side in (0, 1)
    )
    return float(first), float(second)


def mean_gain(
    trace: Trace, pairs: Sequence[tuple[Mixture, Mixture]], *, metric: str, resamples: int = RESAMPLES, seed: int = 0
) -> NDArray:
    """Compute how far the first of two ways to decide is above the second, on average over several such pairs.

    Bootstrap samples are drawn from the texts and, where there are several pairs, from the pairs as well: with models
    of several seeds they show how much the gain depends on the training. The variance of a mean of n pairs, which
    resampling underestimates by the factor (n − 1) / n, is corrected for; but with two or three pairs that differ more
    than texts do, the interval is still too short.

    Args:
        trace: The texts, with labels.
        pairs: Two ways to decide about these texts, by models of several seeds for instance; either may be a mixture.
        metric: What to score by; a mixture's score is the mean of its parts' scores, weighted by their shares.
        resamples: How many bootstrap samples to draw.
        seed: Seed of the draws.

    Returns:
        The gain on the texts themselves and on every bootstrap sample, (1 + samples,).
    """
    decided = [decisions for pair in pairs for mixture in pair for _, decisions in mixture]
    scores = iter(bootstrap_scores(trace, decided, metric, resamples=resamples, seed=seed))
    gains = np.stack(
        [_mixed_score(first, scores) - _mixed_score(second, scores) for first, second in pairs]
    )  # (pairs, samples)
    drawn = np.random.default_rng((seed, len(pairs))).integers(len(pairs), size=gains.shape)
    drawn[:, 0] = np.arange(len(pairs))
    middle, sampled = gains.mean(axis=0), np.take_along_axis(gains, drawn, axis=0).mean(axis=0)
    return middle + (sampled - middle) * np.sqrt(len(pairs) / max(len(pairs) - 1, 1))


def _mixed_score(mixture: Mixture, scores: Iterator[NDArray]) -> NDArray:
    """Take as many scores as a mixture has parts, and return their weighted mean."""
    return np.sum([share * next(scores) for share, _ in mixture], axis=0)


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Average estimates on independent sets of texts, from their intervals alone.

    Either side of the intervals is combined like a standard deviation, so that asymmetric intervals stay asymmetric:
    Zou and Donner (2008).

    Args:
        estimates: Estimates on different texts.

    Returns:
        The mean and its interval.
    """
    value, low, high = np.array([(part.value, part.low, part.high) for part in estimates]).T  # (estimates,)
    middle, below, above = value.mean(), *(np.linalg.norm(value - end) / len(value) for end in (low, high))
    return Estimate(float(middle), float(middle - below), float(middle + above))
