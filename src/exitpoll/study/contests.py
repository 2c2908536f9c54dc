"""Of two ways to decide, which is better at the same speed-up, and how sure is that: the questions put to the paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exitpoll.analysis import static_exit
from exitpoll.curves import Curve, best_of, sweep
from exitpoll.decisions import Decisions
from exitpoll.errors import InputError
from exitpoll.evaluation import Estimate, estimate, mean_gain
from exitpoll.study.paper import CONTESTS, Row
from exitpoll.study.planning import Plan
from exitpoll.study.runs import Outcome
from exitpoll.trace import Trace

SPEEDUPS = (1.3, 1.5, 2.0, 2.5, 3.0)
ALL = "all tasks"


@dataclass(frozen=True)
class Gain:
    """By how much one way is better than another."""

    question: str
    task: str  # or all of them, on average
    speedup: float  # that the thresholds were chosen for, on calibration texts: this or more
    gain: Estimate  # in the task's metric, on test texts
    seeds: int  # or, for all tasks, how many tasks
    speedups: tuple[float, float] | None  # that both ways came to on test texts of a task


class Runs:
    """The runs of a plan, and what their calibration texts say of thresholds."""

    def __init__(self, plan: Plan, outcomes: Sequence[Outcome]) -> None:
        """Take in runs.

        Args:
            plan: What was to be reproduced.
            outcomes: What its runs left behind; some may be missing.
        """
        self.plan = plan
        self.known = {outcome.run.name: outcome for outcome in outcomes}
        self._curves: dict[tuple[str, str], list[Curve]] = {}

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

    def seeds(self, task: str, *rows: Row) -> list[int]:
        """List the seeds with which all of some rows were run."""
        return [seed for seed in self.plan.seeds if all(self.of(task, row, seed) is not None for row in rows)]

    def decide(self, task: str, row: Row, seed: int, speedup: float) -> Decisions | None:
        """Decide about the test texts, at a threshold chosen on the calibration texts.

        Args:
            task: The task.
            row: How to decide.
            seed: The seed.
            speedup: The best threshold with this speed-up or more is taken.

        Returns:
            The decisions; None where no threshold is that fast. A static model decides as it does.
        """
        outcome = self.of(task, row, seed)
        assert outcome is not None
        test = outcome.trace("test")
        if row.share is not None:
            return static_exit(test, len(test.layers) - 1)
        policy = best_of(self.curves(outcome, row), speedup)
        return None if policy is None else policy.decide(test)

    def curves(self, outcome: Outcome, row: Row) -> list[Curve]:
        """Sweep the calibration texts of a run once for each set of strategies."""
        key = outcome.run.name, str(row.strategies)
        if key not in self._curves:
            self._curves[key] = sweep(outcome.trace("calibration"), row.strategies)
        return self._curves[key]


def contests(
    runs: Runs, questions: Mapping[str, tuple[Row, Row]] = CONTESTS, speedups: Sequence[float] = SPEEDUPS
) -> Iterator[Gain]:
    """Answer every question at every speed-up, task by task and on average over the tasks.

    Args:
        runs: The runs.
        questions: Two ways to decide, by name.
        speedups: Where to compare them.

    Yields:
        What was found; a task that lacks a run, or where a way is never that fast, is left out.
    """
    for question, (first, second) in questions.items():
        for speedup in speedups:
            sampled = []
            for number, task in enumerate(runs.plan.tasks):
                found = _on_task(runs, task, first, second, speedup, number)
                if found is not None:
                    figures, reached, seeds = found
                    sampled.append(figures)
                    yield Gain(question, task, speedup, estimate(figures), seeds, reached)
            if len(sampled) > 1:
                yield Gain(question, ALL, speedup, estimate(np.mean(sampled, axis=0)), len(sampled), None)


def _on_task(
    runs: Runs, task: str, first: Row, second: Row, speedup: float, chance: int
) -> tuple[NDArray, tuple[float, float], int] | None:
    """Compare two ways on a task over all seeds: gains (1 + samples,), both speed-ups, and how many seeds."""
    pairs, trace = [], None
    for seed in runs.seeds(task, first, second):
        ours, theirs = (runs.decide(task, row, seed, speedup) for row in (first, second))
        outcome = runs.of(task, first, seed)
        if ours is None or theirs is None or outcome is None:
            return None
        trace = _same_texts(trace, outcome.trace("test"))
        pairs.append((ours, theirs))
    if trace is None:
        return None
    reached = tuple(float(np.mean([pair[side].speedup for pair in pairs])) for side in (0, 1))
    return mean_gain(trace, pairs, metric=trace.metric, seed=chance), (reached[0], reached[1]), len(pairs)


def _same_texts(known: Trace | None, trace: Trace) -> Trace:
    """Make sure that all seeds are tested on the same texts."""
    if known is not None and not np.array_equal(known.gold("a comparison"), trace.gold("a comparison")):
        raise InputError("runs of several seeds were tested on different texts: give the data a test split of its own")
    return trace
