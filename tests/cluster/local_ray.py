"""A Ray of the tests: its processes, found by the folder that it was started in, and clients of a server on it."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

CLIENTS = 4  # of a server, at a time


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def parent_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def processes():
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def files_of(pid):
    """Return what a process has open; nothing of one that has ended or belongs to somebody else."""
    try:
        return [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []


def processes_in(folder):
    """Return all processes of the Ray in a folder but this one, by their command lines and open files.

    Workers give themselves other names; but they write their logs to the folder, whoever their parent is.
    """
    return [
        pid
        for pid in processes()
        if pid != os.getpid()
        and (str(folder) in command_of(pid) or any(file.startswith(f"{folder}/") for file in files_of(pid)))
    ]


def workers_below(folder, name):
    """Return the workers of the Ray in a folder whose class has some name."""
    return [
        pid
        for pid in processes()
        if command_of(pid).startswith(f"ray::{name}") and str(folder) in command_of(parent_of(pid))
    ]


def wait_until(condition, seconds=300.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


# ---- clients --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What came of a request."""

    status: int  # 0 if there was no answer
    sent: float  # when, by time.monotonic
    depth: int | None = None
    retry_after: str | None = None


def ask(url, texts, sent=None):
    """Send texts, and return what came of it."""
    body, sent = json.dumps({"texts": texts}).encode(), time.monotonic() if sent is None else sent
    request = urllib.request.Request(f"{url}/v1/predict", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return Answer(answer.status, sent, json.load(answer)["predictions"][0]["depth"])
    except urllib.error.HTTPError as error:
        return Answer(error.code, sent, retry_after=error.headers.get("Retry-After"))
    except OSError:
        return Answer(0, sent)


@contextmanager
def load_on(url, texts, clients=CLIENTS, in_flight=None):
    """Let clients send texts again and again while a block runs; their answers are in the list when it has ended.

    Where a set is given, it has the times at which the requests were sent that are not answered yet.
    """
    answers, is_over = [], Event()
    in_flight = set() if in_flight is None else in_flight

    def repeat():
        while not is_over.is_set():
            sent = time.monotonic()
            in_flight.add(sent)
            answers.append(ask(url, texts, sent))
            in_flight.discard(sent)

    with ThreadPoolExecutor(clients) as pool:
        repeated = [pool.submit(repeat) for _ in range(clients)]
        try:
            yield answers
        finally:
            is_over.set()
    for client in repeated:
        client.result()
