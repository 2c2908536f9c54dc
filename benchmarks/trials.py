"""Seconds that a trial of a search costs on Ray beside its training: as a task of `exitpoll search`, and in Ray Tune.

python benchmarks/trials.py [--trials 16] [--seconds 0.2]

A trial imports torch and sleeps; two run at a time. Ray Tune chooses by Optuna and has ASHA as its scheduler.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import optuna
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

from common import write_results
from exitpoll.cluster.connect import connected
from exitpoll.study.search import run_together

WORKERS = 2
RATES = {"learning_rate": [1e-5, 2e-5, 3e-5, 5e-5]}


def train(settings: Mapping[str, float], seconds: float) -> float:
    """Stand for a training."""
    import torch

    time.sleep(seconds)
    return float(torch.tensor(settings["learning_rate"]))


def as_tasks(trials: int, seconds: float, folder: str) -> None:
    """Run trials as tasks, over Optuna's storage."""
    task: Any = ray.remote(num_cpus=1)(train)
    study = optuna.create_study(storage=f"sqlite:///{folder}/search.sqlite3")
    run_together(study, lambda trial: ray.get(task.remote(trial.params, seconds)), RATES, trials, WORKERS)


def in_tune(trials: int, seconds: float, folder: str) -> None:
    """Run trials in Ray Tune."""

    def trainable(settings: dict[str, float]) -> None:
        tune.report({"score": train(settings, seconds)})

    chosen = tune.TuneConfig(
        metric="score",
        mode="max",
        search_alg=OptunaSearch(),
        scheduler=ASHAScheduler(),
        num_samples=trials,
        max_concurrent_trials=WORKERS,
    )
    space = {name: tune.choice(values) for name, values in RATES.items()}
    limited = tune.with_resources(trainable, {"cpu": 1})
    config = tune.RunConfig(storage_path=folder, verbose=0)
    tune.Tuner(limited, param_space=space, tune_config=chosen, run_config=config).fit()


def main() -> None:
    """Time both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a trial")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    own = arguments.trials * arguments.seconds / WORKERS
    beside: dict[str, list[float]] = {"tasks": [], "Ray Tune": []}
    with connected("local", WORKERS):
        for _ in range(arguments.rounds):
            for name, run in {"tasks": as_tasks, "Ray Tune": in_tune}.items():
                with tempfile.TemporaryDirectory() as folder:
                    started = time.perf_counter()
                    run(arguments.trials, arguments.seconds, folder)
                    beside[name].append(round((time.perf_counter() - started - own) / arguments.trials, 3))
    write_results("trials", {"trials": arguments.trials, "seconds": arguments.seconds, "beside_seconds": beside})


if __name__ == "__main__":
    main()
