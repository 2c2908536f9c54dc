"""The paper at a size that two processor cores can do: which tasks, how many texts, which methods, seeds and variants.

    python experiments/reproduce.py --encoder gte-small --korean albert-kor-base --data data --cache runs

`--data` has a folder for each task. Every run is kept in `--cache` by its settings, so that a job that was cut off goes
on; on a graphics card, `exitpoll reproduce all` does it at full size. What the runs of a task came to is a file of its
own in experiments/results/reproduce/, so that tasks can be run at different times (`--tasks`), and their settings and
scores go to experiments/results/runs/. `reproduce_page.py` then makes docs/results.md and its pictures of that.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from exitpoll.data.progress import Progress
from exitpoll.files import write_json
from exitpoll.study.comparisons import Runs, contests
from exitpoll.study.execute import execute_all
from exitpoll.study.paper import CONTESTS, FULL, KEPT, ROWS, VARIANTS
from exitpoll.study.plan import Plan, known_of
from exitpoll.study.reproduce import find_all
from exitpoll.study.run import RUN, Outcome, Run
from exitpoll.study.tables import as_plain, cells
from exitpoll.training.settings import TrainingSettings

RESULTS = Path(__file__).parent / "results" / "reproduce"
RUNS = Path(__file__).parent / "results" / "runs"  # which the page's links lead to
STATIC = [row for row in ROWS if row.share is not None and row.name != FULL]
EXITING = [row for row in ROWS if row not in STATIC]


@dataclass(frozen=True)
class Size:
    """How much of a task is trained on."""

    epochs: int
    limit: int | None = None  # of training texts
    batch_size: int = 32
    start_limit: int | None = None  # of the task that this one starts from
    held_out: int = 2_500  # at most so many calibration texts, and so many test texts
    looks: int = 2  # at the calibration texts, in an epoch


SIZES = {
    "trec": Size(3),
    "sst2": Size(1, limit=20_000),
    "agnews": Size(2, limit=2_500, held_out=1_500),
    "cola": Size(2, limit=5_000),
    "mrpc": Size(2, limit=1_500, batch_size=16, held_out=1_000),
    "sst5": Size(2, limit=3_000, held_out=1_000, looks=1),
    "nsmc": Size(2, limit=1_000, batch_size=16, held_out=500, looks=1),
    "rte": Size(2, limit=1_000, batch_size=16, start_limit=2_000, looks=1),
}
SEEDS = (0, 1, 2)
SEVERAL_SEEDS = ("trec", "mrpc")
WITH_STATIC = ("trec", "cola", "sst5")
PROMISED = ("trec", "sst2", "agnews")  # where half the work must cost half a point at most
VARIED = "trec"
UNSEEN = (3, 4)  # seeds run on VARIED after the rule that answers KEPT was settled, and looked at once


def plan_of(options: argparse.Namespace) -> Plan:
    """Say what to do at what size."""
    special: dict[str, dict[str, Any]] = {
        task: {
            "limit": size.limit,
            "start_limit": size.start_limit,
            "held_out": size.held_out,
            "settings": TrainingSettings(epochs=size.epochs, batch_size=size.batch_size, logs_per_epoch=size.looks),
        }
        for task, size in SIZES.items()
    }
    special["nsmc"] |= known_of(options.korean)
    return Plan(**known_of(options.encoder), data=str(options.data), tasks=list(SIZES), seeds=SEEDS, special=special)


def unseen(plan: Plan) -> Plan:
    """Say what to run to ask once more what is kept, with seeds that no choice was made on."""
    ours, full = CONTESTS[KEPT]
    assert isinstance(ours, tuple)
    return replace(plan, rows=[full, *ours], seeds=UNSEEN, tasks=[VARIED])


def ordered_runs(plan: Plan) -> list[Run]:
    """List what to do, what matters most first."""
    parts = [
        replace(plan, rows=EXITING, seeds=SEEDS[:1], tasks=PROMISED),
        replace(plan, rows=EXITING, tasks=[VARIED]),
        replace(plan, rows=VARIANTS, seeds=SEEDS[:1], tasks=[VARIED]),
        unseen(plan),
        replace(plan, rows=EXITING, seeds=SEEDS[:1]),
        replace(plan, rows=STATIC, seeds=SEEDS[:1], tasks=WITH_STATIC),
        replace(plan, rows=EXITING, tasks=SEVERAL_SEEDS),
    ]
    return list({run.name: run for part in parts for run in part.runs()}.values())


def announce(progress: Progress) -> None:
    """Print which run is next."""
    print(f"run {progress.done + 1} of {progress.total}: {progress.task}", flush=True)


def write_results(plan: Plan, todo: list[Run], cache: Path, task: str) -> None:
    """Write down what the runs of a task that are done came to, if any are."""
    runs = [run for run in todo if run.task == task]
    done = [Outcome(run, cache / run.name) for run in runs if (cache / run.name / RUN).exists()]
    if not done:
        return
    for folder in (RESULTS, RUNS):
        folder.mkdir(parents=True, exist_ok=True)
    for old in RUNS.glob(f"{task}-*.json"):
        old.unlink()
    for outcome in done:
        write_json(RUNS / f"{outcome.run.name}.json", outcome.summary)
    alone = replace(plan, tasks=[task])
    findings = find_all(alone, done, VARIED if task == VARIED else None)
    if task == VARIED:
        afresh = contests(Runs(unseen(plan), done), {KEPT: CONTESTS[KEPT]}, speedups=[2.0])
        findings["kept_afresh"] = [asdict(each) for each in afresh]
    write_json(RESULTS / f"{task}.json", {"cells": as_plain(cells(alone, done)), **findings})
    print(f"{task}: {len(done)} of {len(runs)} runs")


def main() -> None:
    """Train, and write results; with --only-write, of what is done by now."""
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
        print("\n".join(f"failed: {name}: {why}" for name, why in failed.items()))
    for task in options.tasks:
        write_results(plan, todo, options.cache, task)


if __name__ == "__main__":
    main()
