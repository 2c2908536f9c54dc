"""Shards on Ray: one actor with one CPU and one thread for every worker; an actor that dies is replaced."""

from __future__ import annotations

import logging
import os
import platform
import time
from collections import Counter, deque
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from exitpoll.cluster.connect import end_with_node
from exitpoll.engine.plan import PLAN, Plan
from exitpoll.engine.processes import ONE_THREAD, error_of
from exitpoll.engine.shard_worker import describe_error
from exitpoll.errors import InputError

ATTEMPTS = 3  # at a shard: nodes of a cluster come and go
START_SECONDS = 120.0  # for the first actor to start
LOST_SECONDS = 300.0  # without a running actor, before a job is given up: a lost node may come back
NOTE_SECONDS = 30.0  # between notes that none is running
STARTING = "starting workers"
logger = logging.getLogger(__name__)


class ShardActor:
    """Predicts shards of a job, one at a time; the model is loaded for the first."""

    def __init__(self, folder: Path) -> None:
        """Remember the job.

        Args:
            folder: Its folder, which all nodes must see.
        """
        os.environ.update(ONE_THREAD)
        end_with_node()
        self._folder = folder
        self._predictor: Any = None

    def ready(self) -> dict[str, object]:
        """Return that the actor has started."""
        return {"ready": os.getpid()}

    def predict(self, number: int) -> dict[str, object]:
        """Predict a shard.

        Args:
            number: Which.

        Returns:
            Its number, or the error.
        """
        from exitpoll.engine.shards import ShardPredictor

        try:
            if self._predictor is None:
                self._check_folder()
                self._predictor = ShardPredictor(self._folder)
            self._predictor.predict(number)
        except Exception as error:
            return describe_error(error)
        return {"done": number}

    def _check_folder(self) -> None:
        """Refuse to work where the folder of the job is not seen; the job itself is well, and must not be removed."""
        if not (self._folder / PLAN).exists():
            raise InputError(
                f"a worker on '{platform.node()}' cannot see '{self._folder}', the folder of the job, which must be on "
                "a disk that all nodes share"
            )


class RayActors:
    """Predicts the shards of a job on the Ray cluster that this process is connected to."""

    def __init__(self, workers: int) -> None:
        """Set how many.

        Args:
            workers: The number of actors.
        """
        self.workers = workers

    def run(self, folder: Path, numbers: Sequence[int]) -> Generator[int, None, None]:
        """Predict shards.

        Args:
            folder: The folder of the job, which all nodes of the cluster must see.
            numbers: Which shards.

        Yields:
            The number of a shard that is done.
        """
        pool = _ActorPool(folder.resolve(), numbers)
        try:
            for _ in range(min(self.workers, len(numbers))):
                pool.start_actor()
            yield from pool.results()
        finally:
            pool.end()


class _ActorPool:
    """Actors, and the shards that are left."""

    def __init__(self, folder: Path, numbers: Sequence[int]) -> None:
        self._folder, self._plan, self._left = folder, Plan.load(folder), deque(numbers)
        self._unfinished = len(numbers)
        self._calls: dict[Any, tuple[Any, int | None]] = {}  # actor and shard by reference; no shard while it starts
        self._actors: list[Any] = []
        self._idle: list[Any] = []  # actors without a shard; they keep their CPU, which a new one may need
        self._deaths = Counter[str]()  # of actors, by what they were doing; at the start, one after another
        self._has_started = False
        self._last_seen = time.monotonic()  # an actor that is running

    def start_actor(self) -> None:
        """Start an actor; it gets a shard when it is ready, so that one that never starts holds none."""
        import ray

        actor = ray.remote(num_cpus=1, max_restarts=0)(ShardActor).remote(self._folder)
        self._actors.append(actor)
        self._calls[actor.ready.remote()] = actor, None

    def end(self) -> None:
        """End all actors."""
        import ray

        for actor in self._actors:
            ray.kill(actor)

    def results(self) -> Generator[int, None, None]:
        """Yield the number of every shard, as they are done."""
        import ray

        while self._unfinished:
            call = self._next_call()
            actor, shard = self._calls.pop(call)
            try:
                message = ray.get(call)
            except ray.exceptions.RayError as error:
                self._replace(shard, error)
                continue
            if shard is None:
                self._has_started = True
                del self._deaths[STARTING]
            if "error" in message:
                raise error_of(message)
            if shard is not None:
                self._unfinished -= 1
                yield shard
            self._idle.append(actor)
            self._hand_out()

    def _next_call(self) -> Any:
        """Wait for a call to end; where no actor is running, say so again and again, and give up at last."""
        import ray

        limit = LOST_SECONDS if self._has_started else START_SECONDS
        while True:
            is_running = self._is_running()
            left = self._last_seen + limit - time.monotonic()
            seconds = None if is_running else max(0.0, min(left, NOTE_SECONDS))
            done, _ = ray.wait(list(self._calls), timeout=seconds)
            if is_running:
                self._last_seen = time.monotonic()
            if done:
                return done[0]
            if left <= NOTE_SECONDS:
                raise self._none_runs(limit)
            waited = time.monotonic() - self._last_seen
            logger.warning("no worker has been running for %.0f s of at most %.0f s: %s", waited, limit, _cpus())

    def _is_running(self) -> bool:
        """Return whether an actor has started and is not known to be lost."""
        return bool(self._idle) or any(shard is not None for _, shard in self._calls.values())

    def _none_runs(self, limit: float) -> InputError:
        """Say why a job is given up."""
        if not self._has_started:
            return InputError(f"no worker has started within {limit:.0f} s: {_cpus()}; wait for its other work to end")
        remedy = "what is done is kept: use resume when there are nodes again"
        return InputError(f"no worker has been running for {limit:.0f} s: {_cpus()}; {remedy}", options=["resume"])

    def _hand_out(self) -> None:
        """Give shards that are left to actors that have none."""
        while self._left and self._idle:
            actor, shard = self._idle.pop(), self._left.popleft()
            self._calls[actor.predict.remote(shard)] = actor, shard

    def _replace(self, shard: int | None, error: Exception) -> None:
        """Let the shard of an actor that died be done again, by one that is idle or a new one."""
        where = STARTING if shard is None else str(self._plan.shards[shard])
        self._deaths[where] += 1
        if self._deaths[where] >= ATTEMPTS:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"{where} ended {ATTEMPTS} workers; too little memory? ({reason})") from error
        if shard is not None:
            self._left.appendleft(shard)
        if self._idle:
            self._hand_out()
        else:
            self.start_actor()


def _cpus() -> str:
    """Say how many CPUs are free, where no actor can start."""
    import ray

    total, free = (resources.get("CPU", 0) for resources in (ray.cluster_resources(), ray.available_resources()))
    return f"the cluster has {total:.0f} CPUs, of which {free:.0f} are free"
