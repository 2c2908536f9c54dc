"""exitpoll reproduce: the paper's tables and figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from exitpoll.cli.cluster import study_executor
from exitpoll.cli.console import progress_console, quieten_transformers, remark, say
from exitpoll.cli.groups import IN_DATA, IN_METHOD, IN_MODEL, IN_OPTIMIZER
from exitpoll.cli.options import Cluster, Names, Numbers, Out, TrainingFlags, plain_settings
from exitpoll.errors import InputError

if TYPE_CHECKING:
    from exitpoll.study.plan import Plan


def reproduce(
    what: Literal["binary", "multiclass", "figures", "all"] = "all",
    /,
    *,
    encoder: Annotated[str, IN_MODEL],
    out: Out,
    data: Annotated[str | None, IN_DATA] = None,
    tasks: Annotated[Names, IN_DATA] = None,
    methods: Annotated[Names, IN_METHOD] = None,
    seeds: Annotated[Numbers, IN_OPTIMIZER] = None,
    limit: Annotated[int | None, IN_DATA] = None,
    held_out: Annotated[int | None, IN_DATA] = None,
    start_limit: Annotated[int | None, IN_DATA] = None,
    varied: Annotated[str | None, IN_METHOD] = None,
    presets: Annotated[bool, IN_OPTIMIZER] = False,
    searched: Annotated[Path | None, IN_OPTIMIZER] = None,
    pooling: Annotated[Literal["mean", "first", "pooler"], IN_MODEL] = "mean",
    cluster: Cluster = None,
    processes: Annotated[int | None, IN_MODEL] = None,
    settings: TrainingFlags = None,
) -> None:
    """Reproduce the tables and figures of the paper.

    Every run is kept in its own folder. Rerun the same command after an interruption to continue.

    Example: exitpoll reproduce all --encoder albert/albert-base-v2 --seeds 0 1 2 --out paper

    Args:
        what: The table of binary tasks, the table of multi-class tasks, the figures and analyses, or all of them.
        encoder: A pretrained encoder: a name on the hub or a folder.
        out: The folder for runs, traces, tables and figures.
        data: A folder with one folder per task; the hub by default.
        tasks: The tasks; those of the table by default.
        methods: The rows of the table, by name; all by default.
        seeds: The seeds; every run is repeated with all of them; 0 by default.
        limit: Train on at most this many texts.
        held_out: Calibrate on at most this many texts, and test on at most as many.
        start_limit: Train on at most this many texts of a task that another task starts from; like limit by default.
        varied: The task on which variants of the loss, the exit weights and the heads are run, for the figures; mrpc by
            default, or the first task; none by default if methods are named.
        presets: Use the paper's settings for a task (Table 5) before any others; it has none for cola and qqp.
        searched: A folder of `exitpoll search`; its best settings of a task and method are used before presets.
        pooling: What a head reads.
        cluster: Execute runs on Ray, several at a time: auto for the cluster of this machine, local to start Ray here,
            or HOST:PORT.
        processes: How many runs to execute at a time on the cluster; by default one for each of its CPUs.
        settings: How to train, the same for all methods.
    """
    from exitpoll.report.plots import check_can_draw
    from exitpoll.study.paper import BINARY, MULTICLASS
    from exitpoll.study.plan import Plan, check_plan, check_tasks, check_training_settings, encoder_fields, rows_named
    from exitpoll.study.search import read_best

    quieten_transformers()
    wanted = tasks or {"binary": BINARY, "multiclass": MULTICLASS}.get(what, (*BINARY, *MULTICLASS))
    check_tasks([*wanted, *([] if varied is None else [varied])], data)
    check_training_settings(plain_settings(settings))
    with_figures = what in ("figures", "all")
    if with_figures:
        check_can_draw()
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
        settings=plain_settings(settings),
        presets=presets,
        searched={} if searched is None else read_best(searched),
        pooling=pooling,
    )
    check_plan(plan)
    remark(*plan.notes())
    if with_figures and varied is None and methods is None:
        varied = "mrpc" if "mrpc" in wanted else wanted[0]
    with study_executor(cluster, processes) as executor:
        _run(plan, out, varied, executor, with_tables=what != "figures", with_figures=with_figures)


def _run(
    plan: Plan, out: Path, varied: str | None, executor: dict[str, Any], *, with_tables: bool, with_figures: bool
) -> None:
    """Execute a plan, write its tables and figures, and exit with code 1 if runs failed."""
    from exitpoll.data.bars import progress_bars
    from exitpoll.study.reproduce import reproduce as reproduce_plan
    from exitpoll.study.reproduce import write_figures

    with progress_bars(progress_console()) as on_progress:
        outcomes, failed = reproduce_plan(
            plan,
            out,
            with_tables=with_tables,
            varied=varied,
            **executor,
            on_run=lambda progress: remark(f"run {progress.done + 1} of {progress.total}: {progress.task}"),
            on_progress=on_progress,
        )
    if with_tables:
        say(*(out / "tables.md").read_text(encoding="utf-8").splitlines())
        remark(f"wrote {out}/cells.json and tables.md; every run is in {out}/runs")
    if with_figures:
        paths = write_figures(plan, outcomes, varied, out)
        remark(f"wrote {out}/findings.json and {len(paths)} figures to {out}/figures")
    say(*(f"failed: {name}: {reason}" for name, reason in failed.items()))
    if failed:
        sys.exit(1)
