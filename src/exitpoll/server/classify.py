"""POST /classify and /v1/classify, as vLLM and SGLang have them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from starlette.responses import JSONResponse, Response

from exitpoll.server.bodies import Fields, read_object
from exitpoll.server.dialects import Dialect, Incoming, Render, scores_of, timeout_of
from exitpoll.server.inputs import policy_in_name
from exitpoll.server.model_thread import Result
from exitpoll.server.refusals import RefusalError, invalid
from exitpoll.server.service import Ask, Running, Service

ERROR_TYPES = {401: "AuthenticationError", 404: "NotFoundError", 429: "RateLimitError"}


def parse(service: Service, incoming: Incoming) -> tuple[Ask, Render]:
    """Read a request; fields that are not known are ignored."""
    fields = Fields(read_object(incoming.body))
    name, given = fields.take("model", str), fields.any("input")
    policy = None if name is None else policy_in_name(service, name)
    texts = given if isinstance(given, list) else [given]
    flat = [part for text in texts for part in (text if isinstance(text, list) else [text])]
    if any(isinstance(part, int) for part in flat):
        raise invalid("input must be texts only: token ids are not read", 400)
    _check_cut(fields.take("truncate_prompt_tokens", int), service.max_tokens)
    uses_activation = fields.take("use_activation", bool, True)
    number = fields.take("request_id", str) or f"classify-{uuid.uuid4().hex}"

    def render(running: Running, results: Sequence[Result]) -> Response:
        function = None if uses_activation else "none"
        tokens = sum(running.lengths)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}
        content = {
            "id": number,
            "object": "list",
            "created": int(time.time()),
            "model": service.name if name is None else name,
            "data": [_row(service, result, function) for result in results],
            "usage": usage,
        }
        return JSONResponse(content)

    return Ask(texts, policy, timeout=timeout_of(incoming)), render


def _check_cut(tokens: int | None, longest: int) -> None:
    """Refuse to cut texts to fewer tokens than the model reads."""
    if tokens is not None and 0 <= tokens < longest:
        raise invalid(f"truncate_prompt_tokens {tokens} is not supported: texts are cut to {longest} tokens", 400)


def _row(service: Service, result: Result, function: str | None) -> dict[str, object]:
    """Return the answer for one text, with the scores in the order of classes."""
    prediction = result.prediction
    assert prediction is not None
    probs = list(scores_of(prediction, service.model.label_names, function).values())
    label = list(prediction.label) if isinstance(prediction.label, tuple) else prediction.label
    return {
        "index": result.index,
        "label": label,
        "probs": probs,
        "num_classes": len(probs),
        "depth": prediction.depth,
    }


def error(refusal: RefusalError) -> object:
    """Return the body of an error."""
    kind = ERROR_TYPES.get(refusal.status, "BadRequestError" if refusal.status < 500 else "InternalServerError")
    return {"error": {"message": str(refusal), "type": kind, "param": None, "code": refusal.status}}


CLASSIFY = Dialect(parse, error)
