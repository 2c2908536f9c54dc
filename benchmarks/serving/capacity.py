"""The capacity of a server: the largest rate whose answers are all in time."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LATE_MS = 1.0  # lag of the generator at its 99th percentile above which it was too slow itself
STRIDE = 1.35  # between rates until one is too high and one is not
Measured = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """How requests are sent."""

    bodies: Path
    path: str
    port: int
    seconds: float
    core: int | None = None

    def at(self, rate: float, seed: int = 0) -> Measured:
        """Send requests at a rate and return what the generator measured."""
        return self._run("--rate", str(rate), "--seconds", str(self.seconds), "--seed", str(seed))

    def one_by_one(self, requests: int) -> Measured:
        """Send requests one after another."""
        return self._run("--closed", str(requests))

    def _run(self, *options: str) -> Measured:
        """Run the generator."""
        command = [sys.executable, str(HERE / "generator.py"), "--port", str(self.port), "--path", self.path]
        command += ["--bodies", str(self.bodies), *options]
        core = self.core
        pin = None if core is None else (lambda: os.sched_setaffinity(0, {core}))
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=pin)
        return json.loads(result.stdout)


def in_time(measured: Measured, limit_ms: float) -> bool:
    """Return whether all requests of a run were answered, 99 % of them within a limit."""
    p99 = measured["milliseconds"]["p99"]
    return measured["answered"] == measured["sent"] and p99 is not None and p99 <= limit_ms


def find_capacity(
    attempt: Callable[[float], bool], first: float, precision: float = 0.06, most_steps: int = 12
) -> float:
    """Find the largest rate that a server keeps up with, by doubling or halving and then by bisection.

    Args:
        attempt: Returns whether a rate is kept up with.
        first: The first rate to try.
        precision: Relative width at which to stop.
        most_steps: Most attempts.

    Returns:
        The largest rate that was kept up with; 0 if none was.
    """
    low, high, rate = 0.0, math.inf, first
    for _ in range(most_steps):
        if attempt(rate):
            low = rate
        else:
            high = rate
        if low and high / low <= 1 + precision:
            break
        if high == math.inf:
            rate *= STRIDE
        elif not low:
            rate /= STRIDE
        else:
            rate = math.sqrt(low * high)
    return low
