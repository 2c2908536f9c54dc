"""The OpenAPI document, with an example for every request that predicts."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from exitpoll.server.pages import FILES
from exitpoll.server.request_schemas import schema_of

if TYPE_CHECKING:
    from exitpoll.server.service import Service

ERRORS = {
    "400": "The body is not JSON, or holds no texts.",
    "401": "The key is missing or wrong.",
    "404": "There is no such model or policy.",
    "408": "The body did not arrive in time.",
    "409": "A policy file is broken; the policies stay as they were.",
    "413": "The body, a text or the number of texts is above a limit.",
    "422": "A field or a text is wrong.",
    "424": "The logits of the model are not finite.",
    "429": "The server is overloaded; Retry-After says when to try again.",
    "500": "The model failed.",
    "503": "The server is not ready, or ending.",
    "504": "The time of the request is over.",
}
OPERATIONS = {
    "/": "The page, on which texts climb their exits.",
    "/health": "Whether the server is ready.",
    "/health/live": "Whether the model still makes calls that end.",
    "/health/ready": "Whether the server is ready.",
    "/ping": "Whether the server is ready, for SageMaker.",
    "/info": "Model, exits, policies and limits.",
    "/metrics": "Metrics in the format of Prometheus.",
    "/v1/models": "The model, and the model with each policy.",
    "/v1/status": "What the server has done since it started, and what audits found of its guarantees.",
    "/v1/policies": "The policies and their guarantees.",
    "/v2": "The server, as the Open Inference Protocol describes it.",
    "/v2/health/live": "Whether the model still makes calls that end.",
    "/v2/health/ready": "Whether the server is ready.",
    "/v2/models/{name}": "The model, its input and its outputs.",
    "/v2/models/{name}/ready": "Whether the server is ready, and has this model.",
    "/v2/models/{name}/versions/{version}": "The model, its input and its outputs.",
    "/v2/models/{name}/versions/{version}/ready": "Whether the server is ready, and has this model.",
    "/docs": "This document, for people.",
    "/openapi.json": "This document.",
    **{path: "A file of the page." for path in FILES if path != "/"},
}


def document(service: Service) -> dict[str, Any]:
    """Return the OpenAPI document of a service.

    Args:
        service: The service, whose model the examples fit.

    Returns:
        The document.
    """
    paths: dict[str, Any] = {
        path: {"get": _operation(about) | _in_path(service, path)} for path, about in OPERATIONS.items()
    }
    reload = _operation("Read the policies again; broken ones change nothing.")
    reload["responses"] |= {code: {"description": ERRORS[code]} for code in ("401", "409")}
    paths["/v1/policies/reload"] = {"post": reload}
    for path, (about, example) in examples(service).items():
        operation = _operation(about)
        schema = {**schema_of(service, path), "example": example}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        operation |= _in_path(service, path)
        operation["responses"] |= {code: {"description": words} for code, words in ERRORS.items() if code != "409"}
        paths[path] = paths.get(path, {}) | {"post": operation}
    title = {"title": "exitpoll", "version": version("exitpoll"), "description": "Early exits for text classifiers."}
    return {"openapi": "3.1.0", "info": title, "paths": paths}


def _in_path(service: Service, path: str) -> dict[str, Any]:
    """Return the parameters in a path: the model, which may name a policy, and its version, which is not read."""
    schemas: dict[str, dict[str, Any]] = {
        "name": {"type": "string", "enum": [service.name, *(f"{service.name}:{name}" for name in service.policies)]},
        "version": {"type": "string", "minLength": 1, "example": "1"},
    }
    rows = [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in schemas.items()
        if f"{{{name}}}" in path
    ]
    return {"parameters": rows} if rows else {}


def _operation(about: str) -> dict[str, Any]:
    """Return what all operations have."""
    responses = {"200": "OK", **{code: ERRORS[code] for code in ("401", "404", "503")}}
    return {"summary": about, "responses": {code: {"description": words} for code, words in responses.items()}}


def examples(service: Service) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return a summary and an example for every path that predicts."""
    pairs = bool(service.model.training.get("pairs"))
    text: object = ["Who wrote it ?", "She wrote it ."] if pairs else "How far is it from Denver to Aspen ?"
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1, 2 if pairs else 1], "data": _flat(text)}
    inputs = {"inputs": [text]}
    native = {"texts": [text], "policy": "default", "top_k": 3, "explain": True, "timeout_ms": 5000}
    return {
        "/v1/predict": ("Predict texts, with depth, votes and guarantee.", native),
        "/v1/predict/stream": ("Predict texts, each answered as it leaves.", {"texts": [text]}),
        "/predict": ("Predict as text-embeddings-inference.", inputs),
        "/invocations": ("Predict as text-embeddings-inference, for SageMaker.", inputs),
        "/": ("Predict for the inference clients of Hugging Face.", inputs),
        "/models/{name}": ("Predict for the inference clients of Hugging Face.", inputs),
        "/classify": ("Predict as vLLM.", {"model": service.name, "input": [text]}),
        "/v1/classify": ("Predict as vLLM.", {"model": service.name, "input": [text]}),
        "/v2/models/{name}/infer": ("Predict by the Open Inference Protocol.", {"inputs": [tensor]}),
        "/v2/models/{name}/versions/{version}/infer": (
            "Predict by the Open Inference Protocol.",
            {"inputs": [tensor]},
        ),
    }


def _flat(text: object) -> list[object]:
    """Return a text, or both texts of a pair, as the elements of a tensor."""
    return list(text) if isinstance(text, list) else [text]
