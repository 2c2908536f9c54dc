"""The whole reproduction: runs, tables after every task, GLUE submissions, findings and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from exitpoll.data.progress import OnProgress, ignore
from exitpoll.files import locked, write_json, write_text
from exitpoll.study.comparisons import averages, compute_gains
from exitpoll.study.execute import Executor, execute_all
from exitpoll.study.figures import draw_all
from exitpoll.study.findings import Findings, state_findings, task_findings, variant_findings
from exitpoll.study.glue import write_submissions
from exitpoll.study.outcomes import Outcomes
from exitpoll.study.paper import NO_DIVERSITY_ROW, OURS_ROW, VARIANTS
from exitpoll.study.plan import Plan
from exitpoll.study.run import Outcome, Run
from exitpoll.study.tables import compute_cells, format_tables

RUNS = "runs"  # folder of all runs, inside that of the reproduction


def reproduce(
    plan: Plan,
    out: Path,
    *,
    with_tables: bool,
    varied: str | None,
    executor: Executor | None = None,
    workers: int = 1,
    on_run: OnProgress = ignore,
    on_progress: OnProgress = ignore,
) -> tuple[list[Outcome], dict[str, str]]:
    """Execute all runs of a plan, task by task, and write the tables after every task.

    Args:
        plan: What to reproduce.
        out: The folder for runs and tables.
        with_tables: Whether to write tables and GLUE submissions.
        varied: The task on which variants of ours are run, if any.
        executor: As for `execute_all`.
        workers: As for `execute_all`.
        on_run: Called before every run.
        on_progress: Called after every training step.

    Returns:
        The completed runs, and the error messages of failed runs by name.
    """
    todo = runs_of(plan, varied)
    first_seed = replace(plan, seeds=plan.seeds[:1]).runs() if with_tables else []
    answered = {run.name for run in first_seed}
    outcomes: list[Outcome] = []
    failed: dict[str, str] = {}
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / RUNS, "reproduce"):
        for task in dict.fromkeys(run.task for run in todo):
            new_outcomes, new_failed = execute_all(
                [run for run in todo if run.task == task],
                out / RUNS,
                answered=answered,
                executor=executor,
                workers=workers,
                on_run=_count_from(len(outcomes) + len(failed), len(todo), on_run),
                on_progress=on_progress,
            )
            outcomes += new_outcomes
            failed |= new_failed
            if with_tables:
                write_tables(plan, outcomes, out)
    return outcomes, failed


def _count_from(done: int, total: int, on_run: OnProgress) -> OnProgress:
    """Return a callback that adds the runs done before."""
    return lambda progress: on_run(replace(progress, done=done + progress.done, total=total))


def runs_of(plan: Plan, varied: str | None) -> list[Run]:
    """Return the runs that the tables need, and those that the figures of variants need.

    Args:
        plan: What to reproduce.
        varied: The task on which variants of ours are run, if any.

    Returns:
        The runs, without repetition.
    """
    rows = [OURS_ROW, NO_DIVERSITY_ROW, *VARIANTS]
    variants = [] if varied is None else replace(plan, tasks=[varied], rows=rows).runs()
    return list({run.name: run for run in [*plan.runs(), *variants]}.values())


def write_tables(plan: Plan, outcomes: Sequence[Outcome], out: Path) -> None:
    """Write the tables, their cells as JSON, and GLUE submissions.

    Args:
        plan: What to reproduce.
        outcomes: Completed runs; some of the plan's may be missing.
        out: The folder to write to.
    """
    cells = compute_cells(plan, outcomes)
    write_json(out / "cells.json", [asdict(cell) for cell in cells])
    write_text(out / "tables.md", format_tables(cells, plan.tasks, [row.name for row in plan.rows]))
    write_submissions(plan, outcomes, out / "submissions")


def compute_findings(plan: Plan, outcomes: Sequence[Outcome], varied: str | None) -> Findings:
    """Compute everything that the runs show beyond the tables.

    Args:
        plan: What to reproduce.
        outcomes: Completed runs; some of the plan's may be missing.
        varied: The task on which variants of ours were run, if any.

    Returns:
        Plain values: gains by task and on average, data of the figures by task, and of the varied task variants and
        hidden states.
    """
    known, cells = Outcomes(plan, outcomes), compute_cells(plan, outcomes)
    gains = list(compute_gains(known))
    return {
        "contests": [gain.to_dict() for gain in (*gains, *averages(gains))],
        "tasks": {task: task_findings(known, task, cells) for task in plan.tasks},
        "varied": varied,
        "variants": [] if varied is None else variant_findings(known, varied),
        "states": {} if varied is None else state_findings(known, varied),
    }


def write_figures(plan: Plan, outcomes: Sequence[Outcome], varied: str | None, out: Path) -> list[Path]:
    """Write the findings as JSON and draw the figures.

    Args:
        plan: What to reproduce.
        outcomes: Completed runs; some of the plan's may be missing.
        varied: The task on which variants of ours were run, if any.
        out: The folder to write to.

    Returns:
        The files of the figures.
    """
    findings = compute_findings(plan, outcomes, varied)
    write_json(out / "findings.json", findings)
    return draw_all(findings, out / "figures")
