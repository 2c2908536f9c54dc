"""For the soak: servers in processes, on request with a model that faults."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil

from exitpoll import load_model
from exitpoll.data.splits import Texts
from exitpoll.engine.runtime import LoadedModel

FAULTS = {"w20001": "crashes", "w20002": "hangs", "w20003": "raises", "w20004": "is killed"}  # words that do
HERE = Path(__file__).parent
FAULTY = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    f"sys.path.insert(0, {str(HERE)!r}); import soak_server; soak_server.run_worker()"
)


@dataclass(frozen=True)
class Faults:
    """What is wrong with the model of a server, beside that it faults on some words.

    Args:
        leak: Bytes that a model process loses with every text that starts.
        token_seconds: Time that a text waits for every token before it starts. A model that waits in place of computing
            leaves the cores to clients and front, as a larger machine would.
        call_seconds: Time that every call of layers waits.
        log: A file to which every call of layers adds the time at which it began.
    """

    leak: int = 0
    token_seconds: float = 0.0
    call_seconds: float = 0.0
    log: str | None = None


class Server:
    """A server in a process of its own."""

    def __init__(self, model: Path, options: Sequence[str], faults: Faults | None = None) -> None:
        """Start a server.

        Args:
            model: What `make_model` wrote.
            options: Of `exitpoll serve`.
            faults: Of its model; None for a model that works.
        """
        self.port, self._errors = free_port(), tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as this)
        module = ["-m", "exitpoll"] if faults is None else [str(HERE / "soak_server.py")]
        words = ["serve", str(model), "--port", str(self.port), "--quiet", *options]
        environment = {**os.environ, "SOAK_FAULTS": json.dumps(asdict(faults or Faults()))}
        self.process = subprocess.Popen([sys.executable, *module, *words], env=environment, stderr=self._errors)

    def errors(self) -> str:
        """Return what it has written to stderr."""
        self._errors.seek(0)
        return self._errors.read().decode()

    def wait_ready(self, seconds: float = 60.0) -> float:
        """Wait until it is ready, and return the seconds that it took."""
        before = time.monotonic()
        while self.status("/health") != 200:
            if time.monotonic() - before > seconds or self.process.poll() is not None:
                raise RuntimeError("the server does not start")
            time.sleep(0.02)
        return time.monotonic() - before

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, str], bytes]:
        """Send one request: status, headers and body of the response."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, content)
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def post(self, path: str, body: object) -> Any:
        """Send a request that must be answered, and return its JSON."""
        status, _, content = self.ask("POST", path, body)
        assert status == 200, (status, content[:200])
        return json.loads(content)

    def status(self, path: str) -> int | None:
        """Return the status of a GET; None if it cannot be reached."""
        try:
            return self.ask("GET", path)[0]
        except OSError:
            return None

    def probe(self) -> float:
        """Return the seconds that a liveness probe takes."""
        before = time.monotonic()
        assert self.status("/health/live") == 200
        return time.monotonic() - before

    def metrics(self) -> dict[str, float]:
        """Return all series."""
        lines = self.ask("GET", "/metrics")[2].decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    def outcomes(self) -> dict[str, int]:
        """Return how many texts were answered, refused, cancelled, expired and failed."""
        counts = dict.fromkeys(("answered", "refused", "cancelled", "expired", "failed"), 0)
        for name, value in self.metrics().items():
            if name.startswith("exitpoll_texts_total{"):
                counts[name.split('outcome="')[1].split('"')[0]] += int(value)
        return counts

    def workers(self) -> list[psutil.Process]:
        """Return its model processes."""
        return psutil.Process(self.process.pid).children()

    def restarts(self, expected: int) -> float:
        """Return how many model processes were replaced; they are counted shortly after their texts are answered."""
        until = time.monotonic() + 2
        while (found := self.metrics()["exitpoll_worker_restarts_total"]) < expected and time.monotonic() < until:
            time.sleep(0.02)
        return found

    def kill_worker(self) -> None:
        """Kill one of its model processes, as soon as there is one that lives."""
        while not (alive := [worker for worker in self.workers() if worker.status() != psutil.STATUS_ZOMBIE]):
            time.sleep(0.01)
        alive[0].kill()

    def rss(self) -> float:
        """Return the megabytes of all its processes."""
        family = [psutil.Process(self.process.pid), *self.workers()]
        return sum(process.memory_info().rss for process in family) / 1e6

    def handles(self) -> dict[str, int]:
        """Return the descriptors and threads of all its processes."""
        family = [psutil.Process(self.process.pid), *self.workers()]
        return {
            "descriptors": sum(process.num_fds() for process in family),
            "threads": sum(process.num_threads() for process in family),
        }

    def end(self, number: int = signal.SIGTERM, seconds: float = 40.0) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)


@contextmanager
def serving(model: Path, *options: str, ready: bool = True, faults: Faults | None = None) -> Iterator[Server]:
    """Run a server; it is killed at the end if it still runs."""
    server = Server(model, options, faults)
    try:
        if ready:
            server.wait_ready()
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def connect(port: int) -> socket.socket:
    """Connect to a server."""
    return socket.create_connection(("127.0.0.1", port))


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


# ---- the faulty model -----------------------------------------------------------------------------------------------


class Faulty:
    """A runtime that ends its process, hangs or raises at some words, and may leak or wait."""

    def __init__(self, runtime: Any, words: dict[int, str], faults: Faults) -> None:
        """Wrap a runtime.

        Args:
            runtime: The runtime.
            words: What happens, by token.
            faults: What else is wrong.
        """
        self.runtime, self.words, self.faults = runtime, words, faults
        self.lost: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        """Be as the runtime in all else."""
        return getattr(self.runtime, name)

    def embed(self, tokens: Any) -> Any:
        """Fault, or embed."""
        ids = [token for row in tokens["input_ids"] for token in row]
        self.lost.append(os.urandom(self.faults.leak * len(tokens["input_ids"])))
        time.sleep(self.faults.token_seconds * len(ids))
        for fault in {self.words[token] for token in ids if token in self.words}:
            if fault == "crashes":
                signal.raise_signal(signal.SIGSEGV)  # in this thread: the call does not go on
            elif fault == "is killed":
                signal.raise_signal(signal.SIGKILL)
            elif fault == "hangs":
                time.sleep(600)
            else:
                raise RuntimeError("no such kernel")
        return self.runtime.embed(tokens)

    def advance(self, state: Any, layers: Any) -> Any:
        """Log the call, wait, and run layers."""
        self._begin_call()
        return self.runtime.advance(state, layers)

    def pass_exits(self, *arguments: Any) -> Any:
        """Log the call, wait, and run past exits."""
        self._begin_call()
        return self.runtime.pass_exits(*arguments)

    def _begin_call(self) -> None:
        """Log a call, and wait."""
        if self.faults.log is not None:
            with open(self.faults.log, "a") as file:
                file.write(f"{time.monotonic()}\n")
        time.sleep(self.faults.call_seconds)


def load_faulty(folder: str, **options: Any) -> LoadedModel:
    """Load a model, and wrap its runtime."""
    model = load_model(folder, **options)
    words = {model.tokenize(Texts.of([word]))["input_ids"][0][1]: fault for word, fault in FAULTS.items()}
    faulty: Any = Faulty(model.runtime, words, Faults(**json.loads(os.environ["SOAK_FAULTS"])))
    return replace(model, runtime=faulty)


def run_worker() -> None:
    """Run a model process with the faulty model."""
    import exitpoll.server.worker as worker

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    setattr(worker, "load_model", load_faulty)  # noqa: B010
    worker.main()


def run_front() -> None:
    """Run `exitpoll` with model processes that load the faulty model."""
    import exitpoll.server.worker_process as worker_process
    from exitpoll.cli.main import main

    worker_process.MAIN = FAULTY
    main()


if __name__ == "__main__":
    run_front()
