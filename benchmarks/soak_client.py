"""For the soak: clients that send requests at given times, whatever the server does, and note what became of them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import uvloop

CONNECTIONS = 400  # open at once
# What takes the place of a status: no response, maybe no connection; a client that left; a response without its end.
NOTHING, LEFT, CUT_OFF = 0, -1, -2


@dataclass
class Answer:
    """What became of one request."""

    status: int  # or one of those below
    seconds: float  # from the time it was to be sent
    texts: int
    served: float = 0.0  # seconds from the time it was sent; 0 if there was no connection
    planned: float = 0.0  # when it was to be sent
    number: int = 0  # of the request
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def sent(self) -> float:
        """When it was sent, which is later than planned if the client was busy."""
        return self.planned + self.seconds - self.served


Request = tuple[str, dict[str, object]]  # path, body


def encoded(path: str, body: dict[str, object]) -> bytes:
    """Write a request."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return f"{head}\r\n".encode() + content


def texts_in(body: dict[str, object]) -> int:
    """Count the texts of a request."""
    given = body.get("texts") or body.get("input") or body.get("inputs")
    if isinstance(given, list) and isinstance(given[0], dict):
        given = given[0]["data"]  # of a tensor
    return len(given) if isinstance(given, list) else 1


class Client:
    """Keep-alive connections to a server."""

    def __init__(self, port: int) -> None:
        """Prepare a client.

        Args:
            port: Of the server.
        """
        self.port, self.answers = port, list[Answer]()
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._room = asyncio.Semaphore(CONNECTIONS)

    async def send(self, number: int, request: Request, planned: float, leave_after: float | None = None) -> None:
        """Send a request and note the answer; a client that leaves closes the connection."""
        async with self._room:
            status, headers, content, sent = NOTHING, dict[str, str](), b"", list[float]()
            with suppress(OSError, asyncio.IncompleteReadError, ValueError, IndexError):
                status, headers, content = await self._exchange(encoded(*request), leave_after, sent)
            now, texts = time.monotonic(), texts_in(request[1])
            served = now - sent[-1] if sent else 0.0
            self.answers.append(Answer(status, now - planned, texts, served, planned, number, headers, content))

    async def _exchange(
        self, request: bytes, leave_after: float | None, sent: list[float]
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request over a connection that is idle, or a new one, and note when."""
        while True:
            is_new = not self._idle
            reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self.port)
            sent.append(time.monotonic())
            try:
                writer.write(request)
                if leave_after is not None:
                    await asyncio.sleep(leave_after)
                    writer.close()
                    return LEFT, {}, b""
                status, headers, content = await _read(reader)
            except (ConnectionError, asyncio.IncompleteReadError):
                writer.close()
                if is_new:
                    raise
                continue  # an idle connection that the server had closed: nothing was accepted
            if headers.get("connection") == "close":
                writer.close()
            else:
                self._idle.append((reader, writer))
            return status, headers, content

    async def run(
        self,
        requests: Sequence[Request],
        rate: float | Callable[[int], float],
        *,
        leaving: float = 0.0,
        during: Callable[[], object] | None = None,
    ) -> list[Answer]:
        """Send requests at Poisson times, and return what became of all.

        Args:
            requests: Paths and bodies.
            rate: Requests a second, or what returns it for the number of a request.
            leaving: The share of clients that close the connection at a random time.
            during: Something to do meanwhile, in a thread.

        Returns:
            The answers.
        """
        chance, tasks, planned = random.Random(0), [], time.monotonic()
        beside = None if during is None else asyncio.create_task(asyncio.to_thread(during))
        for number, request in enumerate(requests):
            planned += chance.expovariate(rate(number) if callable(rate) else rate)
            await asyncio.sleep(max(planned - time.monotonic(), 0))
            leave = chance.uniform(0, 0.02) if chance.random() < leaving else None
            tasks.append(asyncio.create_task(self.send(number, request, planned, leave)))
        await asyncio.gather(*tasks)
        if beside is not None:
            await beside
        self._close()
        return self.answers

    async def saturate(self, requests: Sequence[Request], clients: int) -> float:
        """Let clients send one request after another, and return how many are answered in a second."""
        left = enumerate(requests)

        async def ask() -> None:
            for number, request in left:
                await self.send(number, request, time.monotonic())

        before = time.monotonic()
        await asyncio.gather(*[ask() for _ in range(clients)])
        seconds = time.monotonic() - before
        self._close()
        return sum(answer.status == 200 for answer in self.answers) / seconds

    def _close(self) -> None:
        """Close all connections."""
        for _, writer in self._idle:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Read a response."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:]) if name}
    try:
        return int(head[0].split()[1]), headers, await _read_body(reader, headers)
    except (ConnectionError, asyncio.IncompleteReadError, ValueError):
        return CUT_OFF, {**headers, "connection": "close"}, b""


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    """Read a body, with a length or in chunks."""
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(parts)


def run(
    port: int, requests: Sequence[Request], rate: float | Callable[[int], float], **options: object
) -> list[Answer]:
    """Send requests at Poisson times, as `Client.run`."""

    async def main() -> list[Answer]:
        return await Client(port).run(requests, rate, **options)  # type: ignore[arg-type]

    return _run(main())


def saturate(port: int, requests: Sequence[Request], clients: int = 16) -> float:
    """Measure how many requests a second are answered when there is always more work, as `Client.saturate`."""

    async def main() -> float:
        return await Client(port).saturate(requests, clients)

    return _run(main())


Came = TypeVar("Came")


def _run(main: Coroutine[object, object, Came]) -> Came:
    """Run a coroutine in the event loop of servers, which costs clients less."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def quantile(seconds: Sequence[float], share: float) -> float:
    """Return a quantile in milliseconds."""
    ordered = sorted(seconds)
    return round(1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)], 2) if ordered else 0.0


def count(answers: Sequence[Answer]) -> dict[str, int]:
    """Count the texts of answers by status."""
    counts: dict[str, int] = {}
    for answer in answers:
        counts[str(answer.status)] = counts.get(str(answer.status), 0) + answer.texts
    return counts
