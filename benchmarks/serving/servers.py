"""The servers that are compared: how each is started, asked and ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")
START = 120.0  # seconds that a server may take to start
IN_PROCESS = ", in process"  # of servers of exitpoll that run the model in a thread, not in a process of its own
Text = str | tuple[str, str]


@dataclass(frozen=True)
class Server:
    """A server on this machine."""

    name: str
    about: str
    command: Sequence[str]  # in which PORT stands for the port
    path: str  # of a request
    key: str = "text"  # of the body that holds the text
    extra: dict[str, object] = field(default_factory=dict)  # more of the body
    listed: bool = False  # whether the key holds a list of texts, even of one
    health: str = "/health"
    port: int | None = None  # of one that runs already

    def bodies(self, texts: Sequence[Text], path: Path, at_once: int = 1) -> Path:
        """Write the bodies of requests, one a line.

        Args:
            texts: Texts or pairs.
            path: Where to write.
            at_once: Texts in a request; a last one with fewer is left out, unless it is the only one.

        Returns:
            The path.
        """
        key = self.key if self.listed or at_once == 1 else f"{self.key}s"
        starts = range(0, max(len(texts) - at_once, 0) + 1, at_once)
        requests = (texts[start : start + at_once] for start in starts)
        values = (request if self.listed or at_once > 1 else request[0] for request in requests)
        path.write_text("".join(json.dumps({key: value, **self.extra}) + "\n" for value in values))
        return path


@dataclass(frozen=True)
class Running:
    """A server that runs."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Return the CPU time of its processes so far."""
        return sum(map(_cpu_of, _family(self.pid)))

    def front_cpu_seconds(self) -> float:
        """Return that of the process that listens, without those that it started."""
        return _cpu_of(self.pid)


def servers(
    model: str,
    runtime: str | None,
    work: Path,
    competitors: str | None,
    infinity: str | None,
    urls: Sequence[str] = (),
) -> dict[str, Server]:
    """Return the servers by name.

    Args:
        model: The model folder.
        runtime: The runtime of exitpoll.
        work: The folder with the full graph.
        competitors: A Python with litserve, onnxruntime and tokenizers; None leaves LitServe out.
        infinity: The program infinity_emb; None leaves it out.
        urls: Of servers that run already, by name, as in tei=http://127.0.0.1:8080/predict.

    Returns:
        The servers, those of exitpoll first.
    """
    chosen = [] if runtime is None else ["--runtime", runtime]
    ours = [sys.executable, "-m", "exitpoll", "serve", model, *chosen, "--threads", "1", "--port", "PORT"]
    ours += ["--max-queue", str(10**12)]
    inside = [*ours, "--workers", "0"]
    batcher = [sys.executable, str(HERE / "microbatch_server.py"), str(work), "--port", "PORT"]
    rows = [
        Server("exits", "exitpoll serve", ours, "/v1/predict"),
        Server("full", "exitpoll serve, policy full", ours, "/v1/predict", extra={"policy": "full"}),
        Server(f"exits{IN_PROCESS}", "exitpoll serve --workers 0", inside, "/v1/predict"),
        Server(f"full{IN_PROCESS}", "the same, policy full", inside, "/v1/predict", extra={"policy": "full"}),
        Server("no refill", "FastAPI around Engine", [*batcher, "--exits", model, *chosen], "/predict"),
        Server("fastapi", "FastAPI micro-batcher, full graph", batcher, "/predict"),
    ]
    if competitors is not None:
        command = [competitors, str(HERE / "litserve_server.py"), str(work), "--port", "PORT"]
        rows.append(Server("litserve", "LitServe, full graph", command, "/predict"))
    if infinity is not None:
        command = [infinity, "v2", "--model-id", str(work / "classifier"), "--port", "PORT", "--host", "127.0.0.1"]
        command += ["--engine", "torch", "--device", "cpu", "--no-model-warmup", "--no-bettertransformer"]
        rows.append(Server("infinity", "Infinity, torch", command, "/classify", "input", {"model": "classifier"}, True))
    rows += map(server_at, urls)
    return {row.name: row for row in rows}


def server_at(given: str) -> Server:
    """Return a server that runs already on this machine, and reads texts as text-embeddings-inference does.

    Args:
        given: Its name and address, as in tei=http://127.0.0.1:8080/predict.

    Returns:
        The server, whose CPU time is not known.
    """
    name, _, address = given.partition("=")
    parts = urlsplit(address)
    if not name or parts.hostname not in ("127.0.0.1", "localhost") or parts.port is None:
        raise SystemExit(f"--url {given} must be a name and an address here: tei=http://127.0.0.1:8080/predict")
    return Server(name, f"{name}, at {address}", [], parts.path or "/predict", "inputs", port=parts.port)


@contextmanager
def running(server: Server, core: int | None) -> Iterator[Running]:
    """Start a server, wait until it answers, and end all of its processes.

    Args:
        server: The server.
        core: The core that it may use; None for all.

    Yields:
        Its port and process.
    """
    if server.port is not None:
        yield Running(server.port, 0)
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(port) if word == "PORT" else word for word in server.command]
    threads = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    process = subprocess.Popen(
        command,
        env=os.environ | threads | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
    )
    try:
        _wait_for(process, port, server)
        yield Running(port, process.pid)
    finally:
        family = _family(process.pid)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        for pid in family:  # what the server did not end itself
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _wait_for(process: subprocess.Popen, port: int, server: Server) -> None:
    """Wait until a server is healthy."""
    until = time.monotonic() + START
    while time.monotonic() < until:
        if process.poll() is not None:
            raise SystemExit(f"{server.name} ended with code {process.returncode} while it started")
        address = f"http://127.0.0.1:{port}{server.health}"
        with suppress(OSError), urllib.request.urlopen(address, timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise SystemExit(f"{server.name} was not healthy after {START:.0f} s")


def _family(pid: int) -> list[int]:
    """Return a process and those that it started."""
    try:  # every thread has its own
        children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
    except OSError:
        return []
    return [pid, *(member for child in children for member in _family(int(child)))]


def _cpu_of(pid: int) -> float:
    """Return the CPU time of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS
