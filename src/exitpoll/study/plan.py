"""Plan: what to reproduce of the paper (tasks, rows, seeds, sizes), and the runs that this needs."""

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
from exitpoll.study.paper import (
    BINARY,
    METHODS_WITHOUT_DIVERSITY,
    MULTICLASS,
    OTHER_BINARY,
    PRESETS,
    RANGES,
    ROWS,
    ROWS_BY_NAME,
    STARTING_TASKS,
    Overrides,
    TableRow,
)
from exitpoll.study.run import Run
from exitpoll.training.methods import ExitWeights
from exitpoll.training.settings import MethodName, TrainingSettings


@dataclass(frozen=True)
class Plan:
    """What to reproduce, and at what size."""

    encoder: str
    layers: int  # of the encoder
    data: str | None = None  # a folder with a folder per task; the hub by default
    tasks: Sequence[str] = (*BINARY, *MULTICLASS)
    rows: Sequence[TableRow] = ROWS
    seeds: Sequence[int] = (0,)
    limit: int | None = None  # of training texts
    held_out: int | None = None  # limit of calibration texts, and of test texts
    start_limit: int | None = None  # of training texts of a task that another starts from
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    presets: bool = False  # whether to use the paper's settings by task
    searched: Mapping[tuple[str, str], Overrides] = field(default_factory=dict)  # settings by task and row
    pooling: str = "mean"
    exit_weights: ExitWeights = "uniform"  # of ours; by depth in the paper where layers share no weights
    special: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # fields of a plan that differ by task

    def of(self, task: str) -> Plan:
        """Return the plan for one task.

        Args:
            task: The task.

        Returns:
            A plan with the fields that differ for this task.
        """
        return replace(self, tasks=[task], special={}, **dict(self.special.get(task, {})))

    def run(self, task: str, row: TableRow, seed: int) -> Run:
        """Return the run behind a cell of the tables.

        Args:
            task: The task.
            row: The row of the table.
            seed: The seed.

        Returns:
            The run; rows that differ only in their strategy share one.
        """
        if self.special:
            return self.of(task).run(task, row, seed)
        method, own = self._method(row)
        preset = dict(PRESETS.get(_task_name(task), {})) if self.presets else {}
        if method != "ensemble":
            preset.pop("diversity_weight", None)
        searched = self._searched(task, replace(row, method=method))
        settings = replace(self.settings, method=method, seed=seed, **{**preset, **searched, **own})
        only_heads = settings.schedule == "heads"  # which are trained on the full model, the first row
        return Run(
            data=self._source(task),
            encoder=self.encoder,
            settings=settings,
            exits=None if row.share is None else (max(1, round(row.share * self.layers)),),
            limit=self.limit,
            held_out=self.held_out,
            start=self._full_model(task, seed, searched) if only_heads else self._starting_run(task, seed),
            pooling=row.pooling or self.pooling,
            prune=row.prune,
        )

    def runs(self) -> list[Run]:
        """Return all runs, without repetition, task by task."""
        runs = (self.run(task, row, seed) for task in self.tasks for seed in self.seeds for row in self.rows)
        return list({run.name: run for run in runs}.values())

    def notes(self) -> list[str]:
        """Return notes on tasks that start from the pretrained encoder, where the paper starts from another task."""
        starts = {task: STARTING_TASKS[name] for task in self.tasks if (name := _task_name(task)) in STARTING_TASKS}
        return [
            f"{task} starts from the pretrained encoder: '{self.data}' has none of: {', '.join(names)}"
            for task, names in starts.items()
            if self.of(task)._starting_run(task, 0) is None
        ]

    def _method(self, row: TableRow) -> tuple[MethodName, Overrides]:
        """Return method and settings of a row; ours without diversity is another method, which may have been run."""
        own = dict(row.settings)
        if row.method != "ensemble" or row.share is not None:
            return row.method, own
        own.setdefault("exit_weights", self.exit_weights)
        if own.get("diversity_weight") != 0:
            return "ensemble", own
        return METHODS_WITHOUT_DIVERSITY[own["exit_weights"]], {}

    def _searched(self, task: str, row: TableRow) -> Overrides:
        """Return the best settings of a search for a row, or for another row that is trained in the same way."""
        alike = [other for other in ROWS if other.name == row.name] + [other for other in ROWS if other.trains_as(row)]
        results = (self.searched.get((_task_name(task), other.name)) for other in alike)
        return next((settings for settings in results if settings), {})

    def _full_model(self, task: str, seed: int, searched: Overrides) -> Run:
        """Return the full model that heads are trained on; settings searched for their method are for both stages."""
        full = self.run(task, ROWS[0], seed)
        shared = {name: value for name, value in searched.items() if name != "diversity_weight"}
        return replace(full, settings=replace(full.settings, **shared))

    def _starting_run(self, task: str, seed: int) -> Run | None:
        """Return the run that a task starts from, if any: RTE starts from another entailment task."""
        for other in STARTING_TASKS.get(_task_name(task), ()):
            if self.data is None or (Path(self.data) / other).exists():
                return Run(
                    data=self._source(other),
                    encoder=self.encoder,
                    settings=replace(self.settings, **dict(ROWS[0].settings), seed=seed),
                    exits=(self.layers,),
                    limit=self.start_limit or self.limit,
                    held_out=self.held_out,
                    pooling=self.pooling,
                )
        return None

    def _source(self, task: str) -> str:
        """Return where the data of a task are."""
        if self.data is None:
            return task
        folder = Path(self.data) / task
        if not folder.exists():
            raise InputError(f"'{self.data}' has no folder '{task}'; name the tasks that it has with --tasks")
        return str(folder)


def _task_name(task: str) -> str:
    """Return the name of a task, or of the folder of its data, as the paper's settings are listed by."""
    return plain_name(Path(task).name)


def encoder_fields(encoder: str) -> dict[str, Any]:
    """Return the fields of a plan that follow from its encoder.

    Args:
        encoder: A hub name or a folder.

    Returns:
        Encoder, layers and exit weights.
    """
    config = read_config(encoder_folder(encoder))
    weights = "uniform" if family_of(config).shares_layers(config) else "depth"
    return {"encoder": encoder, "layers": config.num_hidden_layers, "exit_weights": weights}


def group_of(task: str) -> str:
    """Return which of the paper's tables a task belongs to: "binary" or "multiclass"."""
    return "binary" if _task_name(task) in {plain_name(name) for name in (*BINARY, *OTHER_BINARY)} else "multiclass"


def range_of(data: str) -> tuple[float, float]:
    """Return the range of speed-ups in which the best threshold is chosen.

    Args:
        data: A file, a folder, a known task's name or a hub dataset's.

    Returns:
        The lowest and the highest speed-up: those of the paper's table of binary tasks where there are two classes.
    """
    return RANGES["binary" if len(load_splits(data).label_names) == 2 else "multiclass"]


def rows_named(names: Sequence[str] | None) -> list[TableRow]:
    """Return rows of the tables by name.

    Args:
        names: Their names; all by default.

    Returns:
        The rows.
    """
    for name in names or ():
        if name not in ROWS_BY_NAME:
            raise InputError(f"method '{name}' is in no table; choose one of: {', '.join(ROWS_BY_NAME)}")
    return list(ROWS) if names is None else [ROWS_BY_NAME[name] for name in names]


def check_plan(plan: Plan) -> None:
    """Refuse sizes below one, and names that are given twice.

    Args:
        plan: What to reproduce.
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
    """Refuse unknown tasks, and tasks that are not on the hub.

    Args:
        tasks: Their names.
        data: A folder with a folder per task, or None for the hub.
    """
    for task in tasks:
        if task_named(task) is None and plain_name(task) not in OTHER_BINARY:
            raise InputError(f"task '{task}' is unknown; known tasks: {', '.join(sorted(TASKS))}")
        if task_named(task) is None and data is None:
            raise InputError(f"task '{task}' is not known to be on the hub: name a folder that has it with --data")


_SET_BY_ROWS = ("method", "objective", "schedule", "strategy", "layer_drop", "exit_weights")


def check_training_settings(settings: TrainingSettings, *searched: str) -> None:
    """Refuse settings that are set by rows, by seeds or by a search, and would be ignored.

    Args:
        settings: The settings given by the user.
        *searched: Names of settings that are searched for.
    """
    default = TrainingSettings()
    reasons = dict.fromkeys(_SET_BY_ROWS, "follows from the rows of the tables; choose rows instead")
    reasons |= {"seed": "is one of several; use --seeds"}
    reasons |= dict.fromkeys(searched, "is searched for; leave it out")
    for name, reason in reasons.items():
        if getattr(settings, name) != getattr(default, name):
            raise InputError(f"--{name.replace('_', '-')} {reason}")
