"""The paper's tables from runs of one's own: thresholds chosen on calibration texts, every figure from test texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from exitpoll.analysis import static_exit
from exitpoll.curves import best_of, sweep
from exitpoll.errors import InputError
from exitpoll.evaluation import measure
from exitpoll.methods import Prune, TrainingSettings
from exitpoll.paper import BEYOND, BINARY, MULTICLASS, PRESETS, RANGES, ROWS, STARTS, Row
from exitpoll.policy import Policy
from exitpoll.runs import Outcome, Run
from exitpoll.tasks import TASKS, task_named
from exitpoll.trace import Trace


@dataclass(frozen=True)
class Plan:
    """What is to be reproduced, and at what size."""

    encoder: str
    layers: int  # of the encoder
    data: str | None = None  # a folder with a folder for each task; the hub by default
    tasks: Sequence[str] = (*BINARY, *MULTICLASS)
    rows: Sequence[Row] = ROWS
    seeds: Sequence[int] = (0,)
    limit: int | None = None  # of training texts
    held_out: int | None = None  # at most so many calibration texts, and so many test texts
    start_limit: int | None = None  # of training texts of a task that another starts from
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    presets: bool = False  # whether the paper's settings of each task are used
    pooling: str = "mean"

    def run(self, task: str, row: Row, seed: int) -> Run:
        """Say what a cell follows from.

        Args:
            task: The task.
            row: The row of the table.
            seed: The seed.

        Returns:
            The run; rows that differ in their strategy alone share one.
        """
        chosen = replace(self.settings, method=row.method, seed=seed)
        preset = dict(PRESETS.get(_plain(task), {})) if self.presets else {}
        if row.method != "ensemble":
            preset.pop("diversity_weight", None)
        settings = replace(chosen, **{**preset, **row.settings})
        exits = None if row.share is None else (max(1, round(row.share * self.layers)),)
        alone = settings.schedule == "heads"  # heads trained alone stand on the full model, the first of the rows
        start = self.run(task, ROWS[0], seed) if alone else self._start(task, seed)
        run = self._run(task, settings, exits, start, self.limit, row.prune)
        return run if row.pooling is None else replace(run, pooling=row.pooling)

    def _start(self, task: str, seed: int) -> Run | None:
        """Say from which run a task starts, if from any: RTE from one on entailment."""
        for other in STARTS.get(_plain(task), ()):
            if self.data is None or (Path(self.data) / other).exists():
                settings = replace(self.settings, **dict(ROWS[0].settings), seed=seed)
                return self._run(other, settings, (self.layers,), None, self.start_limit or self.limit, None)
        return None

    def _run(
        self,
        task: str,
        settings: TrainingSettings,
        exits: tuple[int, ...] | None,
        start: Run | None,
        limit: int | None,
        prune: Prune | None,
    ) -> Run:
        """Add what all runs share."""
        held_out, pooling = self.held_out, self.pooling
        return Run(self._source(task), self.encoder, settings, exits, limit, held_out, start, pooling, prune)

    def _source(self, task: str) -> str:
        """Say where the data of a task are."""
        if self.data is None:
            return task
        folder = Path(self.data) / task
        if not folder.exists():
            raise InputError(f"'{self.data}' has no folder '{task}'; name the tasks that it has with --tasks")
        return str(folder)

    def runs(self) -> list[Run]:
        """List all runs, each once, task by task."""
        wanted = (self.run(task, row, seed) for task in self.tasks for seed in self.seeds for row in self.rows)
        return list({run.name: run for run in wanted}.values())


def _plain(task: str) -> str:
    """Spell a task's name as the paper's settings do."""
    return "".join(letter for letter in Path(task).name.lower() if letter.isalnum())


@dataclass(frozen=True)
class Cell:
    """One figure of a table: a method on a task with a seed."""

    task: str
    row: str
    seed: int
    run: str  # its name
    metric: str
    policy: str | None  # strategy, settings and threshold in words; None for a static model
    score: float  # on test texts, chosen on calibration texts
    low: float  # of a 95 % interval by bootstrap
    high: float
    speedup: float  # on test texts
    below_full: float  # the run's own last exit minus the score
    score_on_dev: float  # chosen on the very texts it is reported on, as the paper does
    seconds: float  # that the run took


def cell(task: str, row: Row, outcome: Outcome, layers: int, speedups: tuple[float, float]) -> Cell:
    """Work out one figure.

    Args:
        task: The task.
        row: The row of the table.
        outcome: What the run left behind.
        layers: How many the whole encoder has.
        speedups: In which range the threshold is looked for.

    Returns:
        The figure; NaN where no threshold gives a speed-up in the range.
    """
    calibration, test = outcome.trace("calibration"), outcome.trace("test")
    last = len(test.layers) - 1
    if row.share is not None:
        policy, decided, on_dev = None, static_exit(test, last), static_exit(test, last).score(test.metric)
        assert outcome.run.exits is not None
        speedup = outcome.summary["fewer_products"] * layers / outcome.run.exits[-1]
    else:
        policy = _chosen(calibration, row, speedups)
        best = _chosen(test, row, speedups)
        decided = static_exit(test, last) if policy is None else policy.decide(test)
        on_dev = float("nan") if best is None else best.decide(test).score(test.metric)
        speedup = decided.speedup
    score, below = measure(test, decided, static_exit(test, last), metric=test.metric)
    return Cell(
        task=task,
        row=row.name,
        seed=outcome.run.settings.seed,
        run=outcome.run.name,
        metric=test.metric,
        policy=None if policy is None else f"{policy.name} at {policy.threshold}",
        score=score.value,
        low=score.low,
        high=score.high,
        speedup=speedup,
        below_full=below.value,
        score_on_dev=on_dev,
        seconds=outcome.summary["seconds"],
    )


def _chosen(trace: Trace, row: Row, speedups: tuple[float, float]) -> Policy | None:
    """Take the best threshold and setting in a range of speed-ups (the rule of the paper's tables)."""
    return best_of(sweep(trace, row.strategies), *speedups)


def group_of(task: str) -> str:
    """Say in which of the paper's tables a task stands: that of binary or of multi-class tasks."""
    return "binary" if _plain(task) in {_plain(name) for name in (*BINARY, *BEYOND)} else "multiclass"


def cells(plan: Plan, outcomes: Iterable[Outcome]) -> list[Cell]:
    """Work out all figures of a plan.

    Args:
        plan: What was to be reproduced.
        outcomes: What its runs left behind.

    Returns:
        A figure for each task, row and seed.
    """
    known = {outcome.run.name: outcome for outcome in outcomes}
    return [
        cell(task, row, known[plan.run(task, row, seed).name], plan.layers, RANGES[group_of(task)])
        for task in plan.tasks
        for row in plan.rows
        for seed in plan.seeds
    ]


def table(found: Sequence[Cell], tasks: Sequence[str], rows: Sequence[str]) -> str:
    """Write figures as a table: mean over seeds, its spread, and the speed-up, with a link to the runs.

    Args:
        found: The figures.
        tasks: The columns.
        rows: The rows, by name.

    Returns:
        Markdown.
    """
    lines = ["| method | " + " | ".join(tasks) + " | mean |", "|---" * (len(tasks) + 2) + "|"]
    for row in rows:
        texts, scores = [], []
        for task in tasks:
            here = [each for each in found if (each.task, each.row) == (task, row)]
            texts.append(_in_words(here))
            scores += [mean(each.score for each in here)] if here else []
        average = f"{100 * mean(scores):.1f}" if len(scores) == len(tasks) else ""
        lines.append(f"| {row} | {' | '.join(texts)} | {average} |")
    return "\n".join(lines)


def tables(plan: Plan, found: Sequence[Cell]) -> str:
    """Write the table of binary tasks and that of multi-class tasks, as far as they were reproduced.

    Args:
        plan: What was reproduced.
        found: The figures.

    Returns:
        Markdown.
    """
    parts = []
    for group, title in (("binary", "Binary tasks"), ("multiclass", "Multi-class tasks")):
        tasks = [task for task in plan.tasks if group_of(task) == group]
        if tasks:
            low, high = RANGES[group]
            rule = f"best on the calibration split with a speed-up in [{low}, {high}], reported on the test split, in %"
            parts.append(f"## {title}\n\n{rule}\n\n{table(found, tasks, [row.name for row in plan.rows])}\n")
    return "\n".join(parts)


def rows_named(names: Sequence[str] | None) -> list[Row]:
    """Pick rows of the tables.

    Args:
        names: Their names; all by default.

    Returns:
        The rows.
    """
    known = {row.name: row for row in ROWS}
    for name in names or ():
        if name not in known:
            raise InputError(f"method '{name}' is in no table; choose of: {', '.join(known)}")
    return list(ROWS) if names is None else [known[name] for name in names]


def _in_words(here: Sequence[Cell]) -> str:
    """Write one cell of a table."""
    if not here:
        return ""
    scores = [100 * each.score for each in here]
    spread = f" ± {stdev(scores):.1f}" if len(scores) > 1 else ""
    speedup = mean(each.speedup for each in here)
    return f"[{mean(scores):.1f}](results/runs/{here[0].run}.json){spread} at {speedup:.2f}×"


def check_tasks(tasks: Iterable[str]) -> None:
    """Refuse tasks that nobody knows.

    Args:
        tasks: Their names.
    """
    for task in tasks:
        if task_named(task) is None and _plain(task) not in BEYOND:
            raise InputError(f"task '{task}' is unknown; known tasks: {', '.join(sorted(TASKS))}")


def as_plain(found: Sequence[Cell]) -> list[Mapping[str, Any]]:
    """Give figures as plain values, for JSON."""
    return [vars(each) for each in found]
