"""The thread that runs the model: it steps the scheduler, and hands answers to the event loops of their requests."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue

from numpy.typing import NDArray

from exitpoll.data.batching import Tokens
from exitpoll.decide.policy import Policy
from exitpoll.engine.arrivals import Step
from exitpoll.engine.engine import Prediction, predictions_of
from exitpoll.engine.live import MAX_WAIT, LiveScheduler
from exitpoll.engine.runtime import LoadedModel

logger = logging.getLogger("exitpoll.server")
TIME_OVER = "the time of the request is over"
SWITCH_INTERVAL = 0.0005  # seconds that a thread may keep the interpreter from others


@dataclass(frozen=True)
class Result:
    """What became of one text."""

    index: int  # in its request
    prediction: Prediction | None  # None if it expired or failed
    queue_seconds: float = 0.0  # until its first call
    model_seconds: float = 0.0  # from its first call until it left
    seen: NDArray | None = None  # (exits, classes) logits of the exits asked, on request
    error: str | None = None
    expired: bool = False
    passed: Sequence[tuple[int, float]] = ()  # layers behind which it went on, and seconds from its first call to then


Deliver = Callable[[Result], None]


@dataclass
class Job:
    """The texts of one request."""

    tokens: Tokens
    policy: Policy
    deliver: Deliver  # called in the model thread
    max_depth: int | None = None
    deadline: float | None = None
    explain: bool = False
    due: float | None = None
    max_wait: float = MAX_WAIT
    alone: bool = False  # whether its texts may share calls with no others
    numbers: Sequence[int] = ()  # of the scheduler
    is_traced: bool = False  # whether its results say when its texts went on
    is_outdated: bool = False  # whether its policy is to be let go as soon as its texts have it
    submitted: float = field(default_factory=time.monotonic)

    @property
    def due_time(self) -> float:
        """When its texts are due: as stated, or some time after they came, but at the deadline at the latest."""
        if self.due is not None:
            return self.due
        usual = self.submitted + self.max_wait
        return usual if self.deadline is None else min(usual, self.deadline)


@dataclass
class Entry:
    """A text under way: its place in a request, and when its first call began."""

    job: Job
    index: int
    started: float | None = None
    calls: list[tuple[int, float]] = field(default_factory=list)  # depth and time of later ones, if they are traced


class ModelThread:
    """A thread with a model and its scheduler."""

    def __init__(
        self,
        model: LoadedModel,
        scheduler: LiveScheduler,
        on_step: Callable[[Step, float], None],
        between_calls: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the thread, which is not started yet.

        Args:
            model: The model.
            scheduler: Its scheduler, which belongs to the thread from now on.
            on_step: Told of every call and its seconds, in the thread.
            between_calls: Called in the thread after what came of a call was delivered.
        """
        self.model, self.scheduler, self.on_step, self.between_calls = model, scheduler, on_step, between_calls
        self.entries: dict[int, Entry] = {}
        self.call_began: float | None = None  # None between calls
        self._pool_texts: Mapping[int, int] = {}  # after the last call
        self._inbox: SimpleQueue[Callable[[], bool]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="exitpoll-model", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the call that it is in."""
        self._inbox.put(lambda: False)
        self._thread.join(timeout=5.0)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def pool_texts(self) -> Mapping[int, int]:
        """Texts that wait half-way, by the layers that they have run."""
        return self._pool_texts if self.entries else {}

    @property
    def is_up(self) -> bool:
        """Whether the model is loaded, as it always is."""
        return True

    def stalled_for(self) -> float:
        """Return for how many seconds the present call has run."""
        began = self.call_began
        return 0.0 if began is None else time.monotonic() - began

    # ---- from other threads -----------------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Let the texts of a request run."""
        self._inbox.put(lambda: self._submit(job))

    def cancel(self, job: Job) -> None:
        """Drop what is under way of a request, before its next layer; dropped texts are not delivered."""
        self._inbox.put(lambda: self._cancel(job))

    def forget(self, policy: Policy) -> None:
        """Let go of a policy that no further request will name."""
        self._inbox.put(lambda: self._forget(policy))

    # ---- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Step while there are texts; wait for others otherwise."""
        while self._read_inbox():
            try:
                for number in self.scheduler.expire():
                    self._finish(number, error=TIME_OVER, expired=True)
                if self.scheduler.texts:
                    self._step()
            except Exception:  # a defect: whatever is under way fails, and what comes later is answered
                logger.exception("the scheduler failed")
                self._start_over()

    def _start_over(self) -> None:
        """Fail all texts, and go on with an empty scheduler."""
        self.call_began = None
        self.scheduler = replace(self.scheduler)
        for number in list(self.entries):
            self._finish(number, error="the server failed on this text")

    def _read_inbox(self) -> bool:
        """Do what other threads asked for; wait for it if there is nothing else to do."""
        self.between_calls()
        goes_on = True
        if not self.scheduler.texts:
            goes_on = self._inbox.get()()
        with suppress(Empty):
            while True:
                goes_on &= self._inbox.get_nowait()()
        return goes_on

    def _step(self) -> None:
        """Run one call, and deliver what came of it."""
        self.call_began = before = time.monotonic()
        step = self.scheduler.step()
        self.call_began = None
        seconds = time.monotonic() - before
        for number in step.numbers:
            entry = self.entries.get(number)
            if entry is not None and entry.started is None:
                entry.started = before
            elif entry is not None and entry.job.is_traced:
                entry.calls.append((step.depth, before))
        self._pool_texts = self.scheduler.pool_texts()
        self.on_step(step, seconds)
        for departure in step.departures:
            for row, (number, prediction) in enumerate(predictions_of(self.model, departure)):
                self._finish(number, prediction, None if departure.seen is None else departure.seen[row])
        for failure in step.failures:
            self._finish(failure.number, error=f"the model failed on this text: {failure.error}")

    def _submit(self, job: Job) -> bool:
        """Hand texts to the scheduler."""
        try:
            job.numbers = self.scheduler.submit(
                job.tokens,
                job.policy,
                job.max_depth,
                job.deadline,
                explain=job.explain,
                due=job.due_time,
                alone=job.alone,
            )
        except Exception as error:  # a policy that cannot be prepared must not end the thread
            for index in range(len(job.tokens["input_ids"])):
                job.deliver(Result(index, None, error=str(error)))
            return True
        for index, number in enumerate(job.numbers):
            self.entries[number] = Entry(job, index)
        return True

    def _cancel(self, job: Job) -> bool:
        """Drop texts."""
        for number in self.scheduler.cancel(job.numbers):
            del self.entries[number]
        return True

    def _forget(self, policy: Policy) -> bool:
        """Let go of a policy."""
        self.scheduler.forget(policy)
        return True

    def _finish(
        self,
        number: int,
        prediction: Prediction | None = None,
        seen: NDArray | None = None,
        *,
        error: str | None = None,
        expired: bool = False,
    ) -> None:
        """Deliver what became of a text."""
        entry, now = self.entries.pop(number), time.monotonic()
        started = now if entry.started is None else entry.started
        queued, ran = started - entry.job.submitted, now - started
        passed = [(depth, began - started) for depth, began in entry.calls]
        entry.job.deliver(Result(entry.index, prediction, queued, ran, seen, error, expired, passed))


def post_to(loop: asyncio.AbstractEventLoop) -> Callable[[Deliver, Result], None]:
    """Return what calls a function with a result in an event loop, from any thread."""

    def post(function: Deliver, result: Result) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(function, result)

    return post


def deliver_to(loop: asyncio.AbstractEventLoop, results: asyncio.Queue) -> Deliver:
    """Return what puts results into a queue of an event loop, from any thread."""
    post = post_to(loop)
    return lambda result: post(results.put_nowait, result)
