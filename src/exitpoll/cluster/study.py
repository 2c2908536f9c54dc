"""Runs of a search or a reproduction as Ray tasks, over the same cache as without Ray."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from exitpoll.cluster.connect import end_with_node
from exitpoll.data.progress import OnProgress, Progress, ignore
from exitpoll.errors import InputError
from exitpoll.files import partial_of, release_elsewhere
from exitpoll.study.execute import execute
from exitpoll.study.run import Outcome, Run

RETRIES = 3  # of a run whose worker died; it continues from its last checkpoint
WATCH_SECONDS = 0.5  # between looks at the scores of a run


class RayRuns:
    """Executes runs on the Ray cluster that this process is connected to; called from one thread for every worker.

    Ray Tune would keep trials of its own beside the storage of Optuna and the cache of runs, which are what a search is
    resumed from, with and without Ray; so runs are plain tasks, and Optuna stops trials early, by ASHA too.
    """

    def __init__(self) -> None:
        """Prepare the task, and the actor that carries the scores of runs."""
        import ray

        self._task: Any = ray.remote(num_cpus=1, max_retries=RETRIES)(_execute)
        self._scores: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Scores).remote()
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)  # by run: trials may start from the same one

    def __call__(
        self, run: Run, cache: Path, *, keep: bool = False, answer: bool = False, on_progress: OnProgress = ignore
    ) -> Outcome:
        """Execute a run, after the one that it starts from, unless it is complete.

        Args:
            run: The run.
            cache: The folder of all runs, which all nodes of the cluster must see.
            keep: As for `execute`.
            answer: As for `execute`.
            on_progress: Called after every evaluation; if it raises an exception, the run is stopped.

        Returns:
            The completed run.
        """
        import ray

        with self._locks[run.name]:
            if run.base is not None:
                self(run.base, cache, keep=True)
            scores = None if on_progress is ignore else self._scores
            if scores is not None:
                ray.get(scores.forget.remote(run.name))
            task = self._task.remote(run, cache.resolve(), keep, answer, scores)
            if scores is not None:
                self._watch(task, run.name, on_progress)
            return _result_of(task, run.name)

    def _watch(self, task: Any, name: str, on_progress: OnProgress) -> None:
        """Report the scores of a run until it ends, and stop it if that raises an exception."""
        import ray

        try:
            is_over = False
            while not is_over:
                is_over = bool(ray.wait([task], timeout=WATCH_SECONDS)[0])
                for progress in ray.get(self._scores.take.remote(name)):
                    on_progress(progress)
        except Exception:
            ray.get(self._scores.stop.remote(name))
            ray.wait([task])  # until its next evaluation
            raise


class Scores:
    """An actor that carries the scores of runs from workers to the command, and back which runs are to be stopped."""

    def __init__(self) -> None:
        """Begin without scores."""
        self._new: defaultdict[str, list[Progress]] = defaultdict(list)
        self._stopped: set[str] = set()

    def report(self, name: str, progress: Progress) -> bool:
        """Take the scores of a run, and return whether it is to be stopped."""
        self._new[name].append(progress)
        return name in self._stopped

    def take(self, name: str) -> Sequence[Progress]:
        """Return the scores of a run that are new."""
        return self._new.pop(name, [])

    def stop(self, name: str) -> None:
        """Let a run be stopped."""
        self._stopped.add(name)

    def forget(self, name: str) -> None:
        """Forget a run, before it begins again."""
        self._new.pop(name, None)
        self._stopped.discard(name)


class _StoppedError(Exception):
    """A run is stopped by the command that waits for it."""


def _execute(run: Run, cache: Path, keep: bool, answer: bool, scores: Any) -> Outcome:
    """Execute a run in a worker, with one thread."""
    import torch

    end_with_node()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    for folder in (cache / run.name, partial_of(cache / run.name)):
        release_elsewhere(folder)  # the command gives a run to one worker: another that held a lock was lost
    report = ignore if scores is None else _Reporter(run.name, scores)
    return execute(run, cache, keep=keep, answer=answer, on_progress=report)


class _Reporter:
    """A progress callback that sends the scores of a run, and stops it where it is told to."""

    def __init__(self, name: str, scores: Any) -> None:
        self._name, self._scores = name, scores
        self._sent: Sequence[float] | None = None

    def __call__(self, progress: Progress) -> None:
        """Send progress whose scores are new."""
        import ray

        if progress.exit_scores is None or progress.exit_scores is self._sent:
            return
        self._sent = progress.exit_scores
        if ray.get(self._scores.report.remote(self._name, progress)):
            raise _StoppedError


def _result_of(task: Any, name: str) -> Outcome:
    """Return the outcome of a run, or raise its error as one that ends no other run."""
    import ray

    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, InputError):
            raise error.cause from error
        raise InputError(f"{name} failed with {type(error.cause).__name__}: {error.cause}") from error
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"{name} ended {RETRIES + 1} workers; too little memory? ({reason})") from error
