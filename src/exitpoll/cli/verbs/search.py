"""exitpoll search: search the paper's grid of hyperparameters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from exitpoll.cli.cluster import study_executor
from exitpoll.cli.console import print_as_json, quieten_transformers, remark, say, show_result
from exitpoll.cli.groups import IN_DATA, IN_METHOD, IN_MODEL, IN_OPTIMIZER
from exitpoll.cli.options import AsJson, Cluster, Data, Numbers, Out, TrainingFlags, plain_settings


def search(
    *,
    encoder: Annotated[str, IN_MODEL],
    data: Data,
    out: Out,
    method: Annotated[str, IN_METHOD] = "ours, votes",
    seeds: Annotated[Numbers, IN_OPTIMIZER] = None,
    budget: Annotated[int | None, IN_OPTIMIZER] = None,
    stop_trials: Annotated[Literal["median", "asha", "never"], IN_OPTIMIZER] = "median",
    limit: Annotated[int | None, IN_DATA] = None,
    cluster: Cluster = None,
    processes: Annotated[int | None, IN_MODEL] = None,
    settings: TrainingFlags = None,
    as_json: AsJson = False,
) -> None:
    """Search the paper's grid for the best hyperparameters.

    Trials are scored on the calibration split. The grid: batch size 16, 32; learning rate 1e-5, 2e-5, 3e-5, 5e-5;
    epochs 3, 4, 5; and for ours the diversity weight 0.1, 0.2, 0.3, 0.5. Every point is a trial, run with every seed.
    Rerun the same command after an interruption to continue.

    Example: exitpoll search --encoder google-bert/bert-base-uncased --data trec --out trec-search --budget 20

    Args:
        encoder: A pretrained encoder: a name on the hub or a folder.
        data: The data.
        out: The folder for trials.
        method: A row of the paper's tables, whose strategy scores a trial.
        seeds: The seeds; 0, 1 and 2 by default.
        budget: Run at most this many trials, chosen by Optuna; the whole grid by default.
        stop_trials: Stop a trial early that is worse than the median of those before it at the same step, or that is
            not in the best third of those that came as far (asha), or never.
        limit: Train on at most this many texts.
        cluster: Run trials on Ray, several at a time: auto for the cluster of this machine, local to start Ray here, or
            HOST:PORT.
        processes: How many trials to run at a time on the cluster; by default one for each of its CPUs.
        settings: Settings of the training that are not searched.
        as_json: Print the best settings as JSON.
    """
    from exitpoll.study.paper import GRID
    from exitpoll.study.plan import Plan, check_plan, check_training_settings, encoder_fields, range_of, rows_named
    from exitpoll.study.search import search as search_grid

    print_as_json(as_json)
    quieten_transformers()
    check_training_settings(plain_settings(settings), *GRID)
    [row] = rows_named([method])
    staged = {"schedule": "two-stage"} if row.settings.get("schedule") == "heads" else {}  # both stages are searched
    place = Path(data)
    parent, task = (str(place.parent), place.name) if place.is_dir() else (None, data)
    plan = Plan(
        **encoder_fields(encoder),
        data=parent,
        tasks=[task],
        rows=[row],
        seeds=seeds or (0, 1, 2),
        limit=limit,
        settings=plain_settings(settings),
    )
    check_plan(plan)
    with study_executor(cluster, processes) as executor:
        best = search_grid(
            plan.run(task, replace(row, settings={**row.settings, **staged}), 0),
            row,
            range_of(data),
            out,
            seeds=plan.seeds,
            budget=budget,
            stop=stop_trials,
            **executor,
            on_progress=lambda progress: remark(f"trial {progress.done + 1} of {progress.total}: {progress.task}"),
        )
    say(
        f"best of {best.trials} trials ({best.pruned} stopped early): {100 * best.score:.1f} on the calibration split",
        " ".join(f"--{name.replace('_', '-')} {value}" for name, value in best.settings.items()),
        f"'exitpoll reproduce --searched {out}' uses them for this task and method",
    )
    show_result(vars(best))
