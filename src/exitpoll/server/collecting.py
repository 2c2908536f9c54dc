"""Run a request to its end: the results of all its texts in their order, unless the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from exitpoll.server.model_thread import Result
from exitpoll.server.refusals import RefusalError, backend
from exitpoll.server.requests import Ask, Running
from exitpoll.server.service import Service

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


async def collect(service: Service, ask: Ask, receive: Receive | None) -> tuple[Running, list[Result]]:
    """Run a request to its end.

    Args:
        service: The service.
        ask: The request.
        receive: Tells that the client has gone.

    Returns:
        The request, and the results of its texts in their order.
    """
    running = await service.begin(ask)
    watching = None if receive is None else asyncio.create_task(_watch(receive, running.results))
    found: list[Result | None] = [None] * len(running.texts)
    try:
        while running.open:
            result = await service.next_result(running)
            if result is None:
                raise RefusalError(499, "Cancelled", "the client has closed the connection")
            service.settle(running, result)
            found[result.index] = result
    finally:
        service.finish(running)
        if watching is not None:
            watching.cancel()
    return running, [result for result in found if result is not None]


def check_results(results: Sequence[Result], *, finite: bool) -> None:
    """Refuse to answer a request if one of its texts has no answer.

    Args:
        results: Of its texts.
        finite: Whether logits that are not finite count as no answer.
    """
    for result in results:
        if result.expired:
            raise RefusalError(504, "Timeout", f"text {result.index}: {result.error}")
        if result.prediction is None:
            raise backend(f"text {result.index}: {result.error}", 500)
        if finite and not result.prediction.is_finite:
            raise backend(f"text {result.index}: the logits of the model are not finite")


async def _watch(receive: Receive, results: asyncio.Queue) -> None:
    """Put None into the results when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    results.put_nowait(None)
