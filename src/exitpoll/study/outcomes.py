"""Outcomes: the completed runs of a plan, looked up by task, row and seed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from exitpoll.decide.trace import Trace
from exitpoll.study.paper import TableRow
from exitpoll.study.plan import Plan
from exitpoll.study.run import Outcome


class Outcomes:
    """The completed runs of a plan."""

    def __init__(self, plan: Plan, outcomes: Iterable[Outcome]) -> None:
        """Index the runs by name.

        Args:
            plan: What to reproduce.
            outcomes: Completed runs; some of the plan's may be missing.
        """
        self.plan = plan
        self._by_name = {outcome.run.name: outcome for outcome in outcomes}

    def find(self, task: str, row: TableRow, seed: int) -> Outcome | None:
        """Return the run behind a cell of the tables.

        Args:
            task: The task.
            row: The row of the table.
            seed: The seed.

        Returns:
            The completed run, or None if it is missing.
        """
        return self._by_name.get(self.plan.run(task, row, seed).name)

    def get(self, task: str, row: TableRow, seed: int) -> Outcome:
        """Return a run that is known to be complete.

        Args:
            task: The task.
            row: The row of the table.
            seed: The seed.

        Returns:
            The completed run.
        """
        outcome = self.find(task, row, seed)
        assert outcome is not None
        return outcome

    def seeds(self, task: str, *rows: TableRow) -> list[int]:
        """Return the seeds for which all given rows are complete, and tested on the same texts as the first of them.

        Args:
            task: The task.
            *rows: The rows.

        Returns:
            The seeds, in the order of the plan.
        """
        seeds: list[int] = []
        first: Trace | None = None
        for seed in self.plan.seeds:
            outcomes = [self.find(task, row, seed) for row in rows]
            traces = [outcome.trace("test") for outcome in outcomes if outcome is not None]
            if len(traces) == len(rows):
                first = first or traces[0]
                if all(_same_texts(first, trace) for trace in traces):
                    seeds.append(seed)
        return seeds


def _same_texts(first: Trace, second: Trace) -> bool:
    """Return whether two traces are of the same texts, by their digests or, where these are missing, their labels."""
    digests = [trace.about.get("texts_digest") for trace in (first, second)]
    if all(digests):
        return digests[0] == digests[1]
    return np.array_equal(first.gold("a comparison"), second.gold("a comparison"))
