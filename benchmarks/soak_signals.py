"""The tests of the soak on processes that end: signals, a front that is killed, a start that fails."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from soak_bars import at_most
from soak_client import CUT_OFF, NOTHING, run
from soak_load import WORKERS, Figures, capacity, single
from soak_server import connect, serving

ALTERNATE = ("/v1/predict", "/v1/predict/stream")
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2  # of Linux
WITHOUT_EXTRA = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "uvicorn" else find(name, *more)
from exitpoll.cli.main import main
main()
"""


def signals(model: Path, share: float) -> Figures:
    """Test 13: SIGTERM and SIGINT under 90 % load, twice, while loading, and with idle connections and open streams."""
    with serving(model, *WORKERS) as server:
        rate = 0.9 * capacity(server)
    numbers = [signal.SIGINT if turn % 4 == 3 else signal.SIGTERM for turn in range(max(2, round(20 * share)))]
    rounds = [_end_under_load(model, number, rate) for number in numbers]
    checks = {name: all(checks[name] for checks, _ in rounds) for name in rounds[0][0]}
    with serving(model, *WORKERS, "--drain-delay", "30") as server:
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        checks["not ready first"] = (server.status("/health/ready"), server.status("/health/live")) == (503, 200)
        checks["a second signal ends it at once"] = server.end(signal.SIGINT, 10) == 0
    codes, orphans = [], []
    for turn in range(max(4, round(20 * share))):  # from the first import until the model processes are up
        with serving(model, *WORKERS, ready=False) as server:
            time.sleep(0.1 + 0.1 * turn)
            workers = server.workers()
            codes.append(server.end(signal.SIGTERM, 10))  # raises if it does not end
            orphans += psutil.wait_procs(workers, timeout=2)[1]
    checks["while loading: exit code 0, or that of the signal"] = set(codes) <= {
        0,
        128 + signal.SIGTERM,
        -signal.SIGTERM,
    }
    checks["while loading: no orphans"] = not orphans
    totals = [figures for _, figures in rounds]
    sums = {name: sum(figures[name] for figures in totals) for name in totals[0] if name != "seconds"}
    bars = {"longest, s": at_most(max(figures["seconds"] for figures in totals), 30)}
    return {"times": len(rounds), **sums, "codes_while_loading": codes, "bars": bars, "checks": checks}


def _end_under_load(model: Path, number: int, rate: float) -> tuple[dict[str, bool], dict[str, float]]:
    """Send a signal while requests come, half of them streams, whose status shows that they were accepted."""
    requests = [(ALTERNATE[turn % 2], body) for turn, (_, body) in enumerate(single(int(rate)))]
    ended: list[tuple[float, float, int]] = []
    with serving(model, *WORKERS) as server, connect(server.port) as idle:
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        workers = server.workers()

        def end() -> None:
            time.sleep(0.5)
            began = time.monotonic()
            code = server.end(number)
            ended.append((began, time.monotonic() - began, code))

        answers = run(server.port, requests, rate, during=end)
        _, orphans = psutil.wait_procs(workers, timeout=2)
    [(signalled, seconds, code)] = ended
    early = [answer for answer in answers if answer.sent < signalled - 0.1]
    streams = [answer for answer in answers if answer.number % 2 and answer.status == 200]
    checks = {
        "exit code 0": code == 0,
        "requests sent before the signal are answered": {answer.status for answer in early} == {200},
        "none is cut off": CUT_OFF not in {answer.status for answer in answers},
        "streams have their end": all(b"event: done" in answer.body for answer in streams),
        "no other status": {answer.status for answer in answers} <= {200, 503, NOTHING},
        "no orphans": not orphans,
    }
    answered = sum(answer.status == 200 for answer in answers)
    return checks, {"seconds": seconds, "sent": len(answers), "answered": answered}


def front_killed(model: Path, share: float) -> Figures:
    """Test 12: the front is killed: no orphan after 2 s, and the port is free."""
    with serving(model, *WORKERS) as server:
        workers, port = server.workers(), server.port
        server.process.kill()
        server.process.wait()
        _, alive = psutil.wait_procs(workers, timeout=2)
        with socket.create_server(("127.0.0.1", port)):
            return {
                "workers": len(workers),
                "checks": {"no orphans": not alive and len(workers) == 2, "port free": True},
            }


def starts(model: Path, share: float) -> Figures:
    """Test 22: what prevents a start is said in one line, with exit code 2."""
    checks, seconds = {}, {}
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as taken:
        folder = Path(name)
        broken, closed = (Path(shutil.copytree(model, folder / name)) for name in ("broken", "closed"))
        (broken / "policy.json").write_text("{")
        (closed / "policy.json").chmod(0)
        ours = ["-m", "exitpoll"]
        for what, program, words in (
            ("bad policy", ours, [str(broken)]),
            ("no model", ours, [str(folder / "nothing")]),
            ("port taken", ours, [str(model), "--port", str(taken.getsockname()[1])]),
            ("another's address", ours, [str(model), "--host", "203.0.113.1"]),
            ("bad option", ours, [str(model), "--max-texts", "0"]),
            ("no permission", ours, [str(closed)]),
            ("extra missing", ["-c", WITHOUT_EXTRA], [str(model)]),
        ):
            command, spent = [sys.executable, *program, "serve", *words], []
            for _ in range(2):  # the first may read its files from the disk
                before = time.monotonic()
                done = subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=_obey_permissions)
                spent.append(time.monotonic() - before)
            seconds[what], lines = min(spent), done.stderr.strip().splitlines()
            checks[what] = done.returncode == 2 and len(lines) == 1 and lines[0].startswith("exitpoll: ")
    return {"bars": {f"{what}, s": at_most(spent, 2, 10) for what, spent in seconds.items()}, "checks": checks}


def _obey_permissions() -> None:
    """Let a process that starts obey the permissions of files, even if root starts it."""
    if os.geteuid() == 0:
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
