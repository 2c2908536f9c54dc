"""Reproduce the paper at a size that two CPU cores can do: tasks, numbers of texts, methods, seeds and variants.

    python experiments/reproduce.py --encoder gte-small --korean albert-kor-base --data data --cache runs

`--data` has a folder per task. Runs are kept in `--cache` by their settings, so that an interrupted job resumes; on a
GPU, `exitpoll reproduce all` does it at full size. The findings of a task are written to a file of their own in
experiments/results/reproduce/, so that tasks can be run at different times (`--tasks`), and the settings and scores of
its runs to experiments/results/runs/. `reproduce_page.py` then writes docs/results.md and its figures from them.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from exitpoll.data.progress import Progress
from exitpoll.files import write_json
from exitpoll.study.comparisons import compute_gains
from exitpoll.study.execute import execute_all
from exitpoll.study.outcomes import Outcomes
from exitpoll.study.paper import AGAINST_FULL, CONTRASTS, FULL, ROWS, VARIANTS
from exitpoll.study.plan import Plan, encoder_fields
from exitpoll.study.reproduce import compute_findings
from exitpoll.study.run import Outcome, Run
from exitpoll.study.tables import compute_cells
from exitpoll.training.settings import TrainingSettings

RESULTS = Path(__file__).parent / "results" / "reproduce"
RUNS = Path(__file__).parent / "results" / "runs"  # linked from the page
STATIC = [row for row in ROWS if row.share is not None and row.name != FULL]
EXITING = [row for row in ROWS if row not in STATIC]


@dataclass(frozen=True)
class Size:
    """How much of a task is used."""

    epochs: int
    limit: int | None = None  # of training texts
    batch_size: int = 32
    start_limit: int | None = None  # of training texts of the task that this one starts from
    held_out: int = 2_500  # limit of calibration texts, and of test texts
    logs_per_epoch: int = 2


SIZES = {
    "trec": Size(3),
    "sst2": Size(1, limit=20_000),
    "agnews": Size(2, limit=2_500, held_out=1_500),
    "cola": Size(2, limit=5_000),
    "mrpc": Size(2, limit=1_500, batch_size=16, held_out=1_000),
    "sst5": Size(2, limit=3_000, held_out=1_000, logs_per_epoch=1),
    "nsmc": Size(2, limit=1_000, batch_size=16, held_out=500, logs_per_epoch=1),
    "rte": Size(2, limit=1_000, batch_size=16, start_limit=2_000, logs_per_epoch=1),
}
SEEDS = (0, 1, 2)
SEVERAL_SEEDS = ("trec", "mrpc")
WITH_STATIC = ("trec", "cola", "sst5")
FIRST = ("trec", "sst2", "agnews")  # where half of the layers must cost at most half a point
VARIED = "trec"
NEW_SEEDS = (3, 4)  # run on VARIED after the rule for AGAINST_FULL was fixed, and evaluated once


def plan_of(options: argparse.Namespace) -> Plan:
    """Return what to reproduce, and at what size."""
    special: dict[str, dict[str, Any]] = {
        task: {
            "limit": size.limit,
            "start_limit": size.start_limit,
            "held_out": size.held_out,
            "settings": TrainingSettings(
                epochs=size.epochs, batch_size=size.batch_size, logs_per_epoch=size.logs_per_epoch
            ),
        }
        for task, size in SIZES.items()
    }
    special["nsmc"] |= encoder_fields(options.korean)
    encoder = encoder_fields(options.encoder)
    return Plan(**encoder, data=str(options.data), tasks=list(SIZES), seeds=SEEDS, special=special)


def with_new_seeds(plan: Plan) -> Plan:
    """Return the runs that compare ours with the full model once more, with seeds that no choice was made on."""
    contrast = CONTRASTS[AGAINST_FULL]
    return replace(plan, rows=[contrast.second, *contrast.first], seeds=NEW_SEEDS, tasks=[VARIED])


def ordered_runs(plan: Plan) -> list[Run]:
    """Return all runs, the most important first."""
    parts = [
        replace(plan, rows=EXITING, seeds=SEEDS[:1], tasks=FIRST),
        replace(plan, rows=EXITING, tasks=[VARIED]),
        replace(plan, rows=VARIANTS, seeds=SEEDS[:1], tasks=[VARIED]),
        with_new_seeds(plan),
        replace(plan, rows=EXITING, seeds=SEEDS[:1]),
        replace(plan, rows=STATIC, seeds=SEEDS[:1], tasks=WITH_STATIC),
        replace(plan, rows=EXITING, tasks=SEVERAL_SEEDS),
    ]
    return list({run.name: run for part in parts for run in part.runs()}.values())


def announce(progress: Progress) -> None:
    """Print which run is next."""
    print(f"run {progress.done + 1} of {progress.total}: {progress.task}", flush=True)


def write_results(plan: Plan, todo: list[Run], cache: Path, task: str) -> None:
    """Write the findings of a task from its completed runs, if there are any."""
    runs = [run for run in todo if run.task == task]
    completed = [outcome for run in runs if (outcome := Outcome(run, cache / run.name)).is_complete]
    if not completed:
        return
    for folder in (RESULTS, RUNS):
        folder.mkdir(parents=True, exist_ok=True)
    for old in RUNS.glob(f"{task}-*.json"):
        old.unlink()
    for outcome in completed:
        write_json(RUNS / f"{outcome.run.name}.json", outcome.summary)
    alone = replace(plan, tasks=[task])
    findings = compute_findings(alone, completed, VARIED if task == VARIED else None)
    if task == VARIED:
        outcomes = Outcomes(with_new_seeds(plan), completed)
        gains = compute_gains(outcomes, {AGAINST_FULL: CONTRASTS[AGAINST_FULL]}, speedups=[2.0])
        findings["kept_afresh"] = [gain.to_dict() for gain in gains]
    cells = [asdict(cell) for cell in compute_cells(alone, completed)]
    write_json(RESULTS / f"{task}.json", {"cells": cells, **findings})
    print(f"{task}: {len(completed)} of {len(runs)} runs")


def main() -> None:
    """Execute the runs and write results; with --only-write, write the results of completed runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("encoder", "korean"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("data", "cache"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    parser.add_argument("--tasks", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--only-write", action="store_true")
    options = parser.parse_args()
    plan = plan_of(options)
    todo = [run for run in ordered_runs(plan) if run.task in options.tasks]
    if not options.only_write:
        _, failed = execute_all(todo, options.cache, on_run=announce)
        print("\n".join(f"failed: {name}: {message}" for name, message in failed.items()))
    for task in options.tasks:
        write_results(plan, todo, options.cache, task)


if __name__ == "__main__":
    main()
