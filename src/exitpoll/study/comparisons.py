"""Of two ways to decide, which is better at the same speed-up, and how sure is that: the questions put to the paper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.analysis import static_exit
from exitpoll.decide.bootstrap import RESAMPLES, Estimate, bootstrap_scores, estimate
from exitpoll.decide.decisions import Decisions
from exitpoll.decide.policy import Policy
from exitpoll.decide.sweep import Curve
from exitpoll.decide.trace import Trace
from exitpoll.study.paper import CONTESTS, Question, Row
from exitpoll.study.plan import Plan
from exitpoll.study.run import Outcome

SPEEDUPS = (1.3, 1.5, 2.0, 2.5, 3.0)
ALL = "all tasks"

Mixture = Sequence[tuple[float, Decisions]]  # decisions, each with the share of texts that it decides about


@dataclass(frozen=True)
class Gain:
    """By how much one way is better than another."""

    question: str
    task: str  # or all of them, on average
    speedup: float  # that the thresholds were chosen for, on calibration texts
    gain: Estimate  # in the task's metric, on test texts
    tasks: int  # averaged over
    seeds: int  # of each, at least
    speedups: tuple[float, float]  # that both ways came to on test texts
    chosen: tuple[str, ...]  # what the first way was with each seed, in words
    rests_on: tuple[str, ...] = ()  # of a mean that is surely not nought: the tasks without which it might be


@dataclass(frozen=True)
class Choice:
    """How to decide about test texts at a speed-up, by what calibration texts say."""

    row: str  # by which training
    policies: tuple[Policy, ...]  # none for a static model
    mixture: Mixture

    @property
    def words(self) -> str:
        """Training, strategies and thresholds."""
        return f"{self.row}: " + " and ".join(f"{each.name} at {each.threshold:g}" for each in self.policies)


class Runs:
    """The runs of a plan."""

    def __init__(self, plan: Plan, outcomes: Sequence[Outcome]) -> None:
        """Take in runs.

        Args:
            plan: What was to be reproduced.
            outcomes: What its runs left behind; some may be missing.
        """
        self.plan = plan
        self.known = {outcome.run.name: outcome for outcome in outcomes}

    def of(self, task: str, row: Row, seed: int) -> Outcome | None:
        """Find the run of a cell.

        Args:
            task: The task.
            row: The row of the table.
            seed: The seed.

        Returns:
            What it left behind, or None if it was not done.
        """
        return self.known.get(self.plan.run(task, row, seed).name)

    def needed(self, task: str, row: Row, seed: int) -> Outcome:
        """Find a run that is known to be done.

        Args:
            task: The task.
            row: The row of the table.
            seed: The seed.

        Returns:
            What it left behind.
        """
        outcome = self.of(task, row, seed)
        assert outcome is not None
        return outcome

    def seeds(self, task: str, *rows: Row) -> list[int]:
        """List the seeds with which all of some rows were run, and tested on the same texts as with the first."""
        found: list[int] = []
        first: Trace | None = None
        for seed in self.plan.seeds:
            outcomes = [self.of(task, row, seed) for row in rows]
            traces = [outcome.trace("test") for outcome in outcomes if outcome is not None]
            if len(traces) == len(rows):
                first = first or traces[0]
                found += [seed] if all(_same_texts(first, trace) for trace in traces) else []
        return found

    def at(self, task: str, rows: Sequence[Row], seed: int, speedup: float) -> Choice | None:
        """Decide about the test texts at just one speed-up, so that ways can be compared that have few thresholds.

        Of the two neighbouring thresholds between which the speed-up lies on calibration texts, each decides about as
        many texts as it takes; of several settings or ways the one that scores best so on calibration texts is taken.

        Args:
            task: The task.
            rows: Ways to decide, of one training or of several.
            seed: The seed.
            speedup: The speed-up; a static model has its own.

        Returns:
            What was chosen and decided; None where no threshold is that fast.
        """
        mixed = []
        for row in rows:
            outcome = self.needed(task, row, seed)
            if row.share is not None:
                test = outcome.trace("test")
                return Choice(row.name, (), [(1.0, static_exit(test, -1))])
            found = (_between(curve, speedup) for curve in outcome.curves("calibration", row.strategies))
            mixed += [(*each, row, outcome) for each in found if each is not None]
        if not mixed:
            return None
        _, parts, row, outcome = max(mixed, key=lambda each: each[0])
        test = outcome.trace("test")
        decided = [(share, policy.decide(test)) for share, policy in parts]
        return Choice(row.name, tuple(policy for _, policy in parts), decided)


def _between(curve: Curve, speedup: float) -> tuple[float, list[tuple[float, Policy]]] | None:
    """Mix the two neighbouring points of a curve that a speed-up lies between: the score, and shares with policies."""
    order = np.argsort(curve.speedup, kind="stable")
    speeds, scores = curve.speedup[order], curve.score[order]
    above = int(np.searchsorted(speeds, speedup))
    if above == len(speeds) or np.isnan(scores[max(above - 1, 0) : above + 1]).any():
        return None
    faster = curve.policy_at(int(order[above]))
    if above == 0 or speeds[above] == speedup:
        return float(scores[above]), [(1.0, faster)]
    slow, fast, wanted = 1 / speeds[above - 1], 1 / speeds[above], 1 / speedup  # mean depths, in models
    share = float((slow - wanted) / (slow - fast))
    score = share * scores[above] + (1 - share) * scores[above - 1]
    return float(score), [(share, faster), (1 - share, curve.policy_at(int(order[above - 1])))]


def contests(
    runs: Runs, questions: Mapping[str, Question] = CONTESTS, speedups: Sequence[float] = SPEEDUPS
) -> Iterator[Gain]:
    """Answer every question at every speed-up, task by task.

    Args:
        runs: The runs.
        questions: Two ways to decide, by name.
        speedups: Where to compare them.

    Yields:
        What was found; a task that lacks a run, or where a way is never that fast, is left out.
    """
    for (question, (first, second)), speedup, task in product(questions.items(), speedups, runs.plan.tasks):
        rows = (first,) if isinstance(first, Row) else first
        choices, trace = _choices(runs, task, rows, second, speedup)
        if trace is not None:
            pairs = [(ours.mixture, theirs.mixture) for ours, theirs in choices]
            gain = estimate(mean_gain(trace, pairs, metric=trace.metric))
            words = tuple(ours.words for ours, _ in choices)
            yield Gain(question, task, speedup, gain, 1, len(pairs), _speeds(pairs), words)


def averages(gains: Iterable[Gain]) -> Iterator[Gain]:
    """Answer every question at every speed-up on average over the tasks.

    Args:
        gains: What was found task by task, be it at different times.

    Yields:
        The mean of every question and speed-up that was asked on several tasks.
    """
    asked: dict[tuple[str, float], list[Gain]] = defaultdict(list)
    for each in gains:
        asked[each.question, each.speedup].append(each)
    for (question, speedup), here in asked.items():
        if len(here) > 1:
            first, second = (float(np.mean([each.speedups[side] for each in here])) for side in (0, 1))
            gain, seeds = mean_of([each.gain for each in here]), min(each.seeds for each in here)
            yield Gain(question, ALL, speedup, gain, len(here), seeds, (first, second), (), _carriers(here, gain))


def _carriers(gains: Sequence[Gain], mean: Estimate) -> tuple[str, ...]:
    """List the tasks without any one of which the mean could not be told from nought any more."""
    without = {gain.task: mean_of([each.gain for each in gains if each is not gain]) for gain in gains}
    return tuple(task for task, other in without.items() if mean.sign != 0 and other.sign != mean.sign)


def _choices(
    runs: Runs, task: str, rows: Sequence[Row], second: Row, speedup: float
) -> tuple[list[tuple[Choice, Choice]], Trace | None]:
    """Let both ways decide about the test texts, with every seed; no texts where one cannot."""
    seeds = runs.seeds(task, *rows, second)
    sides = [(runs.at(task, rows, seed, speedup), runs.at(task, [second], seed, speedup)) for seed in seeds]
    both = [(ours, theirs) for ours, theirs in sides if ours is not None and theirs is not None]
    outcome = runs.of(task, second, seeds[0]) if seeds else None
    return both, outcome.trace("test") if outcome is not None and len(both) == len(sides) else None


def _speeds(pairs: Sequence[tuple[Mixture, Mixture]]) -> tuple[float, float]:
    """Work out the speed-ups of both ways on test texts, over all pairs."""
    first, second = (
        1 / np.mean([sum(share / decisions.speedup for share, decisions in pair[side]) for pair in pairs])
        for side in (0, 1)
    )
    return float(first), float(second)


def _same_texts(first: Trace, second: Trace) -> bool:
    """Whether two traces are of the same texts: by what was noted of them, or else by their labels."""
    noted = [trace.about.get("texts_digest") for trace in (first, second)]
    if all(noted):
        return noted[0] == noted[1]
    return np.array_equal(first.gold("a comparison"), second.gold("a comparison"))


def mean_gain(
    trace: Trace, pairs: Sequence[tuple[Mixture, Mixture]], *, metric: str, resamples: int = RESAMPLES, seed: int = 0
) -> NDArray:
    """Compute how far the first of two ways to decide is above the second, on average over several such pairs.

    Bootstrap samples are of the texts and, where there are several pairs, of the pairs as well: with models of several
    seeds they show how much the gain depends on the training. Of n pairs, samples vary by n − 1 parts in n of what
    pairs do; that is corrected, but of two or three pairs that differ more than texts do, too little is known: their
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
    scores = iter(bootstrap_scores(trace, decided, metric, resamples=resamples, seed=seed))
    gains = np.stack([_mixed(first, scores) - _mixed(second, scores) for first, second in pairs])  # (pairs, samples)
    drawn = np.random.default_rng((seed, len(pairs))).integers(len(pairs), size=gains.shape)
    drawn[:, 0] = np.arange(len(pairs))
    middle, sampled = gains.mean(axis=0), np.take_along_axis(gains, drawn, axis=0).mean(axis=0)
    return middle + (sampled - middle) * np.sqrt(len(pairs) / max(len(pairs) - 1, 1))


def _mixed(mixture: Mixture, scores: Iterator[NDArray]) -> NDArray:
    """Take the next scores, as many as a mixture has parts, and weigh them."""
    return np.sum([share * next(scores) for share, _ in mixture], axis=0)


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Average estimates of separate sets of texts, from their intervals alone.

    Either side of the interval adds up like a standard deviation, so that one-sided intervals stay so, Zou and Donner
    (2008).

    Args:
        estimates: What was measured, each on texts of its own.

    Returns:
        The mean and its interval.
    """
    figures = [(estimate.value, estimate.low, estimate.high) for estimate in estimates]
    value, low, high = np.array(figures).T  # (estimates,)
    middle, below, above = value.mean(), *(np.linalg.norm(value - end) / len(value) for end in (low, high))
    return Estimate(float(middle), float(middle - below), float(middle + above))
