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

HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")
START = 120.0  # seconds that a server may take to start


@dataclass(frozen=True)
class Server:
    """A server on this machine."""

    name: str
    about: str
    command: Sequence[str]  # in which PORT stands for the port
    path: str  # of a request
    key: str = "text"  # of the body that holds the text
    extra: dict[str, object] = field(default_factory=dict)  # more of the body
    listed: bool = False  # whether the key holds a list of texts
    health: str = "/health"

    def bodies(self, texts: Sequence[str], path: Path) -> Path:
        """Write the bodies of requests, one a line."""
        values = ([text] if self.listed else text for text in texts)
        path.write_text("".join(json.dumps({self.key: value, **self.extra}) + "\n" for value in values))
        return path


@dataclass(frozen=True)
class Running:
    """A server that runs."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Return the CPU time of its processes so far."""
        return sum(map(_cpu_of, _family(self.pid)))


def servers(
    model: str, runtime: str | None, work: Path, competitors: str | None, infinity: str | None
) -> dict[str, Server]:
    """Return the servers by name.

    Args:
        model: The model folder.
        runtime: The runtime of exitpoll.
        work: The folder with the full graph.
        competitors: A Python with litserve, onnxruntime and tokenizers; None leaves LitServe out.
        infinity: The program infinity_emb; None leaves it out.

    Returns:
        The servers, those of exitpoll first.
    """
    chosen = [] if runtime is None else ["--runtime", runtime]
    ours = [sys.executable, "-m", "exitpoll", "serve", model, *chosen, "--threads", "1", "--port", "PORT"]
    ours += ["--max-queue", str(10**12)]
    batcher = [sys.executable, str(HERE / "microbatch_server.py"), str(work), "--port", "PORT"]
    rows = [
        Server("exits", "exitpoll serve", ours, "/v1/predict"),
        Server("full", "exitpoll serve, policy full", ours, "/v1/predict", extra={"policy": "full"}),
        Server("no refill", "FastAPI around Engine", [*batcher, "--exits", model, *chosen], "/predict"),
        Server("fastapi", "FastAPI micro-batcher, full graph", batcher, "/predict"),
    ]
    if competitors is not None:
        command = [competitors, str(HERE / "litserve_server.py"), str(work), "--port", "PORT"]
        rows.append(Server("litserve", "LitServe, full graph", command, "/predict"))
    if infinity is not None:
        command = [infinity, "v2", "--model-id", str(work / "classifier"), "--port", "PORT", "--host", "127.0.0.1"]
        command += ["--engine", "torch", "--device", "cpu", "--no-model-warmup"]
        rows.append(Server("infinity", "Infinity, torch", command, "/classify", "input", {"model": "classifier"}, True))
    return {row.name: row for row in rows}


@contextmanager
def running(server: Server, core: int | None) -> Iterator[Running]:
    """Start a server, wait until it answers, and end all of its processes.

    Args:
        server: The server.
        core: The core that it may use; None for all.

    Yields:
        Its port and process.
    """
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
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
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
