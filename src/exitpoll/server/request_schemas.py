"""JSON schemas of the requests that predict, for the OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exitpoll.server.dialects import LONGEST, SHORTEST

if TYPE_CHECKING:
    from exitpoll.server.service import Service

Schema = dict[str, Any]
MOST = (1 << 31) - 1  # of counts


def schema_of(service: Service, path: str) -> Schema:
    """Return the schema of the requests to a path.

    Args:
        service: The service, whose limits and policies it states.
        path: One of those that predict.

    Returns:
        The schema.
    """
    if path.startswith("/v1/predict"):
        return _native(service)
    if path.endswith("/classify"):
        return _classify(service)
    return _infer(service) if path.startswith("/v2") else _inputs(service)


def _native(service: Service) -> Schema:
    """Return the schema of /v1/predict: either texts or text, and nothing that is not known."""
    text, texts, missing = _text(service), _texts(service), {"type": "null"}
    fields = {
        "texts": {"anyOf": [texts, missing]},
        "text": {"anyOf": [text, missing]},
        "policy": _or_null({"type": "string", "enum": list(service.policies)}),
        "max_depth": _count(_first_exit(service)),
        "top_k": _count(1),
        "explain": _or_null({"type": "boolean"}),
        "timeout_ms": _or_null({"type": "number", "minimum": 1000 * SHORTEST, "maximum": 1000 * LONGEST}),
        "truncate": _or_null({"type": "boolean"}),
    }
    either = [
        {"required": ["texts"], "properties": {"texts": texts, "text": missing}},
        {"required": ["text"], "properties": {"text": text, "texts": missing}},
    ]
    return {"type": "object", "properties": fields, "anyOf": either, "additionalProperties": False}


def _inputs(service: Service) -> Schema:
    """Return the schema of text-embeddings-inference; other fields are ignored."""
    parameters = {
        "type": "object",
        "properties": {
            "top_k": _count(1),
            "function_to_apply": _or_null({"type": "string", "enum": ["softmax", "sigmoid", "none"]}),
        },
    }
    alone = {"type": "array", "items": _text(service), "minItems": 1, "maxItems": 1}
    fields = {
        "inputs": {"anyOf": [*_forms(service), _list_of(service, {"anyOf": [*_forms(service), alone]})]},
        "truncate": _or_null({"type": "boolean"}),
        "raw_scores": _or_null({"type": "boolean"}),
        "parameters": _or_null(parameters),
    }
    return {"type": "object", "properties": fields, "required": ["inputs"]}


def _classify(service: Service) -> Schema:
    """Return the schema of vLLM's /classify; other fields are ignored."""
    names = [service.name, *(f"{service.name}:{name}" for name in service.policies)]
    fields = {
        "input": {"anyOf": [_text(service), _texts(service)] if not _is_pairs(service) else [_texts(service)]},
        "model": _or_null({"type": "string", "enum": names}),
        "use_activation": _or_null({"type": "boolean"}),
        "request_id": _or_null({"type": "string"}),
    }
    return {"type": "object", "properties": fields, "required": ["input"]}


def _infer(service: Service) -> Schema:
    """Return the schema of the Open Inference Protocol, with texts as JSON."""
    string = _string(service)
    row = {"type": "array", "items": string}
    tensor = {
        "type": "object",
        "properties": {
            "name": {"const": "text"},
            "datatype": {"const": "BYTES"},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1, "maxItems": 2},
            "data": {"type": "array", "items": {"anyOf": [string, row]}, "minItems": 1},
        },
        "required": ["name", "datatype", "shape", "data"],
    }
    parameters = {
        "type": "object",
        "properties": {
            "policy": _or_null({"type": "string", "enum": list(service.policies)}),
            "max_depth": _count(_first_exit(service)),
        },
    }
    fields = {
        "id": _or_null({"type": "string"}),
        "inputs": {"type": "array", "items": tensor, "minItems": 1, "maxItems": 1},
        "parameters": _or_null(parameters),
    }
    return {"type": "object", "properties": fields, "required": ["inputs"]}


def _first_exit(service: Service) -> int:
    """Return the least depth that may be asked for, with one policy or another."""
    return min(named.policy.asked(service.model.runtime.exit_layers)[0] for named in service.policies.values())


def _is_pairs(service: Service) -> bool | None:
    """Return whether the model was trained on pairs; None if it is not known, and it takes both."""
    return service.model.training.get("pairs")


def _string(service: Service) -> Schema:
    """Return the schema of a text: not empty."""
    return {"type": "string", "minLength": 1, "maxLength": service.settings.max_characters, "pattern": r"\S"}


def _text(service: Service) -> Schema:
    """Return the schema of a text or, for a model of pairs, of a pair."""
    string, is_pairs = _string(service), _is_pairs(service)
    pair = {"type": "array", "items": string, "minItems": 2, "maxItems": 2}
    return {"anyOf": [string, pair]} if is_pairs is None else pair if is_pairs else string


def _texts(service: Service) -> Schema:
    """Return the schema of several texts."""
    return _list_of(service, _text(service))


def _list_of(service: Service, text: Schema) -> Schema:
    """Return the schema of as many texts as a request may have, from that of one."""
    return {"type": "array", "items": text, "minItems": 1, "maxItems": service.settings.max_texts}


def _forms(service: Service) -> list[Schema]:
    """Return the schemas of what stands for one text in text-embeddings-inference: itself, or an object."""
    string, is_pairs = _string(service), _is_pairs(service)
    parts = {"text": string, "text_pair": string if is_pairs else {"type": "null"}}
    required = list(parts) if is_pairs else ["text"]
    return [
        _text(service),
        {"type": "object", "properties": parts, "required": required, "additionalProperties": False},
    ]


def _count(at_least: int) -> Schema:
    """Return the schema of an integer."""
    return _or_null({"type": "integer", "minimum": at_least, "maximum": MOST})


def _or_null(schema: Schema) -> Schema:
    """Allow null, which is as good as missing."""
    return {"anyOf": [schema, {"type": "null"}]}
