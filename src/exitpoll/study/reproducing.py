"""The whole reproduction: runs, tables, submissions, findings, figures, each written as soon as it is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from exitpoll.folders import write_json, write_text
from exitpoll.study.cells import as_plain, cells, tables
from exitpoll.study.contests import Runs, contests
from exitpoll.study.figures import draw_all
from exitpoll.study.findings import about_states, about_task, about_variants
from exitpoll.study.paper import VARIANTS
from exitpoll.study.planning import Plan
from exitpoll.study.runs import Outcome, Run
from exitpoll.study.submitting import write_submissions


def runs_of(plan: Plan, varied: str | None) -> list[Run]:
    """List the runs behind tables, and behind the figures that compare variants.

    Args:
        plan: What to reproduce.
        varied: The task on which variants of ours are run, if on any.

    Returns:
        The runs, each once.
    """
    others = [] if varied is None else replace(plan, tasks=[varied], rows=VARIANTS).runs()
    return list({run.name: run for run in [*plan.runs(), *others]}.values())


def write_tables(plan: Plan, outcomes: Sequence[Outcome], out: Path) -> str:
    """Write the tables, every figure in them, and answers for GLUE's server.

    Args:
        plan: What was reproduced.
        outcomes: What its runs left behind.
        out: The folder to write into.

    Returns:
        The tables as Markdown.
    """
    found = cells(plan, outcomes)
    written = tables(plan.tasks, [row.name for row in plan.rows], found)
    write_json(out / "cells.json", as_plain(found))
    write_text(out / "tables.md", written)
    write_submissions(plan, outcomes, out / "submissions")
    return written


def find_all(plan: Plan, outcomes: Iterable[Outcome], varied: str | None) -> dict[str, Any]:
    """Gather what the runs show beyond the tables.

    Args:
        plan: What was reproduced.
        outcomes: What its runs left behind; some may be missing.
        varied: The task on which variants of ours were run, if on any.

    Returns:
        Plain values: contests, tasks, and of the varied task variants and hidden states.
    """
    done = list(outcomes)
    runs, found = Runs(plan, done), cells(plan, done)
    return {
        "contests": [asdict(each) for each in contests(runs)],
        "tasks": {task: about_task(runs, task, found) for task in plan.tasks},
        "varied": varied,
        "variants": [] if varied is None else about_variants(runs, varied),
        "states": {} if varied is None else about_states(runs, varied),
    }


def write_figures(plan: Plan, outcomes: Iterable[Outcome], varied: str | None, out: Path) -> list[Path]:
    """Write findings and draw the figures.

    Args:
        plan: What was reproduced.
        outcomes: What its runs left behind.
        varied: The task on which variants of ours were run, if on any.
        out: The folder to write into.

    Returns:
        The pictures.
    """
    findings = find_all(plan, outcomes, varied)
    write_json(out / "findings.json", findings)
    return draw_all(findings, out / "figures")
