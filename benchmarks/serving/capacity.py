"""The capacity of a server: the largest rate whose answers are all in time, and that it could keep up with for ever.

A run counts only if the generator sent on time; a late one is repeated. A rate is kept up with only if hardly any
answers are missing when the last request has been sent, after several times the limit: a backlog that grows would else
be within the limit until the end of a short run.
"""

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
RUNS = 3  # of one rate, until the generator is on time
MOST_DRAIN = 1.0  # seconds after the last request within which all are answered
REQUESTS_OF_DRAIN = 3  # or the time of so many requests, if that is longer
LIMITS = 6  # an attempt takes so many times the limit of latency, at least
ENOUGH = 2000  # requests behind a quantile of latencies, if they take no more than
MOST_SECONDS = 60.0
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
    bursts: bool = False  # whether requests come in bursts

    def at(self, rate: float, seed: int = 0, seconds: float | None = None) -> Measured:
        """Send requests at a rate and return what the generator measured."""
        bursts, seconds = ["--bursts"] if self.bursts else [], seconds or self.seconds
        return self._run("--rate", str(rate), "--seconds", str(seconds), "--seed", str(seed), *bursts)

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


def attempt_seconds(seconds: float, limit_ms: float) -> float:
    """Return how long an attempt takes: as asked, but several times the limit."""
    return max(seconds, LIMITS * limit_ms / 1000)


def latency_seconds(seconds: float, rate: float) -> float:
    """Return how long to send requests whose latencies are compared: as asked, but enough of them where that can be."""
    return max(seconds, min(ENOUGH / rate, MOST_SECONDS))


def most_drain(request_ms: float) -> float:
    """Return the seconds after the last request within which all must be answered.

    Args:
        request_ms: Time of a request alone.

    Returns:
        The seconds.
    """
    return max(MOST_DRAIN, REQUESTS_OF_DRAIN * request_ms / 1000)


def on_time(send: Callable[[int], Measured]) -> Measured:
    """Send requests, and again if the generator itself was late.

    Args:
        send: Sends them; it is told how many runs were late before.

    Returns:
        What was measured, `valid` unless the generator was late in all runs, and how many runs were late.
    """
    for late in range(RUNS):
        measured = send(late)
        if measured["lag_p99_ms"] <= LATE_MS:
            return {**measured, "valid": True, "late_runs": late}
    return {**measured, "valid": False, "late_runs": RUNS}


def in_time(measured: Measured, limit_ms: float, request_ms: float) -> bool:
    """Return whether a rate was kept up with.

    Args:
        measured: What `on_time` returned.
        limit_ms: Milliseconds within which 99 % must be answered.
        request_ms: Time of a request alone.

    Returns:
        Whether all requests were answered, 99 % of them within the limit, and none was long behind at the end.
    """
    p99 = measured["milliseconds"]["p99"]
    is_answered = measured["valid"] and measured["answered"] == measured["sent"] and p99 is not None
    return is_answered and p99 <= limit_ms and measured["drain_seconds"] <= most_drain(request_ms)


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
