"""A model made of numbers that faults on some texts, for model processes: they load it in place of a folder."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import exitpoll.server.worker
from exitpoll.engine.runtime import LoadedModel, Origin
from tests.numbers_runtime import Numbers, tokenize

MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import tests.server.faulty as faulty; faulty.run_worker()"
)
# A crash, and the end that the kernel puts to a process that uses up the memory.
SIGNALS = {"kills": signal.SIGSEGV, "uses up": signal.SIGKILL}


def token(text):
    return tokenize([text])["input_ids"][0][0]


class Faulty(Numbers):
    """Ends its process on some texts, hangs on another, and raises on one; a folder counts its calls."""

    def __init__(self, folder):
        super().__init__()
        self.folder = Path(folder)

    def advance(self, state, layers):
        with (self.folder / "calls.txt").open("a") as file:
            file.write(f"{os.getpid()} {' '.join(map(str, state.tolist()))}\n")
        delay = self.folder / "delay.txt"
        if delay.exists():
            time.sleep(float(delay.read_text()))
        for text, number in SIGNALS.items():
            if token(text) in state:
                signal.raise_signal(number)  # in this thread: the call does not go on
        if token("hangs") in state:
            time.sleep(60)
        if token("raises") in state:
            raise RuntimeError("no such kernel")
        return state


def load(folder, **options):
    """Load the model, as `load_model` would."""
    path = Path(folder) / "broken"
    if path.exists():
        raise MemoryError("no room")
    model = LoadedModel(Faulty(folder), tokenize, ["yes", "no"])
    return replace(model, origin=Origin(str(folder), None, 1, "cpu", False))


def run_worker():
    """Run a model process that loads this model."""
    setattr(exitpoll.server.worker, "load_model", load)  # noqa: B010
    exitpoll.server.worker.main()
