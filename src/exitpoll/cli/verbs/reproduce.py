"""exitpoll reproduce: the paper's tables and figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from exitpoll.cli.app import Names, Numbers, TrainingFlags
from exitpoll.cli.console import errors, quieten_transformers, say
from exitpoll.errors import InputError
from exitpoll.training.settings import TrainingSettings


def reproduce(
    what: Literal["binary", "multiclass", "figures", "all"] = "all",
    /,
    *,
    encoder: str,
    out: Path,
    data: str | None = None,
    tasks: Names = None,
    methods: Names = None,
    seeds: Numbers = None,
    limit: int | None = None,
    held_out: int | None = None,
    start_limit: int | None = None,
    varied: str | None = None,
    presets: bool = False,
    searched: Path | None = None,
    pooling: Literal["mean", "first", "pooler"] = "mean",
    settings: TrainingFlags = None,
) -> None:
    """Repeat the paper's tables and figures with runs of one's own; a job that was cut off goes on.

    Example: exitpoll reproduce all --encoder albert/albert-base-v2 --seeds 0 1 2 --out paper

    Args:
        what: The table of binary tasks, that of multi-class tasks, the figures and analyses, or all of it.
        encoder: A hub name or folder of a pretrained encoder.
        out: The folder for runs, traces, tables and figures.
        data: A folder with a folder for each task; the hub by default.
        tasks: Which tasks; the table's by default.
        methods: Which rows of the table, by name; all by default.
        seeds: The seeds, each a run of its own; 0 by default.
        limit: Train on at most this many texts.
        held_out: Calibrate and test on at most this many texts each.
        start_limit: Train on at most this many texts of a task that another starts from; like limit by default.
        varied: The task on which other readings of the loss, other weights and other heads are tried, for the
            figures; mrpc by default, or the first task; none by default where methods are named.
        presets: Use the paper's settings of each task (its Table 5), whatever else is said; it has none for cola
            and qqp.
        searched: A folder of `exitpoll search`; what it found for a task and method is used there, before presets.
        pooling: What a head reads.
        settings: How to train, the same for all methods.
    """
    from exitpoll.cli.progress import progress_bars
    from exitpoll.report.plots import check_installed
    from exitpoll.study.paper import BINARY, MULTICLASS
    from exitpoll.study.plan import Plan, check_plan, check_tasks, check_training_settings, encoder_fields, rows_named
    from exitpoll.study.reproduce import reproduce as reproduce_all
    from exitpoll.study.reproduce import write_figures
    from exitpoll.study.search import read_best

    quieten_transformers()
    wanted = tasks or {"binary": BINARY, "multiclass": MULTICLASS}.get(what, (*BINARY, *MULTICLASS))
    check_tasks([*wanted, *([] if varied is None else [varied])], data)
    check_training_settings(settings or TrainingSettings())
    drawn = what in ("figures", "all")
    if drawn:
        check_installed()
    elif varied is not None:
        raise InputError(f"--varied is for figures: 'reproduce {what}' draws none")
    plan = Plan(
        **encoder_fields(encoder),
        data=data,
        tasks=wanted,
        rows=rows_named(methods),
        seeds=seeds or [0],
        limit=limit,
        held_out=held_out,
        start_limit=start_limit,
        settings=settings or TrainingSettings(),
        presets=presets,
        searched={} if searched is None else read_best(searched),
        pooling=pooling,
    )
    check_plan(plan)
    for note in plan.notes():
        say(note)
    trial = varied
    if drawn and varied is None and methods is None:
        trial = "mrpc" if "mrpc" in wanted else wanted[0]
    with progress_bars(errors) as on_progress:
        outcomes, failed = reproduce_all(
            plan,
            out,
            with_tables=what != "figures",
            varied=trial,
            on_run=lambda progress: say(f"run {progress.done + 1} of {progress.total}: {progress.task}"),
            on_progress=on_progress,
        )
    if what != "figures":
        say((out / "tables.md").read_text(encoding="utf-8"))
        say(f"wrote {out}/cells.json and tables.md; every run is in {out}/runs")
    if drawn:
        pictures = write_figures(plan, outcomes, trial, out)
        say(f"wrote {out}/findings.json and {len(pictures)} pictures to {out}/figures")
    for name, why in failed.items():
        say(f"failed: {name}: {why}")
    if failed:
        sys.exit(1)
