"""The paper at a size that two processor cores can do: which tasks, how many texts, which methods, seeds and variants.

    python experiments/reproduce.py --encoder gte-small --korean albert-kor-base --data data --cache runs

`--data` has a folder for each task. Every run is kept in `--cache` by its settings, so that a job that was cut off goes
on; on a graphics card, `exitpoll reproduce all` does it at full size. Writes experiments/results/reproduce/.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from exitpoll.methods import TrainingSettings
from exitpoll.model import read_config
from exitpoll.paper import ROWS, VARIANTS, Row
from exitpoll.reproducing import Plan
from exitpoll.runs import Outcome, Run, execute

STATIC = [row for row in ROWS if row.share is not None and row.name != "full model"]
EXITING = [row for row in ROWS if row not in STATIC]


@dataclass(frozen=True)
class Size:
    """How much of a task is trained on."""

    epochs: int
    limit: int | None = None  # of training texts
    batch_size: int = 32
    start_limit: int | None = None


SIZES = {
    "trec": Size(3),
    "sst2": Size(1, limit=20_000),
    "agnews": Size(2, limit=4_000),
    "mrpc": Size(2, batch_size=16),
    "cola": Size(2),
    "nsmc": Size(2, limit=2_500, batch_size=16),
    "sst5": Size(2, limit=6_000),
    "rte": Size(2, batch_size=16, start_limit=6_000),
}
SEVERAL_SEEDS = ("trec", "mrpc")
WITH_STATIC = ("trec", "cola", "mrpc")
VARIED = "trec"
HELD_OUT = 2_500  # at most so many calibration texts, and so many test texts


def plan_of(task: str, options: argparse.Namespace, rows: list[Row], seeds: tuple[int, ...] = (0,)) -> Plan:
    """Say what to do for a task."""
    size, encoder = SIZES[task], options.korean if task == "nsmc" else options.encoder
    return Plan(
        encoder,
        read_config(encoder).num_hidden_layers,
        data=str(options.data),
        tasks=[task],
        rows=rows,
        seeds=seeds,
        limit=size.limit,
        held_out=HELD_OUT,
        start_limit=size.start_limit,
        settings=TrainingSettings(epochs=size.epochs, batch_size=size.batch_size, logs_per_epoch=2),
    )


def plans(options: argparse.Namespace) -> Iterator[Plan]:
    """List what to do, what matters most first."""
    for task in SIZES:
        yield plan_of(task, options, EXITING)
    for task in WITH_STATIC:
        yield plan_of(task, options, STATIC)
    for task in SEVERAL_SEEDS:
        yield plan_of(task, options, EXITING, (1, 2))
    yield plan_of(VARIED, options, list(VARIANTS))


def main() -> None:
    """Do what is left to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("encoder", "korean"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("data", "cache"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    options = parser.parse_args()
    todo: dict[str, Run] = {run.name: run for plan in plans(options) for run in plan.runs()}
    bases = {run.base.name for run in todo.values() if run.base is not None}
    done: list[Outcome] = []
    for number, run in enumerate(todo.values(), start=1):
        print(f"run {number} of {len(todo)}: {run.name}", flush=True)
        done.append(execute(run, options.cache, keep=run.name in bases))


if __name__ == "__main__":
    main()
