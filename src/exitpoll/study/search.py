"""Search the paper's grid of settings with Optuna (the extra `search`): kept in SQLite, bad trials stopped early."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Literal

from exitpoll.data.progress import OnProgress, Progress, ignore
from exitpoll.data.tasks import plain_name
from exitpoll.decide.analysis import static_exit
from exitpoll.decide.sweep import best_point
from exitpoll.errors import DivergedError, InputError, MissingExtraError
from exitpoll.files import locked, partial_of, read_json, write_json
from exitpoll.study.execute import Executor, execute, threads
from exitpoll.study.paper import GRID, ROWS_BY_NAME, Overrides, TableRow
from exitpoll.study.run import MODEL, Outcome, Run

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.pruners import BasePruner
    from optuna.trial import FrozenTrial

STORAGE = "search.sqlite3"
BEST_FILE = "best-{task}-{row}.json"

Grid = Mapping[str, Sequence[float]]  # values by setting
StopRule = Literal["median", "asha", "never"]  # when a trial is stopped early

FIRST_RUNG = 10  # percent of the first seed's training after which ASHA compares trials; then at 30, 90, 270
RUNG_RATIO = 3  # between rungs; one trial in so many goes on
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchResult:
    """Result of a search."""

    settings: Overrides  # the best
    score: float  # their mean over seeds, on calibration texts
    trials: int  # that have ended, in this session and before
    pruned: int  # of them, stopped early


def search(
    run: Run,
    row: TableRow,
    speedups: tuple[float, float],
    folder: Path,
    *,
    grid: Grid = GRID,
    seeds: Sequence[int] = (0, 1, 2),
    budget: int | None = None,
    stop: StopRule = "median",
    executor: Executor | None = None,
    workers: int = 1,
    on_progress: OnProgress = ignore,
) -> SearchResult:
    """Try settings, with all seeds, and return those that are best on the calibration split.

    Args:
        run: What to train; its settings are replaced by the grid's.
        row: The method, by whose strategies a trial is scored.
        speedups: The range of speed-ups in which it is scored.
        folder: Where trials are kept; an interrupted search is resumed.
        grid: The values by setting.
        seeds: The seeds.
        budget: Run at most this many trials, chosen by Optuna; the whole grid by default.
        stop: When a trial is stopped early: "median" if it is worse than half of those before it at the same step,
            "asha" if it is not in the best third of those that came as far (asynchronous successive halving), or
            "never".
        executor: What executes a run, called in threads; a trial that fails ends alone. By default `execute`, in this
            thread, where an error ends the search.
        workers: How many trials are run at a time.
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
    grid = {name: list(values) for name, values in grid.items() if _applies(name, row)}
    with locked(folder / STORAGE, "search"):
        study = _open_study(run, row, grid, seeds, speedups, folder)
        study.pruner = _pruner(stop)
        _run_trials(study, run, row, grid, seeds, speedups, folder, budget, executor or execute, workers, on_progress)
        result = _best(study)
        path = folder / BEST_FILE.format(task=plain_name(run.task), row=row.file_name)
        write_json(path, {"task": plain_name(run.task), "row": row.name, **asdict(result)})
    return result


def _run_trials(
    study: Study,
    run: Run,
    row: TableRow,
    grid: Grid,
    seeds: Sequence[int],
    speedups: tuple[float, float],
    folder: Path,
    budget: int | None,
    executor: Executor,
    workers: int,
    on_progress: OnProgress,
) -> None:
    """Run the trials that are left."""
    import optuna

    if budget is None:
        for point in _missing_points(study, grid):
            study.enqueue_trial(point)
    before = len(_ended(study))  # an interrupted trial does not count
    left = len(_waiting(study)) if budget is None else budget - before

    def objective(trial: Trial) -> float:
        settings: Overrides = {name: trial.suggest_categorical(name, values) for name, values in grid.items()}
        description = ", ".join(f"{name} {value}" for name, value in settings.items())
        on_progress(Progress(description, len(_ended(study)), before + left))
        try:
            scores = [
                _score_run(
                    replace(run, settings=replace(run.settings, **{**settings, "seed": seed})),
                    row,
                    speedups,
                    folder / "runs",
                    executor,
                    _TrialReporter(trial, number),
                )
                for number, seed in enumerate(seeds)
            ]
        except DivergedError as error:  # it would diverge again
            raise optuna.TrialPruned(str(error)) from error
        return mean(scores)

    if left > 0 and executor is execute and workers == 1:
        study.optimize(objective, n_trials=left)
    elif left > 0:
        run_together(study, objective, grid, left, workers)


def run_together(study: Study, objective: Callable[[Trial], float], grid: Grid, trials: int, workers: int) -> None:
    """Run several trials at a time, in threads; a trial that fails ends alone.

    Optuna's own threads seed its sampler anew. Here trials are chosen in turn, so that as long as Optuna chooses at
    random, for the first ten, they are those of a search with one worker.

    Args:
        study: The study, whose sampler chooses.
        objective: Runs a trial and returns its score.
        grid: The values by setting.
        trials: How many.
        workers: How many at a time.
    """
    from optuna.distributions import BaseDistribution, CategoricalDistribution

    choices: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(list(values)) for name, values in grid.items()
    }
    running: set[Future[None]] = set()
    with threads(workers) as pool:
        for _ in range(trials):
            if len(running) == workers:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    future.result()
            running.add(pool.submit(_run_trial, study, study.ask(choices), objective))
        for future in running:
            future.result()


def _run_trial(study: Study, trial: Trial, objective: Callable[[Trial], float]) -> None:
    """Run one of several trials; if it fails, it ends alone."""
    import optuna

    try:
        study.tell(trial, objective(trial))
    except optuna.TrialPruned:
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    except InputError as error:
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        logger.warning("a trial failed and will be repeated by the next search: %s", error)


def read_best(folder: Path) -> dict[tuple[str, str], Overrides]:
    """Read the results of searches.

    Args:
        folder: The folder of one search or of several.

    Returns:
        The best settings by task and row.
    """
    paths = sorted(folder.glob(BEST_FILE.format(task="*", row="*")))
    if not paths:
        raise InputError(f"'{folder}' has no completed search; run 'exitpoll search --out {folder}' first")
    settings_by_row: dict[tuple[str, str], Overrides] = {}
    for path in paths:
        best = read_json(path) or {}
        settings = best.get("settings")
        if not isinstance(settings, dict) or not settings.keys() <= GRID.keys() or best.get("row") not in ROWS_BY_NAME:
            raise InputError(f"'{path}' is not a result of 'exitpoll search'; remove it")
        settings_by_row[str(best.get("task")), str(best["row"])] = settings
    return settings_by_row


def _open_study(
    run: Run, row: TableRow, grid: Grid, seeds: Sequence[int], speedups: tuple[float, float], folder: Path
) -> Study:
    """Load the Optuna study of this search, or create it."""
    import optuna

    identity = json.dumps([run.identity, run.digests, row.name, grid, list(seeds), speedups], sort_keys=True)
    study = optuna.create_study(
        study_name=f"{run.task} {row.name} {hashlib.sha256(identity.encode()).hexdigest()[:8]}",
        storage=f"sqlite:///{folder / STORAGE}",
        direction="maximize",
        load_if_exists=True,
    )
    study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))  # a resumed search draws other points
    return study


def _pruner(stop: StopRule) -> BasePruner:
    """Return what decides whether a trial is stopped early."""
    from optuna import pruners

    if stop == "asha":
        return pruners.SuccessiveHalvingPruner(min_resource=FIRST_RUNG, reduction_factor=RUNG_RATIO)
    return pruners.NopPruner() if stop == "never" else pruners.MedianPruner(n_startup_trials=4)


def _ended(study: Study) -> list[FrozenTrial]:
    """Return the trials that were completed or pruned."""
    import optuna

    return study.get_trials(states=(optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED))


def _waiting(study: Study) -> list[FrozenTrial]:
    """Return the trials that are enqueued."""
    import optuna

    return study.get_trials(states=[optuna.trial.TrialState.WAITING])


def _missing_points(study: Study, grid: Grid) -> Iterator[dict[str, float]]:
    """Yield the points of the grid for which no trial has ended or is enqueued."""
    known = [trial.params for trial in _ended(study)]
    known += [trial.system_attrs["fixed_params"] for trial in _waiting(study)]
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        if point not in known:
            yield point


def _applies(name: str, row: TableRow) -> bool:
    """Return whether a setting has an effect on a method: λ has one only on ours."""
    return name != "diversity_weight" or (row.method == "ensemble" and row.share is None)


class _TrialReporter:
    """A progress callback that reports scores to Optuna, and stops a trial that is worse than most others."""

    def __init__(self, trial: Trial, number: int) -> None:
        """Start without scores.

        Args:
            trial: The trial.
            number: Which of its seeds is being run; Optuna's steps are percents of all of them.
        """
        self.trial, self.number = trial, number
        self.reported: Sequence[float] | None = None

    def __call__(self, progress: Progress) -> None:
        """Report the scores of every exit when they are new."""
        import optuna

        scores = progress.exit_scores
        if scores is None or scores is self.reported or progress.task == "heads":
            return  # training only heads takes little time
        self.reported = scores
        percent = round(100 * progress.done / (progress.total or 1))
        self.trial.report(scores[-1] if progress.task == "last" else mean(scores), 101 * self.number + percent)
        if percent < 100 and self.trial.should_prune():
            raise optuna.TrialPruned


def _score_run(
    run: Run, row: TableRow, speedups: tuple[float, float], cache: Path, executor: Executor, reporter: _TrialReporter
) -> float:
    """Execute the run of one seed and score it, unless the trial is pruned on the way."""
    import optuna

    if run.base is not None:
        executor(run.base, cache, keep=True)  # its scores are not those of the trial
    try:
        outcome = executor(run, cache, on_progress=reporter)
    except optuna.TrialPruned:
        shutil.rmtree(partial_of(cache / run.name / MODEL), ignore_errors=True)
        raise
    return score_of(outcome, row, speedups)


def score_of(outcome: Outcome, row: TableRow, speedups: tuple[float, float]) -> float:
    """Score a run on its calibration split, by the rule of the tables.

    Args:
        outcome: The completed run.
        row: The method.
        speedups: The range of speed-ups.

    Returns:
        The best score of its strategies in the range, -inf if there is none; of a static model, its score.
    """
    if not row.strategies:
        trace = outcome.trace("calibration")
        return static_exit(trace, -1).score(trace.metric)
    best = best_point(outcome.curves("calibration", row.strategies), *speedups)
    return float("-inf") if best is None else float(best[0].score[best[1]])


def _best(study: Study) -> SearchResult:
    """Return the settings with the best mean over seeds."""
    import optuna

    complete = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    if not complete:
        raise InputError("no trial of the search was completed; give it a larger budget")
    if study.best_value == float("-inf"):
        raise InputError("no trial of the search has a threshold in the range of speed-ups; give it a larger budget")
    ended = len(_ended(study))
    return SearchResult(dict(study.best_params), float(study.best_value), ended, ended - len(complete))
