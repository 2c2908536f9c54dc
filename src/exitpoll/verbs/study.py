"""The paper, and the whole story: search, reproduce, quickstart."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from exitpoll.console import console, errors, quieten_transformers, say
from exitpoll.errors import InputError
from exitpoll.training.methods import TrainingSettings
from exitpoll.verbs import Names, Numbers, app


@app.command
def search(
    *,
    encoder: str,
    data: str,
    out: Path,
    method: str = "ours, votes",
    seeds: Numbers = None,
    budget: int | None = None,
    limit: int | None = None,
    settings: Annotated[TrainingSettings | None, Parameter(name="*")] = None,
) -> None:
    """Search the paper's grid for the settings that are best on the calibration split; it goes on when cut off.

    The grid: batch size 16, 32; learning rate 1e-5, 2e-5, 3e-5, 5e-5; epochs 3, 4, 5; and for ours the diversity
    weight 0.1, 0.2, 0.3, 0.5; each point is a trial, done with every seed.

    Example: exitpoll search --encoder google-bert/bert-base-uncased --data trec --out trec-search --budget 20

    Args:
        encoder: A hub name or folder of a pretrained encoder.
        data: A file, a folder, a known task's name or a hub dataset's.
        out: The folder for trials.
        method: A row of the paper's tables, whose strategy scores a trial.
        seeds: The seeds; 0, 1 and 2 by default.
        budget: Do at most so many trials, chosen by Optuna; the whole grid by default.
        limit: Train on at most this many texts.
        settings: What the grid does not say.
    """
    from exitpoll.study.paper import GRID
    from exitpoll.study.plan import Plan, check_plan, check_settings, known_of, range_of, rows_named
    from exitpoll.study.search import search as search_grid

    quieten_transformers()
    check_settings(settings or TrainingSettings(), *GRID)
    [row] = rows_named([method])
    staged = {"schedule": "two-stage"} if row.settings.get("schedule") == "heads" else {}  # both are searched
    place = Path(data)
    parent, task = (str(place.parent), place.name) if place.is_dir() else (None, data)
    plan = Plan(
        **known_of(encoder),
        data=parent,
        tasks=[task],
        rows=[row],
        seeds=seeds or (0, 1, 2),
        limit=limit,
        settings=settings or TrainingSettings(),
    )
    check_plan(plan)
    found = search_grid(
        plan.run(task, replace(row, settings={**row.settings, **staged}), 0),
        row,
        range_of(data),
        out,
        seeds=plan.seeds,
        budget=budget,
        advance=lambda number, total, words: say(f"trial {number + 1} of {total}: {words}"),
    )
    say(f"best of {found.trials} trials ({found.pruned} ended early): {100 * found.score:.1f} on the calibration split")
    say(" ".join(f"--{name.replace('_', '-')} {value}" for name, value in found.settings.items()))
    say(f"'exitpoll reproduce --searched {out}' uses them for this task and method")


@app.command
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
    settings: Annotated[TrainingSettings | None, Parameter(name="*")] = None,
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
    from exitpoll.report.plots import check_installed
    from exitpoll.progress import training_bars
    from exitpoll.study.paper import BINARY, MULTICLASS
    from exitpoll.study.plan import Plan, check_plan, check_settings, check_tasks, known_of, rows_named
    from exitpoll.study.reproduce import reproduce as reproduce_all
    from exitpoll.study.reproduce import write_figures
    from exitpoll.study.search import read_best

    quieten_transformers()
    wanted = tasks or {"binary": BINARY, "multiclass": MULTICLASS}.get(what, (*BINARY, *MULTICLASS))
    check_tasks([*wanted, *([] if varied is None else [varied])], data)
    check_settings(settings or TrainingSettings())
    drawn = what in ("figures", "all")
    if drawn:
        check_installed()
    elif varied is not None:
        raise InputError(f"--varied is for figures: 'reproduce {what}' draws none")
    plan = Plan(
        **known_of(encoder),
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
    with training_bars(errors) as on_progress:
        outcomes, failed = reproduce_all(
            plan,
            out,
            with_tables=what != "figures",
            varied=trial,
            advance=lambda number, total, run: say(f"run {number + 1} of {total}: {run.name}"),
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


@app.command
def quickstart(
    *, encoder: str = "embedded", data: str = "embedded", fast: bool = False, out: Path | None = None
) -> None:
    """Run the whole story once, on real data: train, record, compare, promise, predict, export, time, report.

    Cut off and started again, it goes on with the step it was at.

    Example: exitpoll quickstart --fast

    Args:
        encoder: What to train; the one of the extra demo by default.
        data: What to train on; movie reviews of the extra demo by default.
        fast: Use fewer texts and one epoch: two minutes, and not the best of models.
        out: The folder for everything; quickstart, or quickstart-fast, by default.
    """
    from exitpoll.quickstart import answers_in_words, check_installed, prepare, steps

    folder = out or Path("quickstart-fast" if fast else "quickstart")
    check_installed(encoder)
    prepare(folder, {"encoder": encoder, "data": data, "fast": fast})
    todo = list(steps(folder, encoder=encoder, data=data, fast=fast))
    for number, step in enumerate(todo, start=1):
        done = step.makes.exists()
        console.rule(f"{number} of {len(todo)}: {step.title}{' (done before)' if done else ''}", align="left")
        say(f"$ exitpoll {shlex.join(step.words)}")
        if not done and not _run(step.words) and step.otherwise:
            say(f"so, without a promise:\n$ exitpoll {shlex.join(step.otherwise)}")
            _run(step.otherwise)
        if step.words[0] == "predict":
            for line in answers_in_words(step.makes, _layers(folder / "model")):
                say(line)
    say(f"open {todo[-1].makes.resolve()} in a browser")


def _run(words: list[str]) -> bool:
    """Run a verb, and tell whether it came to what it was to; that a promise cannot be kept is nothing to stop for."""
    try:
        app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except SystemExit as stop:
        if stop.code != 1:
            raise
        return False
    except InputError as error:
        if words[0] != "calibrate":
            raise
        say(str(error))
        return False
    return True


def _layers(model: Path) -> int:
    """Count the layers of a trained model."""
    from exitpoll.engine.loading import read_summary

    return int(read_summary(model)["layers"][-1])
