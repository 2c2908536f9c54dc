"""POST /v1/predict and its stream: predictions with depth, votes, policy and guarantee."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from exitpoll.decide.metrics import predictions
from exitpoll.decide.policy import Policy
from exitpoll.decide.strategies import strategy_named
from exitpoll.engine.arrivals import with_depth_cap
from exitpoll.engine.engine import Prediction
from exitpoll.server.bodies import Fields, read_object, take_count
from exitpoll.server.dialects import Dialect, Incoming, Render, ranked, scores_of, timeout_of
from exitpoll.server.headers import headers_of_begun
from exitpoll.server.model_thread import Result
from exitpoll.server.refusals import RefusalError, invalid
from exitpoll.server.service import Ask, Running, Service

NDJSON = "application/x-ndjson"
PING = 15.0  # seconds of silence after which a stream shows that it is alive


def parse(service: Service, incoming: Incoming) -> tuple[Ask, Render]:
    """Read a request."""
    ask, top_k = read(incoming)

    def render(running: Running, results: Sequence[Result]) -> Response:
        content = {**about(service, running), "predictions": [], "usage": usage(service, running, results)}
        content["predictions"] = [prediction_of(service, running, result, top_k) for result in results]
        return JSONResponse(content)

    return ask, render


def read(incoming: Incoming) -> tuple[Ask, int | None]:
    """Read the fields of a request."""
    fields = Fields(read_object(incoming.body))
    texts, text = fields.take("texts", list), fields.any("text")
    if (texts is None) == (text is None):
        raise invalid("give either texts, a list, or text")
    policy, max_depth = fields.take("policy", str), take_count(fields, "max_depth", at_least=0)
    top_k, explain = take_count(fields, "top_k"), fields.take("explain", bool, False)
    truncate, timeout = fields.take("truncate", bool, True), fields.take("timeout_ms", float)
    fields.end()
    given = [text] if texts is None else texts
    return Ask(given, policy, max_depth, bool(explain), timeout_of(incoming, timeout), bool(truncate)), top_k


def about(service: Service, running: Running) -> dict[str, Any]:
    """Return what holds for all predictions of a request."""
    return {
        "model": service.name,
        "runtime": service.model.runtime.name,
        "policy": running.policy.name,
        "guarantee": running.guarantee,
    }


def usage(service: Service, running: Running, results: Sequence[Result]) -> dict[str, int]:
    """Count texts, tokens and layers."""
    depths = [result.prediction.depth for result in results if result.prediction is not None]
    return {
        "texts": len(running.texts),
        "tokens": sum(running.lengths),
        "layers_run": sum(depths),
        "layers_full": service.layers * len(running.texts),
    }


def prediction_of(service: Service, running: Running, result: Result, top_k: int | None) -> dict[str, Any]:
    """Return the prediction for one text."""
    prediction, tokens = result.prediction, running.lengths[result.index]
    if prediction is None:
        return {"index": result.index, "label": None, "error": result.error}
    row: dict[str, Any] = {"index": result.index, **_answer(prediction)}
    row |= {
        "depth": prediction.depth,
        "layers": service.layers,
        "tokens": tokens,
        "truncated": tokens >= service.max_tokens,
        "queue_ms": round(1000 * result.queue_seconds, 3),
        "model_ms": round(1000 * result.model_seconds, 3),
    }
    if not prediction.is_finite:
        return {**row, "label": None, "probability": None, "error": "the logits of the model are not finite"}
    if top_k is not None and not isinstance(prediction.label, float):
        scores = ranked(prediction, scores_of(prediction, service.model.label_names), top_k)
        row["scores"] = [{"label": label, "score": score} for label, score in scores]
    if result.seen is not None:
        row["votes"] = _votes(service, running, prediction.depth, result.seen)
    return row


def _answer(prediction: Prediction) -> dict[str, Any]:
    """Return label and probability; a value has no probability."""
    if isinstance(prediction.label, float):
        return {"label": prediction.label, "probability": None}
    label = list(prediction.label) if isinstance(prediction.label, tuple) else prediction.label
    return {"label": label, "probability": prediction.probability}


def _votes(service: Service, running: Running, depth: int, seen: np.ndarray) -> list[dict[str, Any]]:
    """Return what every exit that a text passed said, and how sure the policy was there."""
    policy = running.policy.policy
    policy = policy if running.max_depth is None else with_depth_cap(policy, running.max_depth)
    layers = policy.asked(service.model.runtime.exit_layers)
    reached = layers.index(depth) + 1
    logits = seen[None, :reached]  # (1, exits, classes)
    if policy.threshold is None:  # one head was asked
        return [{"layer": depth, **_vote(service, logits[0, -1]), "score": None, "threshold": None, "exits": True}]
    scores, levels = _natural(policy, policy.opinion(logits).score[0], len(layers))
    return [
        {
            "layer": layer,
            **_vote(service, logits[0, number]),
            "score": _finite(scores[number]),
            "threshold": _finite(levels[number]),
            "exits": layer == depth,
        }
        for number, layer in enumerate(layers[:reached])
    ]


def _natural(policy: Policy, scores: np.ndarray, exits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and thresholds in natural units: of entropy, which falls, as it is."""
    sign = strategy_named(policy.strategy).sign_for(policy.problem_type)
    return scores * sign, policy.levels(exits) * sign


def _vote(service: Service, logits: np.ndarray) -> dict[str, Any]:
    """Return the answer of one head."""
    model = service.model
    answer = predictions(logits[None], model.runtime.problem_type)[0]
    names = model.label_names
    if model.runtime.problem_type == "regression":
        return {"label": _finite(float(answer)), "probability": None}
    if model.runtime.problem_type == "multi_label_classification":
        return {"label": [name for name, applies in zip(names, answer, strict=True) if applies], "probability": None}
    probability = scores_of(Prediction(names[int(answer)], 0.0, 0, True, 0, logits, names), names)[names[int(answer)]]
    return {"label": names[int(answer)], "probability": _finite(probability)}


def _finite(number: float) -> float | None:
    """Return a number for JSON, which has no NaN."""
    return float(number) if np.isfinite(number) else None


def error(refusal: RefusalError) -> object:
    """Return the body of an error."""
    return {"error": str(refusal), "error_type": refusal.kind}


NATIVE = Dialect(parse, error, is_finite=False)


# ---- the stream -----------------------------------------------------------------------------------------------------


class Stream(StreamingResponse):
    """A response in parts that says when it has ended, even if none of them was sent."""

    def __init__(self, lines: AsyncIterator[str], on_end: list[Callable[[], None]], **named: Any) -> None:
        """Prepare a response.

        Args:
            lines: The parts.
            on_end: What is told that it has ended.
            named: For Starlette.
        """
        super().__init__(lines, **named)
        self.on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            for end in self.on_end:
                end()


async def stream(service: Service, incoming: Incoming) -> Response:
    """Answer every text as it leaves, as server-sent events or lines of JSON."""
    ask, top_k = read(incoming)
    running = await service.begin(ask)
    as_lines = NDJSON in incoming.headers.get("accept", "")
    lines = _lines(service, running, top_k, as_lines=as_lines)
    media_type = NDJSON if as_lines else "text/event-stream"
    headers = {"Cache-Control": "no-cache", **headers_of_begun(running)}
    return Stream(lines, [lambda: service.finish(running)], media_type=media_type, headers=headers)


async def _lines(service: Service, running: Running, top_k: int | None, *, as_lines: bool) -> AsyncIterator[str]:
    """Write predictions in the order in which texts leave, and then the counts."""
    results: list[Result] = []
    waiting: asyncio.Future[Result | None] | None = None
    try:
        while running.open:
            waiting = asyncio.ensure_future(service.next_result(running))
            while not (await asyncio.wait([waiting], timeout=PING))[0]:
                yield "\n" if as_lines else ": ping\n\n"
            result = waiting.result()
            if result is None:
                return
            service.settle(running, result)
            results.append(result)
            yield _written("prediction", prediction_of(service, running, result, top_k), as_lines=as_lines)
        done = {**about(service, running), "usage": usage(service, running, results)}
        yield _written("done", done, as_lines=as_lines)
    except RefusalError as refusal:
        yield _written("error", {"error": str(refusal), "error_type": refusal.kind}, as_lines=as_lines)
    finally:
        if waiting is not None:
            waiting.cancel()
        service.finish(running)


def _written(event: str, content: dict[str, Any], *, as_lines: bool) -> str:
    """Write an event."""
    line = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"{line}\n" if as_lines else f"event: {event}\ndata: {line}\n\n"
