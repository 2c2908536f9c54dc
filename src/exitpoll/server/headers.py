"""Headers of answers: policy and guarantee, depth, tokens, and times as text-embeddings-inference and Server-Timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exitpoll.server.model_thread import Result
from exitpoll.server.requests import Running


def headers_of_begun(running: Running) -> dict[str, str]:
    """Return the headers that are known before any text has left.

    Args:
        running: The request.

    Returns:
        The headers, by names in lower case.
    """
    characters = sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in running.texts)
    headers = {
        "x-tokenization-time": f"{1000 * running.tokenize_seconds:.0f}",
        "x-compute-tokens": str(sum(running.lengths)),
        "x-compute-characters": str(characters),
        "server-timing": _timing({"tokenize": running.tokenize_seconds}),
        "x-exit-policy": running.policy.name,
    }
    return headers if running.guarantee is None else {**headers, "x-exit-guarantee": running.guarantee}


def headers_of_answered(running: Running, results: Sequence[Result], seconds: float) -> dict[str, str]:
    """Return all headers of a request that has been answered.

    Args:
        running: The request.
        results: Of its texts.
        seconds: From its arrival until now.

    Returns:
        The headers, by names in lower case.
    """
    queue = max((result.queue_seconds for result in results), default=0.0)
    model = max((result.model_seconds for result in results), default=0.0)
    depths = [result.prediction.depth for result in results if result.prediction is not None]
    return {
        **headers_of_begun(running),
        "x-total-time": f"{1000 * seconds:.0f}",
        "x-queue-time": f"{1000 * queue:.0f}",
        "x-inference-time": f"{1000 * model:.0f}",
        "server-timing": _timing({"tokenize": running.tokenize_seconds, "queue": queue, "model": model}),
        "x-exit-depth": f"{sum(depths) / max(len(depths), 1):.4g}",
    }


def _timing(seconds: Mapping[str, float]) -> str:
    """Write times as Server-Timing has them."""
    return ", ".join(f"{name};dur={1000 * value:.3f}" for name, value in seconds.items())
