"""POST /predict as text-embeddings-inference has it, and / as Hugging Face's inference clients expect it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import JSONResponse, Response

from exitpoll.server.bodies import Fields, read_object, take_count
from exitpoll.server.dialects import FUNCTIONS, Dialect, Incoming, Render, ranked, scores_of, timeout_of
from exitpoll.server.model_thread import Result
from exitpoll.server.native import error
from exitpoll.server.refusals import RefusalError, invalid
from exitpoll.server.service import Ask, Running, Service


def parse_predict(service: Service, incoming: Incoming) -> tuple[Ask, Render]:
    """Read a request of text-embeddings-inference: one input is answered by a flat list."""
    return _parse(service, incoming, always_nested=False)


def parse_inference(service: Service, incoming: Incoming) -> tuple[Ask, Render]:
    """Read a request of an inference client, which takes the first list of the answer."""
    name = incoming.path.get("name")
    policy = None if name is None else policy_in_name(service, name)
    return _parse(service, incoming, always_nested=True, policy=policy)


def policy_in_name(service: Service, name: str) -> str | None:
    """Return the policy that the name of a model carries, as in `trec-bert:fast`."""
    model, colon, policy = name.partition(":")
    if model != service.name or (colon and policy not in service.policies):
        raise RefusalError(
            404, "NotFound", f"there is no model {name!r:.80}; GET /v1/models lists those that are served"
        )
    return policy or None


def _parse(
    service: Service, incoming: Incoming, *, always_nested: bool, policy: str | None = None
) -> tuple[Ask, Render]:
    """Read a request; fields that are not known are ignored, since other servers have more of them."""
    fields = Fields(read_object(incoming.body))
    texts, is_single = _texts(fields.any("inputs"), bool(service.model.training.get("pairs", False)))
    truncate = fields.take("truncate", bool, True)
    raw = fields.take("raw_scores", bool, False)
    if str(fields.any("truncation_direction")).lower() == "left":
        raise invalid("truncation_direction left is not supported: texts are cut as the model was trained")
    parameters = Fields(fields.take("parameters", dict, {}) or {}, "parameters.")
    top_k, function = take_count(parameters, "top_k"), parameters.take("function_to_apply", str)
    if function is not None and function not in FUNCTIONS:
        raise invalid(f"parameters.function_to_apply must be one of: {', '.join(FUNCTIONS)}")
    function = "none" if raw else function

    def render(running: Running, results: Sequence[Result]) -> Response:
        rows = [_row(service, result, function, top_k) for result in results]
        return JSONResponse(rows[0] if is_single and not always_nested else rows)

    return Ask(texts, policy, timeout=timeout_of(incoming), truncate=bool(truncate)), render


def _row(service: Service, result: Result, function: str | None, top_k: int | None) -> list[dict[str, Any]]:
    """Return the labels of one text with their scores."""
    assert result.prediction is not None
    scores = scores_of(result.prediction, service.model.label_names, function)
    return [{"score": score, "label": label} for label, score in ranked(result.prediction, scores, top_k)]


def _texts(given: object, pairs: bool) -> tuple[list[object], bool]:
    """Return the texts, and whether it was one input.

    A list of two strings is a pair for a model that was trained on pairs, and two texts for all others.
    """
    if isinstance(given, str | dict):
        return [_text(given)], True
    if not isinstance(given, list):
        raise invalid("inputs must be a text, a list of texts or pairs, or an object with text and text_pair")
    is_pair = pairs and len(given) == 2 and all(isinstance(part, str) for part in given)
    return ([given], True) if is_pair else ([_text(item) for item in given], False)


def _text(given: object) -> object:
    """Return a text or a pair, of the forms that stand for one."""
    if isinstance(given, dict):
        known = {"text", "text_pair"}
        if "text" not in given or set(given) - known:
            raise invalid("an input that is an object has text, and text_pair for a pair")
        pair = given.get("text_pair")
        return given["text"] if pair is None else [given["text"], pair]
    return given[0] if isinstance(given, list) and len(given) == 1 else given


PREDICT = Dialect(parse_predict, error)
INFERENCE = Dialect(parse_inference, error)
