"""Shards on Ray: one actor with one CPU and one thread for every worker; an actor that dies is replaced."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from exitpoll.engine.plan import Plan
from exitpoll.engine.processes import ONE_THREAD, error_of
from exitpoll.engine.shard_worker import describe_error
from exitpoll.errors import InputError

ATTEMPTS = 3  # at a shard: nodes of a cluster come and go
START_SECONDS = 120.0  # for the first actor to start


class ShardActor:
    """Predicts shards of a job, one at a time; the model is loaded for the first."""

    def __init__(self, folder: Path) -> None:
        """Remember the job.

        Args:
            folder: Its folder, which all nodes must see.
        """
        os.environ.update(ONE_THREAD)
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
                self._predictor = ShardPredictor(self._folder)
            self._predictor.predict(number)
        except Exception as error:
            return describe_error(error)
        return {"done": number}


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
        self._deaths = Counter[str]()  # of actors, by what they were doing

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

        has_started = False
        while self._unfinished:
            done, _ = ray.wait(list(self._calls), timeout=None if has_started else START_SECONDS)
            if not done:
                raise _none_started()
            has_started = True
            actor, shard = self._calls.pop(done[0])
            try:
                message = ray.get(done[0])
            except ray.exceptions.RayError as error:
                self._replace(shard, error)
                continue
            if "error" in message:
                raise error_of(message)
            if shard is not None:
                self._unfinished -= 1
                yield shard
            if self._left:
                shard = self._left.popleft()
                self._calls[actor.predict.remote(shard)] = actor, shard

    def _replace(self, shard: int | None, error: Exception) -> None:
        """Start a new actor in place of one that died, and let its shard be done again."""
        where = "starting workers" if shard is None else str(self._plan.shards[shard])
        self._deaths[where] += 1
        if self._deaths[where] >= ATTEMPTS:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"{where} ended {ATTEMPTS} workers; too little memory? ({reason})") from error
        if shard is not None:
            self._left.appendleft(shard)
        self.start_actor()


def _none_started() -> InputError:
    """Say how many CPUs are free where no actor could start."""
    import ray

    total, free = (resources.get("CPU", 0) for resources in (ray.cluster_resources(), ray.available_resources()))
    return InputError(
        f"no worker has started within {START_SECONDS:.0f} s: the cluster has {total:.0f} CPUs, of which {free:.0f} "
        "are free; wait for its other work to end"
    )
