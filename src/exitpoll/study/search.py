"""Search the paper's grid of settings: by Optuna (the extra `search`), kept in SQLite, hopeless trials ended early."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from exitpoll.data.progress import OnProgress, Progress, ignore
from exitpoll.data.tasks import plain_name
from exitpoll.decide.analysis import static_exit
from exitpoll.decide.sweep import best_point
from exitpoll.errors import DivergedError, InputError, MissingExtraError
from exitpoll.files import partial_of, read_json, write_json
from exitpoll.study.execute import execute
from exitpoll.study.paper import GRID, NAMED, Row
from exitpoll.study.run import MODEL, Outcome, Run

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

STORAGE = "search.sqlite3"
BEST_FILE = "best-{task}-{row}.json"


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    settings: Mapping[str, Any]  # the best
    score: float  # its mean over seeds, on calibration texts
    trials: int  # that were done, in this session and before
    pruned: int  # of them ended early


def search(
    run: Run,
    row: Row,
    speedups: tuple[float, float],
    folder: Path,
    *,
    grid: Mapping[str, Sequence[Any]] = GRID,
    seeds: Sequence[int] = (0, 1, 2),
    budget: int | None = None,
    on_progress: OnProgress = ignore,
) -> Found:
    """Try settings, each with all seeds, and find those that are best on the calibration split.

    Args:
        run: What to train; its settings are replaced by the grid's.
        row: The method, by whose strategies a trial is scored.
        speedups: In which range of speed-ups.
        folder: Where trials are kept; a search that was cut off goes on.
        grid: The values of each setting.
        seeds: The seeds.
        budget: Do at most so many trials, each with all seeds, chosen by Optuna; all of the grid by default.
        on_progress: Called before every trial.

    Returns:
        The best settings.
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError("searching for settings", "search") from error
    if budget is not None and budget < 1:
        raise InputError(f"budget {budget} must be at least 1")
    folder.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    axes = {name: list(values) for name, values in grid.items() if _matters(name, row)}
    study = _open(run, row, axes, seeds, speedups, folder)
    if budget is None:
        for point in _left(study, axes):
            study.enqueue_trial(point)
    before = len(_done(study))  # one that was cut off counts for nothing
    left = len(_waiting(study)) if budget is None else budget - before

    def objective(trial: Trial) -> float:
        chosen = {name: trial.suggest_categorical(name, values) for name, values in axes.items()}
        settings_in_words = ", ".join(f"{name} {value}" for name, value in chosen.items())
        on_progress(Progress(settings_in_words, len(_done(study)), before + left))
        settings = replace(run.settings, **chosen)
        try:
            scores = [
                _try(replace(run, settings=replace(settings, seed=seed)), row, speedups, folder / "runs", trial, number)
                for number, seed in enumerate(seeds)
            ]
        except DivergedError as error:  # it would again
            raise optuna.TrialPruned(str(error)) from error
        return mean(scores)

    if left > 0:
        study.optimize(objective, n_trials=left)
    found = _best(study)
    file = folder / BEST_FILE.format(task=plain_name(run.task), row=row.file_name)
    write_json(file, {"task": plain_name(run.task), "row": row.name, **asdict(found)})
    return found


def read_best(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Read what searches found.

    Args:
        folder: The folder of one search or of several.

    Returns:
        The best settings by task and row.
    """
    files = sorted(folder.glob(BEST_FILE.format(task="*", row="*")))
    if not files:
        raise InputError(f"'{folder}' has no search that came to an end: 'exitpoll search --out {folder}' does one")
    found = {}
    for file in files:
        best = read_json(file) or {}
        settings = best.get("settings")
        if not isinstance(settings, dict) or not settings.keys() <= GRID.keys() or best.get("row") not in NAMED:
            raise InputError(f"'{file}' is not what a search writes")
        found[str(best.get("task")), str(best["row"])] = settings
    return found


def _open(
    run: Run,
    row: Row,
    axes: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    speedups: tuple[float, float],
    folder: Path,
) -> Study:
    """Find the study of this very search, or begin it."""
    import optuna

    what = json.dumps([run.identity, run.digests, row.name, axes, list(seeds), speedups], sort_keys=True)
    study = optuna.create_study(
        study_name=f"{run.task} {row.name} {hashlib.sha256(what.encode()).hexdigest()[:8]}",
        storage=f"sqlite:///{folder / STORAGE}",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
        direction="maximize",
        load_if_exists=True,
    )
    study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))  # goes on elsewhere than it began
    return study


def _done(study: Study) -> list[FrozenTrial]:
    """List the trials that came to an end, to a good one or early."""
    import optuna

    return study.get_trials(states=(optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED))


def _waiting(study: Study) -> list[FrozenTrial]:
    """List the trials that are still to come."""
    import optuna

    return study.get_trials(states=[optuna.trial.TrialState.WAITING])


def _left(study: Study, axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """List the points of the grid that no trial has come to an end at, or is waiting for."""
    known = [trial.params for trial in _done(study)]
    known += [trial.system_attrs["fixed_params"] for trial in _waiting(study)]
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        if point not in known:
            yield point


def _matters(name: str, row: Row) -> bool:
    """Whether a setting makes a difference to a method: λ to ours alone."""
    return name != "diversity_weight" or (row.method == "ensemble" and row.share is None)


def _try(run: Run, row: Row, speedups: tuple[float, float], cache: Path, trial: Trial, number: int) -> float:
    """Do the run of one seed, unless its scores so far are worse than those of most others at that point."""
    import optuna

    if run.base is not None:
        execute(run.base, cache, keep=True)  # whose scores say nothing of the trial
    told: list[Any] = [None]  # the scores of which Optuna knows

    def show(progress: Progress) -> None:
        if progress.exit_scores is None or progress.exit_scores is told[0] or progress.task == "heads":
            return  # heads alone are trained in no time
        told[0] = progress.exit_scores
        percent = round(100 * progress.done / (progress.total or 1))
        last_alone = progress.task == "last"
        trial.report(progress.exit_scores[-1] if last_alone else mean(progress.exit_scores), 101 * number + percent)
        if percent < 100 and trial.should_prune():
            raise optuna.TrialPruned

    try:
        outcome = execute(run, cache, on_progress=show)
    except optuna.TrialPruned:
        shutil.rmtree(partial_of(cache / run.name / MODEL), ignore_errors=True)
        raise
    return score_of(outcome, row, speedups)


def score_of(outcome: Outcome, row: Row, speedups: tuple[float, float]) -> float:
    """Score a run on its calibration split, by the rule of the tables.

    Args:
        outcome: What the run left behind.
        row: The method.
        speedups: The range of speed-ups.

    Returns:
        The best score of its strategies in the range; of a static model, its score.
    """
    if not row.strategies:
        trace = outcome.trace("calibration")
        return static_exit(trace, -1).score(trace.metric)
    found = best_point(outcome.curves("calibration", row.strategies), *speedups)
    return float("-inf") if found is None else float(found[0].score[found[1]])


def _best(study: Study) -> Found:
    """Take the settings with the best mean over seeds."""
    import optuna

    complete = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    if not complete:
        raise InputError("no trial of the search came to an end; give it a larger budget")
    if study.best_value == float("-inf"):
        raise InputError("no trial of the search has a threshold in the range of speed-ups; give it a larger budget")
    done = len(_done(study))
    return Found(dict(study.best_params), float(study.best_value), done, done - len(complete))
