"""Search the paper's grid of settings: by Optuna (the extra `search`), kept in SQLite, hopeless trials ended early."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from exitpoll.analysis import static_exit
from exitpoll.curves import best_point, sweep
from exitpoll.errors import InputError, MissingExtraError
from exitpoll.folders import partial_of
from exitpoll.study.executing import execute
from exitpoll.study.paper import GRID, Row
from exitpoll.study.runs import Outcome, Run
from exitpoll.trainer import Progress

if TYPE_CHECKING:
    from optuna import Study, Trial

STORAGE = "search.sqlite3"


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
    advance: Callable[[int, int, str], None] | None = None,
) -> Found:
    """Try settings, each with several seeds, and find those that are best on the calibration split.

    Args:
        run: What to train; its settings are replaced by the grid's.
        row: The method, by whose strategies a trial is scored.
        speedups: In which range of speed-ups.
        folder: Where trials are kept; a search that was cut off goes on.
        grid: The values of each setting.
        seeds: The seeds.
        budget: Do at most so many trials, chosen by Optuna; all of the grid by default.
        advance: Called before every trial.

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
    axes = {name: list(values) for name, values in grid.items() if _matters(name, row)} | {"seed": list(seeds)}
    sampler = optuna.samplers.GridSampler(axes, seed=0) if budget is None else optuna.samplers.TPESampler(seed=0)
    study = optuna.create_study(
        study_name=f"{run.task} {row.name}",
        storage=f"sqlite:///{folder / STORAGE}",
        sampler=sampler,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
        direction="maximize",
        load_if_exists=True,
    )
    total = _size(axes) if budget is None else budget
    ends = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    left = total - len(study.get_trials(states=ends))  # one that was cut off counts for nothing

    def objective(trial: Trial) -> float:
        chosen = {name: trial.suggest_categorical(name, values) for name, values in axes.items()}
        if advance is not None:
            advance(trial.number, total, ", ".join(f"{name} {value}" for name, value in chosen.items()))
        return _try(replace(run, settings=replace(run.settings, **chosen)), row, speedups, folder / "runs", trial)

    if left > 0:
        study.optimize(objective, n_trials=left)
    return _best(study)


def _matters(name: str, row: Row) -> bool:
    """Whether a setting makes a difference to a method: λ to ours alone."""
    return name != "diversity_weight" or (row.method == "ensemble" and row.share is None)


def _size(axes: Mapping[str, Sequence[Any]]) -> int:
    """Count the points of a grid."""
    size = 1
    for values in axes.values():
        size *= len(values)
    return size


def _try(run: Run, row: Row, speedups: tuple[float, float], cache: Path, trial: Trial) -> float:
    """Do one run, unless its scores so far are worse than those of most others at that point."""
    import optuna

    told: list[Any] = [None]  # the scores of which Optuna knows

    def show(progress: Progress) -> None:
        if progress.exit_scores is None or progress.exit_scores is told[0] or progress.stage == "heads":
            return  # heads alone are trained in no time
        told[0] = progress.exit_scores
        percent = round(100 * progress.step / progress.steps)
        trial.report(mean(progress.exit_scores), percent)
        if percent < 100 and trial.should_prune():
            raise optuna.TrialPruned

    try:
        outcome = execute(run, cache, on_progress=show)
    except optuna.TrialPruned:
        shutil.rmtree(partial_of(cache / run.name / "model"), ignore_errors=True)
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
    trace = outcome.trace("calibration")
    if not row.strategies:
        return static_exit(trace, len(trace.layers) - 1).score(trace.metric)
    found = best_point(sweep(trace, row.strategies), *speedups)
    return float("-inf") if found is None else float(found[0].score[found[1]])


def _best(study: Study) -> Found:
    """Take the settings with the best mean over seeds, of those that were tried with the most."""
    import optuna

    done = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    if not done:
        raise InputError("no trial of the search came to an end; give it a larger budget")
    scores: dict[tuple, list[float]] = defaultdict(list)
    for trial in done:
        key = tuple(sorted((name, value) for name, value in trial.params.items() if name != "seed"))
        scores[key].append(float(trial.value or 0.0))
    most = max(map(len, scores.values()))
    best = max((key for key in scores if len(scores[key]) == most), key=lambda key: mean(scores[key]))
    pruned = study.get_trials(states=[optuna.trial.TrialState.PRUNED])
    return Found(dict(best), mean(scores[best]), len(done) + len(pruned), len(pruned))
