"""Runs of a search or a reproduction as Ray tasks, over the same cache as without Ray."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from threading import Lock
from typing import Any

from exitpoll.data.progress import OnProgress, ignore
from exitpoll.errors import InputError
from exitpoll.study.execute import execute
from exitpoll.study.run import Outcome, Run

RETRIES = 3  # of a run whose worker died; it continues from its last checkpoint


class RayRuns:
    """Executes runs on the Ray cluster that this process is connected to; called from one thread for every worker.

    Ray Tune would keep trials of its own beside the storage of Optuna and the cache of runs, which are what a search is
    resumed from, with and without Ray; so runs are plain tasks.
    """

    def __init__(self) -> None:
        """Prepare the task."""
        import ray

        self._task: Any = ray.remote(num_cpus=1, max_retries=RETRIES)(_execute)
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
            on_progress: Not called: a trial on a cluster is not stopped early.

        Returns:
            The completed run.
        """
        import ray

        with self._locks[run.name]:
            if run.base is not None:
                self(run.base, cache, keep=True)
            try:
                return ray.get(self._task.remote(run, cache.resolve(), keep, answer))
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, InputError):
                    raise error.cause from error
                raise
            except ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[0]
                raise InputError(f"{run.name} ended {RETRIES + 1} workers; too little memory? ({reason})") from error


def _execute(run: Run, cache: Path, keep: bool, answer: bool) -> Outcome:
    """Execute a run in a worker, with one thread."""
    import torch

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    return execute(run, cache, keep=keep, answer=answer)
