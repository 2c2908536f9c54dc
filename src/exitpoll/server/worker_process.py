"""A model process as the front knows it: its connection, its board, and the texts that it has."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from exitpoll.decide.policy import Policy
from exitpoll.server.board import Board, open_board
from exitpoll.server.frames import NUMBER, Kind, SentText, frame, pack_text, take_frames
from exitpoll.server.model_thread import Job

CHUNK = 1 << 18  # bytes that are read at a time
MAIN = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from exitpoll.server.worker import main; main()"


@dataclass(eq=False)
class Pending:
    """A text under way."""

    number: int
    job: Job
    index: int
    layer_tokens: int
    crashes: int = 0  # of processes that had it, in their call or not
    suspicions: int = 0  # of these, while it was in their call
    kills: int = 0  # of processes from outside, while it was in their call
    process: WorkerProcess | None = None  # that has it; None while none is up


class WorkerProcess:
    """A process and its texts; for one thread, which must live as long as the process is to live."""

    def __init__(self, model: bytes) -> None:
        """Start a process.

        Args:
            model: The frame that tells it what to load.
        """
        self.connection, theirs = socket.socketpair()
        self.connection.setblocking(False)
        descriptor = open_board()
        self.board = Board(descriptor)
        flags = ["-I"] * sys.flags.isolated + ["-S"] * sys.flags.no_site
        words = [json.dumps(sys.path), str(theirs.fileno()), str(descriptor), str(os.getpid())]
        try:
            self.process = subprocess.Popen(
                [sys.executable, *flags, "-c", MAIN, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), descriptor),
                start_new_session=True,  # an interrupt of the terminal is for the front
            )
        finally:
            theirs.close()
            os.close(descriptor)
        self.is_ready = self.is_condemned = False  # condemned: killed by the front
        self.texts: dict[int, Pending] = {}
        self.layer_tokens = 0  # of these texts
        self.pool_texts: dict[int, int] = {}  # of these that wait half-way, by depth
        self.policies: set[int] = set()  # numbers of those that it knows
        self._received, self.unsent = bytearray(), bytearray(model)

    def send_text(self, text: Pending, policy: int) -> None:
        """Hand a text to the process; a text that was in a call that killed another is alone in its calls.

        Args:
            text: The text.
            policy: The number of its policy.
        """
        job = text.job
        if policy not in self.policies:
            self.unsent += _policy_frame(policy, job.policy)
            self.policies.add(policy)
        tokens = {name: column[text.index] for name, column in job.tokens.items()}
        sent = SentText(
            text.number,
            policy,
            tokens,
            job.max_depth,
            job.due_time,
            job.deadline,
            job.submitted,
            job.explain,
            alone=text.suspicions + text.kills > 0,
            is_traced=job.is_traced,
        )
        self.unsent += pack_text(sent)
        self.texts[text.number], text.process = text, self
        self.layer_tokens += text.layer_tokens

    def take(self, number: int) -> Pending | None:
        """Take back a text that has been answered, or is to be; None if the process does not have it any more."""
        text = self.texts.pop(number, None)
        if text is not None:
            self.layer_tokens -= text.layer_tokens
            text.process = None
        return text

    def cancel(self, number: int) -> None:
        """Let the process drop a text."""
        self.take(number)
        self.unsent += frame(Kind.CANCEL, NUMBER.pack(number))

    def forget(self, policy: int) -> None:
        """Let the process drop a policy."""
        if policy in self.policies:
            self.policies.remove(policy)
            self.unsent += frame(Kind.FORGET, NUMBER.pack(policy))

    def flush(self) -> None:
        """Send as much as the connection takes."""
        try:
            while self.unsent:
                del self.unsent[: self.connection.send(self.unsent)]
        except BlockingIOError:
            return
        except OSError:  # it has died, which reading will tell
            self.unsent.clear()

    def read(self) -> Iterator[tuple[Kind, bytes]]:
        """Read frames; EOFError if the process has ended, and all that it sent has been read."""
        try:
            data = self.connection.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        self._received += data
        yield from take_frames(self._received)

    def kill(self) -> None:
        """Kill the process, because of what it does."""
        self.is_condemned = True
        self.process.kill()

    def close(self, patience: float = 0.0) -> int:
        """End the process, and wait for it.

        Args:
            patience: Seconds that it has to end by itself.

        Returns:
            Its exit code.
        """
        self.connection.close()
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.wait()

    @property
    def was_killed_from_outside(self) -> bool:
        """Whether somebody else has ended it: no text raises SIGKILL by itself, though one may use up the memory."""
        return self.process.returncode == -signal.SIGKILL and not self.is_condemned


def _policy_frame(number: int, policy: Policy) -> bytes:
    """Return the frame of a policy; its certificate decides nothing."""
    content = {name: value for name, value in replace(policy, certificate=None).to_dict().items() if name != "version"}
    return frame(Kind.POLICY, NUMBER.pack(number) + json.dumps(content).encode())
