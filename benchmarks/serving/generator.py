"""A load generator in its own process: requests at times drawn in advance, latency from the time each was due.

python generator.py --port 8000 --path /v1/predict --bodies bodies.jsonl --rate 200 --seconds 5

It needs no package of this project; uvloop is used where it is installed. Prints one JSON object: what was sent and
answered, latencies, how late it sent (its own lag), and the time that it took itself for a request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", flags=re.I)
DEPTH = re.compile(rb'"depth": *(\d+)')
REFUSED = (429, 503)
CYCLE, PEAK = 1.0, 4  # seconds from burst to burst; times the mean rate in a burst, which takes 1 / PEAK of a cycle
SPIN = 0.002  # seconds before a request is due in which it looks at the clock all the time
now = time.perf_counter


class Connection(asyncio.Protocol):
    """A kept-alive connection that waits for one answer at a time."""

    def __init__(self, pool: Pool) -> None:
        """Join a pool once connected."""
        self.pool = pool
        self.buffer = b""
        self.wanted: int | None = None  # bytes of the whole answer, once its header is there
        self.request = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)  # that of uvloop is of another class

    def send(self, request: int) -> None:
        """Send a request."""
        self.request, self.buffer, self.wanted = request, b"", None
        self.transport.write(self.pool.payloads[request % len(self.pool.payloads)])

    def data_received(self, data: bytes) -> None:
        """Collect an answer."""
        before = now()
        self._collect(data)
        self.pool.busy += now() - before

    def _collect(self, data: bytes) -> None:
        """Add bytes to an answer."""
        self.buffer += data
        if self.wanted is None:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            length = LENGTH.search(self.buffer[: end + 2])
            if length is None:
                raise ValueError("an answer without content-length")
            self.wanted = end + 4 + int(length[1])
        if len(self.buffer) >= self.wanted:
            request, self.request = self.request, -1
            self.pool.answered(self, request, self.buffer)

    def connection_lost(self, error: Exception | None) -> None:
        """Count a request that was under way as failed."""
        if self.request >= 0:
            self.pool.lost(self.request)


class Pool:
    """Connections, and what became of every request."""

    def __init__(self, port: int, payloads: list[bytes], requests: int) -> None:
        """Begin without connections.

        Args:
            port: Of the server on this machine.
            payloads: Whole HTTP requests, sent in turn.
            requests: How many will be sent.
        """
        self.port = port
        self.payloads = payloads
        self.idle: deque[Connection] = deque()
        self.waiting: deque[int] = deque()
        self.due = [0.0] * requests  # by `now`
        self.busy = 0.0  # seconds in which it sent and collected
        self.lags: list[float] = []
        self.latencies: list[float] = []
        self.counts = {"answered": 0, "refused": 0, "failed": 0}
        self.depths: list[int] = []
        self.left = requests
        self.done = asyncio.Event()

    async def connect(self, count: int) -> None:
        """Open connections."""
        loop = asyncio.get_running_loop()
        for _ in range(count):
            _, connection = await loop.create_connection(lambda: Connection(self), "127.0.0.1", self.port)
            self.idle.append(connection)

    def fire(self, request: int) -> None:
        """Send a request that is due, or let it wait for a connection."""
        before = now()
        self.lags.append(before - self.due[request])
        if self.idle:
            self.idle.popleft().send(request)
        else:
            self.waiting.append(request)
        self.busy += now() - before

    def answered(self, connection: Connection, request: int, answer: bytes) -> None:
        """Count an answer, and reuse its connection."""
        status = int(answer[9:12])
        if status == 200:
            self.counts["answered"] += 1
            self.latencies.append(now() - self.due[request])
            self.depths += map(int, DEPTH.findall(answer))
        else:
            self.counts["refused" if status in REFUSED else "failed"] += 1
        self._finish()
        if self.waiting:
            connection.send(self.waiting.popleft())
        else:
            self.idle.append(connection)

    def lost(self, request: int) -> None:
        """Count a request whose connection broke."""
        self.counts["failed"] += 1
        self._finish()

    def _finish(self) -> None:
        """Note that a request has ended."""
        self.left -= 1
        if not self.left:
            self.done.set()


def poisson_times(rate: float, seconds: float, seed: int) -> list[float]:
    """Draw the times of requests, from 0.

    Args:
        rate: Requests a second.
        seconds: How long to send.
        seed: Of the random generator.

    Returns:
        Rising times.
    """
    generator, times, moment = random.Random(seed), [], 0.0
    while (moment := moment + generator.expovariate(rate)) < seconds:
        times.append(moment)
    return times or [0.0]


def burst_times(rate: float, seconds: float, seed: int) -> list[float]:
    """Draw the times of requests that come in bursts: at `PEAK` times the rate, then none for the rest of a cycle.

    Args:
        rate: Requests a second, on average over cycles.
        seconds: How long to send.
        seed: Of the random generator.

    Returns:
        Rising times.
    """
    burst = CYCLE / PEAK
    cycles = [divmod(moment, burst) for moment in poisson_times(PEAK * rate, seconds / PEAK, seed)]
    return [CYCLE * number + moment for number, moment in cycles]


def quantile(values: list[float], share: float) -> float | None:
    """Return a quantile; None of no values."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None


async def open_loop(pool: Pool, times: list[float], patience: float) -> float:
    """Send requests at their times, whatever becomes of earlier ones; return how long answers took to come in after."""
    start = now() + 0.05
    for request, moment in enumerate(times):
        pool.due[request] = start + moment
        while (left := start + moment - now()) > 0:
            await asyncio.sleep(left - SPIN if left > SPIN else 0)  # timers of event loops are late by up to 1 ms
        pool.fire(request)
    ended = now()
    try:
        await asyncio.wait_for(pool.done.wait(), patience)
    except TimeoutError:
        pool.counts["failed"] += pool.left
    return now() - ended


async def closed_loop(pool: Pool, requests: int) -> float:
    """Send one request after another."""
    for request in range(requests):
        pool.due[request] = now()
        pool.fire(request)
        while pool.left > requests - request - 1:
            await asyncio.sleep(0)
    return 0.0


def payload(path: str, body: bytes) -> bytes:
    """Write a whole HTTP request."""
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


async def measure(chosen: argparse.Namespace) -> dict[str, object]:
    """Send all requests and describe what came of them."""
    bodies = chosen.bodies.read_bytes().splitlines()
    random.Random(chosen.seed).shuffle(bodies)
    times = (burst_times if chosen.bursts else poisson_times)(chosen.rate, chosen.seconds, chosen.seed)
    requests = chosen.closed or len(times)
    pool = Pool(chosen.port, [payload(chosen.path, body) for body in bodies], requests)
    await pool.connect(1 if chosen.closed else chosen.connections)
    if chosen.closed:
        drained = await closed_loop(pool, requests)
    else:
        drained = await open_loop(pool, times, chosen.patience)
    return {
        "sent": requests,
        **pool.counts,
        "rate": None if chosen.closed else chosen.rate,
        "drain_seconds": round(drained, 3),
        "milliseconds": {
            name: None if (found := quantile(pool.latencies, share)) is None else round(1000 * found, 3)
            for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        },
        "mean_depth": round(sum(pool.depths) / len(pool.depths), 3) if pool.depths else None,
        "depths": {str(depth): count for depth, count in sorted(Counter(pool.depths).items())},
        "lag_p99_ms": round(1000 * (quantile(pool.lags, 0.99) or 0.0), 3),
        "generator_us": round(1e6 * pool.busy / requests, 1),
    }


def main() -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", default="/v1/predict")
    parser.add_argument("--bodies", type=Path, required=True, help="one JSON body a line")
    parser.add_argument("--rate", type=float, default=10.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--bursts", action="store_true", help="send at 4 times the rate for a quarter of every second")
    parser.add_argument("--closed", type=int, default=0, help="send so many requests one after another instead")
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--patience", type=float, default=10.0, help="seconds to wait for the last answers")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        import uvloop

        new_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        json.dump(runner.run(measure(chosen)), sys.stdout)


if __name__ == "__main__":
    main()
