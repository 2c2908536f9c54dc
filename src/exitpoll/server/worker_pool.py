"""Model processes behind the interface of a model thread: their death or a hung call loses no text but the guilty.

Every text goes to the process with the least work, in layer-tokens. When a process dies, its texts run again on
others; those that were in its call run alone from then on. A text in whose call two processes crashed or hung is
poison: it fails, and is not run a third time. A process that was killed from outside (SIGKILL) tells little about its
texts: they run again several times, since only a text that uses up the memory would be killed every time.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

from exitpoll.decide.policy import Policy
from exitpoll.engine.arrivals import Step
from exitpoll.engine.costs import CallCosts
from exitpoll.engine.live import NEVER
from exitpoll.engine.onnx_session import usable_cores
from exitpoll.engine.runtime import LoadedModel, Runtime
from exitpoll.errors import InputError
from exitpoll.server.frames import Kind, frame, read_call, read_result
from exitpoll.server.model_thread import Job, Result
from exitpoll.server.worker_process import Pending, WorkerProcess

logger = logging.getLogger("exitpoll.server")
MOST_DEFAULT = 8  # processes, unless asked for: each holds the weights
TICK = 0.25  # seconds between looks at the boards
PATIENCE = 2.0  # seconds that processes have to end
FIRST_DELAY, LONGEST_DELAY = 0.5, 10.0  # seconds before a process that could not load the model is started again
MOST_SUSPICIONS = 2  # calls with a text that crashed or hung, after which it is poison
MOST_KILLS = 5  # calls with a text that were killed from outside, after which it is poison
MOST_CRASHES = 10  # of processes with a text, whatever they did, after which it is given up
POISON = "poison: model processes died or hung while they ran this text; it is not run again"


@dataclass(frozen=True)
class RuntimeFacts:
    """What the front needs to know of a runtime that runs in other processes."""

    name: str
    packages: Sequence[str]
    exit_layers: Sequence[int]
    classes: int
    problem_type: str
    shares_layers: bool
    exits_by_itself: bool
    fingerprint: str
    threads: int
    device: str
    stops: Sequence[int] | None = None  # of a graph that exits by itself
    decisions: Mapping[str, object] | None = None


def without_weights(model: LoadedModel) -> LoadedModel:
    """Return a model that can read texts and check policies, and has no weights.

    Args:
        model: The model.

    Returns:
        The same with the facts of its runtime only.
    """
    known: dict[str, Any] = {field.name: getattr(model.runtime, field.name, None) for field in fields(RuntimeFacts)}
    facts = RuntimeFacts(**known)
    return replace(model, runtime=cast(Runtime, facts))


def default_workers() -> int:
    """Return how many processes suit this machine: one core is left for the front; 0 where there can be none."""
    if os.name != "posix":
        return 0
    return min(max(usable_cores() - 1, 1), MOST_DEFAULT)


class WorkerPool:
    """A thread that starts model processes, and hands texts and results to and fro."""

    def __init__(
        self,
        model: LoadedModel,
        costs: CallCosts,
        on_step: Callable[[Step, float], None],
        *,
        workers: int,
        stall_timeout: float,
        on_restart: Callable[[], None],
    ) -> None:
        """Prepare the processes, which are not started yet.

        Args:
            model: What `without_weights` returns.
            costs: What calls cost.
            on_step: Told of every call and its seconds, in the thread.
            workers: How many processes.
            stall_timeout: Seconds in one call after which a process is killed.
            on_restart: Told that a process has died.
        """
        origin = model.origin
        if origin is None:
            raise InputError("a model that was made in memory has no processes: set workers to 0", options=["workers"])
        if os.name != "posix":
            raise InputError(
                "model processes need sockets that can be inherited: set workers to 0", options=["workers"]
            )
        options = {name: value for name, value in vars(origin).items() if name != "folder"}
        told = {"folder": origin.folder, "options": options, "costs": asdict(costs)}
        self.model, self.on_step, self.on_restart = model, on_step, on_restart
        self.workers, self.stall_timeout = workers, stall_timeout
        self.processes: list[WorkerProcess] = []
        self.held: dict[int, Pending] = {}  # texts while no process is up
        self._told = frame(Kind.MODEL, json.dumps(told).encode())
        self._jobs: dict[int, dict[int, Pending]] = {}  # texts under way by number, by id of their job
        self._policies: dict[int, tuple[int, Policy]] = {}  # number and policy, by id
        self._next_text = self._next_policy = 0
        self._delay, self._not_before = FIRST_DELAY, 0.0
        self._lock = threading.Lock()  # over texts, policies and what is sent: requests come from another thread
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="exitpoll-workers", daemon=True)

    def start(self) -> None:
        """Start the processes."""
        self._thread.start()

    def stop(self) -> None:
        """End the processes."""
        self._is_ending = True
        self._wake()
        self._thread.join(timeout=2 * PATIENCE)
        self._waker.close()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs: processes that die or hang are replaced."""
        return self._thread.is_alive()

    @property
    def is_up(self) -> bool:
        """Whether any process is ready."""
        return any(process.is_ready for process in tuple(self.processes))

    @property
    def pool_texts(self) -> Mapping[int, int]:
        """Texts that wait half-way, by the layers that they have run: of all processes."""
        waiting = [Counter(process.pool_texts) for process in tuple(self.processes) if process.texts]
        return sum(waiting, Counter())

    def stalled_for(self) -> float:
        """Return 0: a process that hangs is killed."""
        return 0.0

    # ---- from other threads -----------------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Let the texts of a request run."""
        with self._sending():
            self._submit(job)

    def cancel(self, job: Job) -> None:
        """Drop what is under way of a request; dropped texts are not delivered."""
        with self._sending():
            self._cancel(job)

    def forget(self, policy: Policy) -> None:
        """Let go of a policy that no further request will name."""
        with self._sending():
            self._forget(policy)

    @contextmanager
    def _sending(self) -> Iterator[None]:
        """Send at once what comes of something; the thread is woken for what a connection does not take."""
        with self._lock:
            yield
            for process in self.processes:
                process.flush()
            is_all_sent = not any(process.unsent for process in self.processes)
        if not is_all_sent:
            self._wake()

    def _wake(self) -> None:
        """Wake the thread."""
        with suppress(OSError):  # it has ended
            self._waker.send(b"\0")

    # ---- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Wait for requests and processes until the end."""
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        try:
            while not self._is_ending:
                self._turn()
        finally:
            for process in self.processes:
                process.connection.close()
            for process in self.processes:
                process.close(PATIENCE)
            self.processes.clear()
            self._selector.close()
            self._woken.close()

    def _turn(self) -> None:
        """Read what there is to read, do what was asked, and send what there is to send."""
        self._start_missing()
        for process in self.processes:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if process.unsent else 0)
            if self._selector.get_key(process.connection).events != events:
                self._selector.modify(process.connection, events, process)
        for key, _ in self._selector.select(TICK):
            if key.data is None:
                self._woken.recv(1 << 12)
            else:
                self._read(key.data)
        for process in self.processes:
            if process.board.seconds_in_call() > self.stall_timeout:
                logger.error("a call of the model takes longer than %g s: its process is killed", self.stall_timeout)
                process.kill()
        with self._lock:
            for process in self.processes:
                process.flush()

    def _start_missing(self) -> None:
        """Start processes in place of those that died."""
        while len(self.processes) < self.workers and time.monotonic() >= self._not_before:
            try:
                process = WorkerProcess(self._told)
            except OSError as error:
                logger.error("a model process cannot be started: %s", error)
                self._wait_longer()
                return
            self.processes.append(process)
            self._selector.register(process.connection, selectors.EVENT_READ, process)

    def _read(self, process: WorkerProcess) -> None:
        """Do what a process says, or bury it."""
        try:
            with self._lock:
                for kind, content in process.read():
                    if kind is Kind.RESULT:
                        number, result = read_result(content, self.model)
                        self._deliver(process.take(number), result)
                    elif kind is Kind.CALL:
                        step, seconds, process.pool_texts = read_call(content)
                        self.on_step(step, seconds)
                    else:
                        self._welcome(process, content.decode())
        except EOFError:
            self._bury(process)
        except Exception:  # a defect: the process is replaced, and its texts run again
            logger.exception("a model process sent what cannot be read")
            process.kill()
            self._bury(process)

    def _welcome(self, process: WorkerProcess, fingerprint: str) -> None:
        """Use a process that has loaded its model, if it is the same model."""
        if fingerprint != self.model.runtime.fingerprint:
            logger.error("the model folder has changed: restart the server")
            process.kill()
            return
        process.is_ready, self._delay = True, FIRST_DELAY
        held, self.held = self.held, {}
        for text in held.values():
            self._dispatch(text)

    def _bury(self, process: WorkerProcess) -> None:
        """Let the texts of a process that has died run again, on others."""
        self._selector.unregister(process.connection)
        with self._lock:
            self.processes.remove(process)  # it gets no more texts
        code = process.close(PATIENCE)
        logger.error("a model process ended with code %d, with %d texts under way", code, len(process.texts))
        if not process.is_ready:
            self._wait_longer()
        self.on_restart()  # before a result is delivered: who has it sees the restart counted
        with self._lock:
            self._run_again(process)

    def _run_again(self, process: WorkerProcess) -> None:
        """Hand the texts of a process that has died to others, or give them up."""
        suspects = process.board.suspects(process.texts.keys())
        for number in list(process.texts):
            text = process.take(number)
            assert text is not None
            if process.was_killed_from_outside:
                text.kills += number in suspects
            else:
                text.crashes += 1
                text.suspicions += number in suspects
            if _is_poison(text):
                self._deliver(text, Result(text.index, None, error=POISON))
            else:
                self._dispatch(text)

    def _wait_longer(self) -> None:
        """Start no process for a while, and longer every time."""
        self._not_before = time.monotonic() + self._delay
        self._delay = min(2 * self._delay, LONGEST_DELAY)

    def _submit(self, job: Job) -> None:
        """Hand out texts one by one."""
        layers = self.model.runtime.exit_layers[-1] if job.max_depth is None else job.max_depth
        layers = 0 if job.due == NEVER else layers  # texts in the background delay no others
        texts = self._jobs[id(job)] = {}
        for index, ids in enumerate(job.tokens["input_ids"]):
            texts[self._next_text] = text = Pending(self._next_text, job, index, len(ids) * layers)
            self._next_text += 1
            self._dispatch(text)

    def _dispatch(self, text: Pending) -> None:
        """Hand a text to the process with the least work, or keep it until one is up."""
        ready = [process for process in self.processes if process.is_ready]
        if not ready:
            self.held[text.number] = text
            return
        policy = text.job.policy
        if id(policy) not in self._policies:
            self._policies[id(policy)] = self._next_policy, policy  # kept, so that its id stays its own
            self._next_policy += 1
        least = min(ready, key=lambda process: (process.layer_tokens, len(process.texts)))
        least.send_text(text, self._policies[id(policy)][0])
        if text.job.is_outdated:  # it runs again
            self._let_go(policy)

    def _deliver(self, text: Pending | None, result: Result) -> None:
        """Deliver what became of a text, unless it was cancelled."""
        if text is None:
            return
        left = self._jobs[id(text.job)]
        del left[text.number]
        if not left:
            del self._jobs[id(text.job)]
        text.job.deliver(replace(result, index=text.index))

    def _cancel(self, job: Job) -> None:
        """Drop texts."""
        for text in self._jobs.pop(id(job), {}).values():
            self.held.pop(text.number, None)
            if text.process is not None:
                text.process.cancel(text.number)

    def _forget(self, policy: Policy) -> None:
        """Let go of a policy, now and whenever a text under way has been handed out again."""
        for texts in self._jobs.values():
            for text in texts.values():
                text.job.is_outdated |= text.job.policy is policy
        self._let_go(policy)

    def _let_go(self, policy: Policy) -> None:
        """Forget the number of a policy."""
        number, _ = self._policies.pop(id(policy), (None, None))
        if number is not None:
            for process in self.processes:
                process.forget(number)


def _is_poison(text: Pending) -> bool:
    """Return whether a text is not to be run again."""
    return text.suspicions >= MOST_SUSPICIONS or text.kills >= MOST_KILLS or text.crashes >= MOST_CRASHES
