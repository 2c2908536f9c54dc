"""Shards in several processes of this machine, one engine with one thread in each; a worker that dies is replaced."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from exitpoll.engine.arguments import to_integer
from exitpoll.engine.plan import Plan
from exitpoll.errors import InputError

ATTEMPTS = 2  # at a shard, before it is given up
ONE_THREAD = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class Processes:
    """Predicts the shards of a job in worker processes, which end with this one."""

    def __init__(self, workers: int) -> None:
        """Set how many.

        Args:
            workers: The number of processes.
        """
        self.workers = to_integer("processes", workers, at_most=1024)

    def run(self, folder: Path, numbers: Sequence[int]) -> Generator[int, None, None]:
        """Predict shards.

        Args:
            folder: The folder of the job.
            numbers: Which shards.

        Yields:
            The number of a shard that is done.
        """
        with _Pool(folder, numbers) as pool:
            for _ in range(min(self.workers, len(numbers))):
                pool.start_worker()
            yield from pool.results()


class _Worker:
    """A process that predicts one shard at a time."""

    def __init__(self, folder: Path) -> None:
        errors = None if "EXITPOLL_TRACEBACK" in os.environ else subprocess.DEVNULL
        self.process = subprocess.Popen(
            [sys.executable, "-m", "exitpoll.engine.shard_worker", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **ONE_THREAD},
        )
        self.shard: int | None = None  # what it is at work on
        self._received = b""

    def send(self, shard: int) -> None:
        """Give the worker a shard."""
        self.shard = shard
        stdin = self.process.stdin
        assert stdin is not None
        with suppress(BrokenPipeError):  # it has died: the end of its output says so
            stdin.write(b"%d\n" % shard)
            stdin.flush()

    def receive(self) -> list[dict] | None:
        """Return the messages that have come; None if the process has ended."""
        assert self.process.stdout is not None
        content = os.read(self.process.stdout.fileno(), 65536)
        if not content:
            return None
        *lines, self._received = (self._received + content).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self) -> int:
        """End the process, and return its exit code."""
        self.process.kill()
        code = self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        return code


class _Pool:
    """Workers, and the shards that are left."""

    def __init__(self, folder: Path, numbers: Sequence[int]) -> None:
        self._folder, self._plan, self._left = folder, Plan.load(folder), deque(numbers)
        self._deaths = Counter[str]()  # of workers, by what they were doing
        self._unfinished = len(numbers)
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> _Pool:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all workers."""
        for worker in self._workers():
            worker.end()
        self._selector.close()

    def _workers(self) -> list[_Worker]:
        """Return the workers that live."""
        return [cast(_Worker, key.data) for key in self._selector.get_map().values()]

    def start_worker(self) -> None:
        """Start a worker; it says when it is ready."""
        worker = _Worker(self._folder)
        assert worker.process.stdout is not None
        self._selector.register(worker.process.stdout, selectors.EVENT_READ, worker)

    def results(self) -> Iterator[int]:
        """Yield the number of every shard, as they are done."""
        while self._unfinished:
            for key, _ in self._selector.select():
                worker = cast(_Worker, key.data)
                messages = worker.receive()
                if messages is None:
                    self._selector.unregister(key.fileobj)
                    self._replace(worker)
                for message in messages or ():
                    yield from self._handle(worker, message)

    def _handle(self, worker: _Worker, message: dict) -> Iterator[int]:
        """Take a message of a worker, and give it the next shard."""
        if "error" in message:
            raise error_of(message)
        if worker.shard is not None:
            yield worker.shard
            self._unfinished -= 1
            worker.shard = None
        if self._left:
            worker.send(self._left.popleft())

    def _replace(self, worker: _Worker) -> None:
        """Start a new worker in place of one that died, and let its shard be done once more."""
        code, shard = worker.end(), worker.shard
        if shard is None and not self._left:
            return  # it had done its part
        where = "loading the model" if shard is None else str(self._plan.shards[shard])
        self._deaths[where] += 1
        if self._deaths[where] >= ATTEMPTS:
            raise InputError(f"{where} ended {ATTEMPTS} worker processes (exit code {code}); too little memory?")
        if shard is not None:
            self._left.appendleft(shard)
        self.start_worker()


def error_of(message: dict) -> Exception:
    """Return the error that a worker met.

    Args:
        message: What `describe_error` returned there.
    """
    if message.get("errno") is not None:
        return OSError(message["errno"], message["error"])
    return InputError(message["error"], options=message.get("options", ()))
