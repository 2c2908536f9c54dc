"""For the soak: a tiny model made on the spot, and servers of it in processes, faulty ones on request."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from common import make_encoder, make_texts
from exitpoll import Engine, Policy, load_model
from exitpoll.engine.runtime import LoadedModel
from exitpoll.export.export import export_model
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import load_tokenizer

LABELS = ["red", "green", "blue"]
FAULTS = {"w20001": "kills", "w20002": "hangs", "w20003": "raises"}  # words that make the faulty model fault
NEVER = "never"  # a policy that asks every exit, and never leaves before the last
HERE = Path(__file__).parent
FAULTY = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    f"sys.path.insert(0, {str(HERE)!r}); import soak_server; soak_server.run_worker()"
)


def make_model(folder: Path) -> Path:
    """Write the export of a random model of four layers, with policies that let texts leave at all exits."""
    encoder = make_encoder(folder / "encoder", layers=4, width=64)
    model = EarlyExitModel.from_encoder(str(encoder), labels=LABELS)
    model.save_pretrained(folder / "tiny")
    load_tokenizer(encoder).save_pretrained(folder / "tiny")
    export_model(folder / "tiny", folder / "tiny" / "onnx")
    export = folder / "tiny" / "onnx"
    answers = Engine(load_model(export, threads=1))(make_texts(200, 12))
    threshold = float(np.quantile([row.probability for row in answers], 0.5))
    (export / "policies").mkdir()
    Policy("max_prob", threshold).save(export / "policy.json")
    Policy("max_prob", threshold * 0.9).save(export / "policies" / "fast.json")
    Policy("votes", 99.0).save(export / "policies" / f"{NEVER}.json")
    return export


class Server:
    """A server in a process of its own."""

    def __init__(self, model: Path, options: Sequence[str], *, faulty: bool = False, leak: int = 0) -> None:
        """Start a server.

        Args:
            model: What `make_model` wrote.
            options: Of `exitpoll serve`.
            faulty: Whether its model faults on some words.
            leak: Bytes that a model process loses with every call.
        """
        self.port = free_port()
        module = [str(HERE / "soak_server.py")] if faulty or leak else ["-m", "exitpoll"]
        words = ["serve", str(model), "--port", str(self.port), "--quiet", *options]
        environment = {**os.environ, "SOAK_LEAK": str(leak)}
        self.process = subprocess.Popen([sys.executable, *module, *words], env=environment, stderr=subprocess.PIPE)

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

    def kill_worker(self) -> None:
        """Kill one of its model processes, if there is one."""
        for worker in self.workers()[:1]:
            worker.kill()

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
def serving(model: Path, *options: str, ready: bool = True, faulty: bool = False, leak: int = 0) -> Iterator[Server]:
    """Run a server; it is killed at the end if it still runs."""
    server = Server(model, options, faulty=faulty, leak=leak)
    try:
        if ready:
            server.wait_ready()
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


# ---- the faulty model -----------------------------------------------------------------------------------------------


class Faulty:
    """A runtime that kills its process, hangs or raises at some words, and may leak."""

    def __init__(self, runtime: Any, faults: dict[int, str], leak: int) -> None:
        """Wrap a runtime.

        Args:
            runtime: The runtime.
            faults: What happens, by token.
            leak: Bytes that every call loses.
        """
        self.runtime, self.faults, self.leak = runtime, faults, leak
        self.lost: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        """Be as the runtime in all else."""
        return getattr(self.runtime, name)

    def embed(self, tokens: Any) -> Any:
        """Fault, or embed."""
        self.lost.append(os.urandom(self.leak))
        for fault in {self.faults[token] for ids in tokens["input_ids"] for token in ids if token in self.faults}:
            if fault == "kills":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault == "hangs":
                time.sleep(600)
            else:
                raise RuntimeError("no such kernel")
        return self.runtime.embed(tokens)


def load_faulty(folder: str, **options: Any) -> LoadedModel:
    """Load a model, and wrap its runtime."""
    from dataclasses import replace

    from exitpoll.data.splits import Texts

    model = load_model(folder, **options)
    tokens = {model.tokenize(Texts.of([word]))["input_ids"][0][1]: fault for word, fault in FAULTS.items()}
    faulty: Any = Faulty(model.runtime, tokens, int(os.environ.get("SOAK_LEAK", 0)))
    return replace(model, runtime=faulty)


def run_worker() -> None:
    """Run a model process with the faulty model."""
    import exitpoll.server.worker as worker

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
