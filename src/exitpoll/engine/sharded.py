"""Prediction jobs in shards: planned first, run by one process or many, resumed by what is missing."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

from exitpoll.data.inputs import find_inputs
from exitpoll.data.places import to_place
from exitpoll.data.progress import OnProgress, Progress, ignore
from exitpoll.data.readers import notes_on
from exitpoll.data.writers import WRITERS, check_kind, finish
from exitpoll.decide.policy import Policy
from exitpoll.engine.arguments import to_integer
from exitpoll.engine.blocks import OnError, counter_of
from exitpoll.engine.engine import Engine
from exitpoll.engine.jobs import Counts
from exitpoll.engine.model_choice import ModelChoice, fingerprint_of_policy
from exitpoll.engine.plan import DONE, PLAN, POLICY, Plan, Request, make_plan
from exitpoll.engine.predict import Summary
from exitpoll.engine.shards import ASIDE, ShardPredictor, ShardResult, output_of, read_result
from exitpoll.errors import InputError
from exitpoll.files import check_free, check_writable, locked, partial_of, remove_folder

JOINED = "joined"  # the output as one file, before it is moved to its place


class ShardRunner(Protocol):
    """Where shards are predicted: here, in other processes, on a cluster."""

    @property
    def workers(self) -> int:
        """How many shards are predicted at a time."""

    def run(self, folder: Path, numbers: Sequence[int]) -> Generator[int, None, None]:
        """Predict shards of the job in a folder, and yield the number of each when it is done."""


class ThisProcess:
    """Predicts the shards of a job in this process, one after another."""

    workers = 1

    def __init__(self, model: ModelChoice, policy: Policy | None = None, threads: int | None = None) -> None:
        """Load a model.

        Args:
            model: The model.
            policy: Its policy; that of the model folder by default.
            threads: As for `Engine.load`.
        """
        self.engine: Engine = model.load(policy, threads)

    def run(self, folder: Path, numbers: Sequence[int]) -> Generator[int, None, None]:
        """Predict shards.

        Args:
            folder: The folder of the job.
            numbers: Which shards.

        Yields:
            The number of a shard that is done.
        """
        predictor = ShardPredictor(folder, self.engine)
        for number in numbers:
            predictor.predict(number)
            yield number


def predict_shards(
    runner: ShardRunner,
    model: ModelChoice,
    data: str,
    out: str | Path,
    *,
    policy: Policy | None = None,
    kind: str = ".parquet",
    text_column: str | None = None,
    pair_column: str | None = None,
    batch_size: int = 32,
    shard_rows: int | None = None,
    on_error: OnError = "stop",
    resume: bool = False,
    overwrite: bool = False,
    on_progress: OnProgress = ignore,
) -> Summary:
    """Predict every row of one or many files, in shards.

    Args:
        runner: Where shards are predicted.
        model: The model.
        data: A file, a folder, a glob, or a URL that fsspec knows.
        out: A CSV, TSV, JSONL or Parquet file, which gets all rows in the order of the inputs; or a folder, which gets
            one file for every shard. Either appears when it is complete.
        policy: When to exit; by default policy.json of the model folder.
        kind: The format of files in a folder.
        text_column: The column of the text; chosen by convention if not given.
        pair_column: The column of the second text of a pair.
        batch_size: The bound on memory, as for an engine.
        shard_rows: Rows in a shard, at most; by default by the number of rows and workers.
        on_error: At a row or file that cannot be read: "stop", or "skip" it and state the reason in the column `error`.
        resume: Continue an interrupted job, with any runner.
        overwrite: Replace an older output.
        on_progress: Called after every shard.

    Returns:
        How many rows were predicted.
    """
    out = Path(out)
    is_joined = out.suffix.lower() in WRITERS
    kind = out.suffix.lower() if is_joined else kind
    check_kind(Path(f"shard{kind}"))
    policy = policy or model.own_policy()
    request = Request(
        *(data, kind, is_joined, model, fingerprint_of_policy(policy), text_column, pair_column),
        batch_size=to_integer("batch_size", batch_size),
        on_error=on_error,
    )
    _check_out(out, data, is_joined=is_joined, overwrite=overwrite)
    with locked(out, "predict"):
        folder = partial_of(out)
        plan = _prepare(request, folder, policy, runner.workers, shard_rows, resume=resume)
        results = _run(runner, plan, folder, on_progress)
        _publish(plan, folder, out)
    return _summary(plan, results, policy)


def _check_out(out: Path, data: str, *, is_joined: bool, overwrite: bool) -> None:
    """Refuse an output that exists, or that would be an input of the next job."""
    if is_joined:
        check_writable(out, overwrite=overwrite)
    else:
        check_free(out, overwrite=overwrite, may_replace=lambda path: (path / PLAN).exists(), kind="output of predict")
        if not out.resolve().parent.is_dir():
            raise InputError(f"there is no folder '{out.parent}' to write '{out.name}' to")
    if Path(data).is_dir() and Path(data).resolve() in out.resolve().parents:
        raise InputError(f"'{out}' is inside the folder of the inputs; choose another output")
    if is_joined and out.exists() and out.resolve() in find_inputs(data):
        raise InputError(f"'{out}' is an input; choose another output")


def _prepare(
    request: Request, folder: Path, policy: Policy | None, workers: int, shard_rows: int | None, *, resume: bool
) -> Plan:
    """Plan a job, or load the plan of an interrupted one."""
    if folder.is_file():
        raise InputError(
            f"'{folder}' is an interrupted job of another kind; continue it as it was started or remove it"
        )
    if (folder / PLAN).exists():
        if not resume:
            message = f"'{folder}' is an interrupted job; use resume to continue it, or remove it"
            raise InputError(message, options=["resume"])
        plan = Plan.load(folder)
        plan.check_fits(folder, request)
        for leftover in folder.glob(f"*{ASIDE}"):
            leftover.unlink()
        return plan
    if folder.exists() and any(path.name not in (DONE, POLICY) and path.suffix != ASIDE for path in folder.iterdir()):
        raise InputError(f"'{folder}' exists and is not an interrupted job of exitpoll; remove it")
    if shard_rows is not None:
        to_integer("shard_rows", shard_rows)
    plan = make_plan(request, workers, shard_rows)
    (folder / DONE).mkdir(parents=True, exist_ok=True)
    if policy is not None:
        policy.save(folder / POLICY)
    plan.save(folder)  # last: a folder with a plan is a job
    return plan


def _run(runner: ShardRunner, plan: Plan, folder: Path, on_progress: OnProgress) -> list[ShardResult]:
    """Predict the shards that are missing, and return the results of all."""
    results = {number: read_result(plan, folder, number) for number in range(len(plan.shards))}
    missing = [number for number, result in results.items() if result is None]
    counts = Counts()
    for result in filter(None, results.values()):
        _add(counts, result.counts)
    try:
        with closing(runner.run(folder, missing)) as done:
            for number in done:
                results[number] = result = _finished(plan, folder, number)
                _add(counts, result.counts)
                on_progress(Progress("predicting", counts.rows, plan.rows, mean_depth=counts.mean_depth))
    except BaseException as error:
        if not counts.rows:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _disk_full(error, folder) from error
        raise
    return [_finished(plan, folder, number) for number in results]


def _finished(plan: Plan, folder: Path, number: int) -> ShardResult:
    """Return the result of a shard that a runner said to be done."""
    result = read_result(plan, folder, number)
    if result is None:
        raise InputError(f"'{folder}' has no output of {plan.shards[number]}: do all workers see this folder?")
    return result


def _add(total: Counts, counts: Counts) -> None:
    """Add counts."""
    for name, value in vars(counts).items():
        setattr(total, name, getattr(total, name) + value)


def _disk_full(error: OSError, folder: Path) -> InputError:
    """Say what to do where the disk is full."""
    message = f"'{folder}' cannot be written: {error.strerror}; shards that are done are kept: make room and use resume"
    return InputError(message, options=["resume"])


def _publish(plan: Plan, folder: Path, out: Path) -> None:
    """Move the finished output to its place."""
    if plan.request.is_joined:
        joined = folder / JOINED
        try:
            with joined.open("wb") as whole:
                for number in range(len(plan.shards)):
                    with output_of(plan, folder, number).open("rb") as part:
                        shutil.copyfileobj(part, whole)
            finish(joined, out)
        except OSError as error:
            joined.unlink(missing_ok=True)
            raise _disk_full(error, folder) from error
        remove_folder(folder)
        return
    if out.exists():
        remove_folder(out)
    folder.rename(out)
    shutil.rmtree(out / DONE)


def _summary(plan: Plan, results: Sequence[ShardResult], policy: Policy | None) -> Summary:
    """Sum up what the shards counted."""
    counts, counter = Counts(), None if policy is None else counter_of(policy)
    for result in results:
        _add(counts, result.counts)
        if counter is not None and result.profile is not None:
            counter.merge(result.profile)
    notes = list(dict.fromkeys(note for given in plan.inputs for note in _notes(given.place, given.problem)))
    shift = None if counter is None else counter.shift()
    return Summary(
        *(counts.rows, counts.skipped, counts.broken, counts.mean_depth),
        notes=(*notes, *([] if shift is None else [str(shift)])),
    )


def _notes(place: str, problem: str | None) -> Sequence[str]:
    """Return what a user should know about how an input was read."""
    file = to_place(place)
    return (problem,) if problem is not None else notes_on(file) if isinstance(file, Path) else ()
