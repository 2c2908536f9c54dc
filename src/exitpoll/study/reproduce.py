"""The whole reproduction: runs, tables after every task, answers for GLUE's server, findings and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from exitpoll.data.progress import OnProgress, ignore
from exitpoll.files import write_json, write_text
from exitpoll.study.comparisons import Runs, averages, contests
from exitpoll.study.execute import execute_all
from exitpoll.study.figures import draw_all
from exitpoll.study.findings import about_states, about_task, about_variants
from exitpoll.study.glue import write_submissions
from exitpoll.study.paper import OURS_ROW, VARIANTS, WITHOUT
from exitpoll.study.plan import Plan
from exitpoll.study.run import Outcome, Run
from exitpoll.study.tables import as_plain, cells, tables


def reproduce(
    plan: Plan,
    out: Path,
    *,
    with_tables: bool,
    varied: str | None,
    on_run: OnProgress = ignore,
    on_progress: OnProgress = ignore,
) -> tuple[list[Outcome], dict[str, str]]:
    """Do all runs of a plan, task by task, and write the tables after every task.

    Args:
        plan: What to reproduce.
        out: The folder for runs and tables.
        with_tables: Whether to write tables, and answers for GLUE's server.
        varied: The task on which variants of ours are run, if on any.
        on_run: Called before every run.
        on_progress: Called after every step of a training.

    Returns:
        What the runs left behind, and what stopped those that failed, by name.
    """
    todo = runs_of(plan, varied)
    first = replace(plan, seeds=plan.seeds[:1]).runs() if with_tables else []
    answered = {run.name for run in first}
    outcomes: list[Outcome] = []
    failed: dict[str, str] = {}
    for task in dict.fromkeys(run.task for run in todo):
        here, done = [run for run in todo if run.task == task], len(outcomes) + len(failed)
        found, broken = execute_all(
            here,
            out / "runs",
            answered=answered,
            on_run=_count_from(done, len(todo), on_run),
            on_progress=on_progress,
        )
        outcomes += found
        failed |= broken
        if with_tables:
            write_tables(plan, outcomes, out)
    return outcomes, failed


def _count_from(done: int, total: int, on_run: OnProgress) -> OnProgress:
    """Count runs on from those before."""
    return lambda progress: on_run(replace(progress, done=done + progress.done, total=total))


def runs_of(plan: Plan, varied: str | None) -> list[Run]:
    """List the runs behind tables, and behind the figures that compare variants.

    Args:
        plan: What to reproduce.
        varied: The task on which variants of ours are run, if on any.

    Returns:
        The runs, each once.
    """
    others = [] if varied is None else replace(plan, tasks=[varied], rows=[OURS_ROW, WITHOUT, *VARIANTS]).runs()
    return list({run.name: run for run in [*plan.runs(), *others]}.values())


def write_tables(plan: Plan, outcomes: Sequence[Outcome], out: Path) -> None:
    """Write the tables, every figure in them, and answers for GLUE's server.

    Args:
        plan: What was reproduced.
        outcomes: What its runs left behind; some may be missing.
        out: The folder to write into.
    """
    found = cells(plan, outcomes)
    written = tables(plan.tasks, [row.name for row in plan.rows], found)
    write_json(out / "cells.json", as_plain(found))
    write_text(out / "tables.md", written)
    write_submissions(plan, outcomes, out / "submissions")


def find_all(plan: Plan, outcomes: Sequence[Outcome], varied: str | None) -> dict[str, Any]:
    """Gather what the runs show beyond the tables.

    Args:
        plan: What was reproduced.
        outcomes: What its runs left behind; some may be missing.
        varied: The task on which variants of ours were run, if on any.

    Returns:
        Plain values: contests, tasks, and of the varied task variants and hidden states.
    """
    runs, found = Runs(plan, outcomes), cells(plan, outcomes)
    gains = list(contests(runs))
    return {
        "contests": [asdict(each) for each in (*gains, *averages(gains))],
        "tasks": {task: about_task(runs, task, found) for task in plan.tasks},
        "varied": varied,
        "variants": [] if varied is None else about_variants(runs, varied),
        "states": {} if varied is None else about_states(runs, varied),
    }


def write_figures(plan: Plan, outcomes: Sequence[Outcome], varied: str | None, out: Path) -> list[Path]:
    """Write findings and draw the figures.

    Args:
        plan: What was reproduced.
        outcomes: What its runs left behind; some may be missing.
        varied: The task on which variants of ours were run, if on any.
        out: The folder to write into.

    Returns:
        The pictures.
    """
    findings = find_all(plan, outcomes, varied)
    write_json(out / "findings.json", findings)
    return draw_all(findings, out / "figures")
