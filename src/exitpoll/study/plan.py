"""What is to be reproduced of the paper: tasks, rows, seeds and sizes, and the runs that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from exitpoll.data.splits import load_splits
from exitpoll.data.tasks import TASKS, plain_name, task_named
from exitpoll.errors import InputError
from exitpoll.models.encoders import family_of
from exitpoll.models.pretrained import encoder_folder, read_config
from exitpoll.study.paper import BEYOND, BINARY, MULTICLASS, NAMED, PRESETS, RANGES, ROWS, STARTS, TWINS, Row
from exitpoll.study.pruning import Prune
from exitpoll.study.run import Run
from exitpoll.training.methods import ExitWeights
from exitpoll.training.settings import MethodName, TrainingSettings


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
    searched: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)  # settings by task and row
    pooling: str = "mean"
    exit_weights: ExitWeights = "uniform"  # of ours; the paper weighs by depth where layers share no weights
    special: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # fields that differ for some tasks

    def of(self, task: str) -> Plan:
        """Say what is planned for a task alone.

        Args:
            task: The task.

        Returns:
            A plan with what differs for this task in place.
        """
        return replace(self, tasks=[task], special={}, **dict(self.special.get(task, {})))

    def run(self, task: str, row: Row, seed: int) -> Run:
        """Say what a cell follows from.

        Args:
            task: The task.
            row: The row of the table.
            seed: The seed.

        Returns:
            The run; rows that differ in their strategy alone share one.
        """
        if self.special:
            return self.of(task).run(task, row, seed)
        method, own = self._method(row)
        preset = dict(PRESETS.get(plain_name(Path(task).name), {})) if self.presets else {}
        if method != "ensemble":
            preset.pop("diversity_weight", None)
        better = self._searched(task, replace(row, method=method))
        settings = replace(self.settings, method=method, seed=seed, **{**preset, **better, **own})
        exits = None if row.share is None else (max(1, round(row.share * self.layers)),)
        alone = settings.schedule == "heads"  # heads trained alone stand on the full model, the first of the rows
        start = self._full(task, seed, better) if alone else self._start(task, seed)
        run = self._run(task, settings, exits, start, self.limit, row.prune)
        return run if row.pooling is None else replace(run, pooling=row.pooling)

    def _full(self, task: str, seed: int, found: Mapping[str, Any]) -> Run:
        """Say on which full model heads alone are trained: a search for their method found settings for both stages."""
        full = self.run(task, ROWS[0], seed)
        shared = {name: value for name, value in found.items() if name != "diversity_weight"}
        return replace(full, settings=replace(full.settings, **shared))

    def _method(self, row: Row) -> tuple[MethodName, dict[str, Any]]:
        """Say what a row is trained by; without diversity, ours is what another method is, which may have been run."""
        own = dict(row.settings)
        if row.method != "ensemble" or row.share is not None:
            return row.method, own
        own.setdefault("exit_weights", self.exit_weights)
        return ("ensemble", own) if own.get("diversity_weight") != 0 else (TWINS[own["exit_weights"]], {})

    def _searched(self, task: str, row: Row) -> Mapping[str, Any]:
        """Give what a search found for a row, or for another of the same training."""
        name = plain_name(Path(task).name)
        alike = [other for other in ROWS if other.name == row.name] + [other for other in ROWS if other.trains_as(row)]
        return next((found for other in alike if (found := self.searched.get((name, other.name)))), {})

    def notes(self) -> list[str]:
        """Say which tasks start from the plain encoder, where the paper starts from another task."""
        others = {task: STARTS[name] for task in self.tasks if (name := plain_name(Path(task).name)) in STARTS}
        return [
            f"{task} starts from the plain encoder: '{self.data}' has none of: {', '.join(starts)}"
            for task, starts in others.items()
            if self.of(task)._start(task, 0) is None
        ]

    def _start(self, task: str, seed: int) -> Run | None:
        """Say from which run a task starts, if from any: RTE from one on entailment."""
        for other in STARTS.get(plain_name(Path(task).name), ()):
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


def known_of(encoder: str) -> dict[str, Any]:
    """Read what a plan has to know of an encoder.

    Args:
        encoder: A hub name or a folder.

    Returns:
        Fields of a plan: encoder, layers, weights.
    """
    config = read_config(encoder_folder(encoder))
    weights = "uniform" if family_of(config).shares_layers(config) else "depth"
    return {"encoder": encoder, "layers": config.num_hidden_layers, "exit_weights": weights}


def group_of(task: str) -> str:
    """Say in which of the paper's tables a task stands: that of binary or of multi-class tasks."""
    return (
        "binary" if plain_name(Path(task).name) in {plain_name(name) for name in (*BINARY, *BEYOND)} else "multiclass"
    )


def range_of(data: str) -> tuple[float, float]:
    """Give the range of speed-ups in which the best threshold is looked for.

    Args:
        data: A file, a folder, a known task's name or a hub dataset's.

    Returns:
        The lowest and the highest speed-up: those of the paper's table of binary tasks where there are two classes.
    """
    return RANGES["binary" if len(load_splits(data).label_names) == 2 else "multiclass"]


def rows_named(names: Sequence[str] | None) -> list[Row]:
    """Pick rows of the tables.

    Args:
        names: Their names; all by default.

    Returns:
        The rows.
    """
    for name in names or ():
        if name not in NAMED:
            raise InputError(f"method '{name}' is in no table; choose of: {', '.join(NAMED)}")
    return list(ROWS) if names is None else [NAMED[name] for name in names]


def check_plan(plan: Plan) -> None:
    """Refuse sizes below one, and what is named twice and would count twice.

    Args:
        plan: What is to be reproduced.
    """
    for name in ("limit", "held_out", "start_limit"):
        size = getattr(plan, name)
        if size is not None and size < 1:
            raise InputError(f"--{name.replace('_', '-')} {size} must be at least 1")
    named = {"task": plan.tasks, "method": [row.name for row in plan.rows], "seed": plan.seeds}
    for kind, names in named.items():
        twice = [name for name in names if list(names).count(name) > 1]
        if twice:
            raise InputError(f"{kind} {twice[0]} is named twice")


def check_tasks(tasks: Iterable[str], data: str | None) -> None:
    """Refuse tasks that nobody knows, or that the hub does not have.

    Args:
        tasks: Their names.
        data: A folder with a folder for each, or None for the hub.
    """
    for task in tasks:
        if task_named(task) is None and plain_name(task) not in BEYOND:
            raise InputError(f"task '{task}' is unknown; known tasks: {', '.join(sorted(TASKS))}")
        if task_named(task) is None and data is None:
            raise InputError(f"task '{task}' is not known to be on the hub: name a folder that has it with --data")


OF_ROWS = ("method", "objective", "schedule", "strategy", "layer_drop", "exit_weights")


def check_settings(settings: TrainingSettings, *searched: str) -> None:
    """Refuse settings that rows, seeds or a search bring with them, and that would be ignored or blur the rows.

    Args:
        settings: What is asked for.
        *searched: Settings whose values are searched for.
    """
    default = TrainingSettings()
    reasons = dict.fromkeys(OF_ROWS, "follows from the rows of the tables here: choose rows")
    reasons |= {"seed": "is one of several here: use --seeds"}
    reasons |= dict.fromkeys(searched, "is what is searched for")
    for name, reason in reasons.items():
        if getattr(settings, name) != getattr(default, name):
            raise InputError(f"--{name.replace('_', '-')} {reason}")
