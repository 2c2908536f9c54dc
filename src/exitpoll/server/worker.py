"""A model process: it reads texts from the front, runs them in a model thread, and sends back what became of them."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from exitpoll.decide.policy import Policy
from exitpoll.engine.arrivals import Step
from exitpoll.engine.costs import CallCosts
from exitpoll.engine.live import LiveScheduler
from exitpoll.engine.loading import load_model
from exitpoll.errors import InputError
from exitpoll.server.board import Board
from exitpoll.server.frames import (
    NUMBER,
    Kind,
    frame,
    pack_call,
    pack_result,
    read_text,
    take_frames,
)
from exitpoll.server.model_thread import SWITCH_INTERVAL, Job, ModelThread, Result

CHUNK = 1 << 16  # bytes that are read at a time
PR_SET_PDEATHSIG = 1  # of Linux


@dataclass
class SentJob(Job):
    """A text, and the number that the front knows it by."""

    sent: int = 0


class Worker:
    """The model of a process, and its connection to the front."""

    def __init__(self, connection: socket.socket, board: Board) -> None:
        """Load the model that the front names.

        Args:
            connection: To the front.
            board: Shows the front which texts are in a call.
        """
        self.connection, self.board = connection, board
        self.frames = _frames(connection)
        _, content = next(self.frames, (None, None))
        if content is None:
            raise InputError("the front has ended")
        told = json.loads(content)
        self.model = load_model(told["folder"], **told["options"])
        scheduler = LiveScheduler(self.model.runtime, CallCosts(**told["costs"]), on_call=self._on_call)
        self.thread = ModelThread(self.model, scheduler, self._on_step, self._between_calls)
        self.policies: dict[int, Policy] = {}
        self.jobs: dict[int, SentJob] = {}
        self._unsent = bytearray()  # of the model thread

    def run(self) -> None:
        """Do what the front says until it ends."""
        self.thread.start()
        self.connection.sendall(frame(Kind.READY, self.model.runtime.fingerprint.encode()))
        for kind, content in self.frames:
            if kind is Kind.TEXT:
                self._submit(content)
            elif kind is Kind.POLICY:
                number = NUMBER.unpack_from(content)[0]
                self.policies[number] = Policy(**json.loads(content[NUMBER.size :]))
            elif kind is Kind.FORGET:
                self.thread.forget(self.policies.pop(NUMBER.unpack(content)[0]))
            elif kind is Kind.CANCEL:
                job = self.jobs.pop(NUMBER.unpack(content)[0], None)
                if job is not None:
                    self.thread.cancel(job)

    def _submit(self, content: bytes) -> None:
        """Let a text run."""
        text = read_text(content)
        job = SentJob(
            {name: [ids] for name, ids in text.tokens.items()},
            self.policies[text.policy],
            lambda result: self._deliver(text.number, result),
            text.max_depth,
            text.deadline,
            text.explain,
            text.due,
            alone=text.alone,
            is_traced=text.is_traced,
            submitted=text.submitted,
            sent=text.number,
        )
        self.jobs[text.number] = job
        self.thread.submit(job)

    # ---- in the model thread ----------------------------------------------------------------------------------------

    def _deliver(self, number: int, result: Result) -> None:
        """Keep a result until the call is over."""
        self.jobs.pop(number, None)
        self._unsent += pack_result(number, result)

    def _on_call(self, numbers: Sequence[int]) -> None:
        """Show which texts are in a call."""
        jobs = (self.thread.entries[number].job for number in numbers)
        self.board.begin([job.sent for job in jobs if isinstance(job, SentJob)])

    def _on_step(self, step: Step, seconds: float) -> None:
        """Tell of a call."""
        self._unsent += pack_call(step, seconds, self.thread.pool_texts)

    def _between_calls(self) -> None:
        """Send what there is to send."""
        if self._unsent:
            with suppress(OSError):  # the front has ended, which the other thread learns too
                self.connection.sendall(self._unsent)
            self._unsent.clear()
        self.board.end()


def _frames(connection: socket.socket) -> Iterator[tuple[Kind, bytes]]:
    """Read frames until the connection is closed."""
    received = bytearray()
    while True:
        try:
            data = connection.recv(CHUNK)
        except ConnectionError:
            return
        if not data:
            return
        received += data
        yield from take_frames(received)


def die_with(parent: int) -> None:
    """Let this process be killed when its parent ends, where the system can: Linux.

    Elsewhere, and if the parent has ended already, the end of the connection ends it.

    Args:
        parent: The process id of the parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    """Run a model process: its arguments are the descriptors of connection and board, and its parent."""
    connection, board, parent = map(int, sys.argv[-3:])
    die_with(parent)
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # the front decides when to end, after it has drained
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        Worker(socket.socket(fileno=connection), Board(board)).run()
    except ConnectionError:  # the front has ended
        os._exit(0)
    except Exception as error:
        sys.stderr.write(f"exitpoll: a model process cannot start: {error}\n")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # at once, even if a call hangs
