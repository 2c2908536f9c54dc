"""What operators ask for: health, what is served, metrics, the policies again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from exitpoll.decide.certificate import FULL_MODEL
from exitpoll.decide.policy import Policy
from exitpoll.errors import InputError
from exitpoll.server.inputs import policy_in_name
from exitpoll.server.open_inference import model_metadata, server_metadata
from exitpoll.server.openapi import document
from exitpoll.server.pages import PAGES, page
from exitpoll.server.policies import DEFAULT
from exitpoll.server.refusals import RefusalError, invalid, unavailable
from exitpoll.server.service import Service
from exitpoll.server.status import status

Handle = Callable[[Request], Awaitable[Response]]
PROBES = ("/health", "/health/live", "/health/ready", "/ping", "/v2/health/live", "/v2/health/ready")
OPEN = (*PROBES, *PAGES)  # without a key


def routes(service: Service) -> dict[str, tuple[str, Handle]]:
    """Return method and handler of every path.

    Args:
        service: The service.

    Returns:
        By path.
    """
    live, ready = _probe(service, ready=False), _probe(service, ready=True)
    return {
        **{path: ("GET", _page(service, path)) for path in PAGES},
        "/health": ("GET", ready),
        "/health/live": ("GET", live),
        "/health/ready": ("GET", ready),
        "/ping": ("GET", ready),
        "/info": ("GET", _json(lambda request: info(service))),
        "/metrics": ("GET", _metrics(service)),
        "/openapi.json": ("GET", _json(lambda request: document(service))),
        "/v1/models": ("GET", _json(lambda request: models(service))),
        "/v1/status": ("GET", _json(lambda request: status(service))),
        "/v1/policies": ("GET", _json(lambda request: policies(service))),
        "/v1/policies/reload": ("POST", _json(lambda request: reload(service))),
        "/v2": ("GET", _json(lambda request: server_metadata())),
        "/v2/health/live": ("GET", live),
        "/v2/health/ready": ("GET", ready),
        "/v2/models/{name}": ("GET", _json(lambda request: model_metadata(service, request.path_params["name"]))),
        "/v2/models/{name}/versions/{version}": (
            "GET",
            _json(lambda request: model_metadata(service, request.path_params["name"])),
        ),
        "/v2/models/{name}/ready": ("GET", _model_ready(service)),
        "/v2/models/{name}/versions/{version}/ready": ("GET", _model_ready(service)),
    }


def _json(content: Callable[[Request], Any]) -> Handle:
    """Return a handler that answers with JSON."""

    async def handle(request: Request) -> Response:
        return JSONResponse(content(request))

    return handle


def _page(service: Service, path: str) -> Handle:
    """Return the handler of a page, or of a file that belongs to it."""

    async def handle(request: Request) -> Response:
        return page(path, lambda: document(service))

    return handle


def _probe(service: Service, *, ready: bool) -> Handle:
    """Return a probe of readiness, or of liveness."""

    async def handle(request: Request) -> Response:
        if not service.is_live:
            raise RefusalError(503, "Unhealthy", "the model is stalled in a call, or what runs it has ended")
        if ready and not service.is_ready:
            raise unavailable("the server is ending" if service.runner.is_up else "no model process is up yet")
        return JSONResponse({"status": "ok"})

    return handle


def _model_ready(service: Service) -> Handle:
    """Return a probe of a model by name."""

    async def handle(request: Request) -> Response:
        policy_in_name(service, request.path_params["name"])
        return await _probe(service, ready=True)(request)

    return handle


def _metrics(service: Service) -> Handle:
    """Return the handler of metrics."""

    async def handle(request: Request) -> Response:
        return Response(service.metrics.render(service.runner.pool_texts), media_type=CONTENT_TYPE_LATEST)

    return handle


def info(service: Service) -> dict[str, Any]:
    """Describe the model: the keys of text-embeddings-inference, and exits, policies and guarantees."""
    from importlib.metadata import version

    names, settings, runtime = service.model.label_names, service.settings, service.model.runtime
    by_number = {str(number): name for number, name in enumerate(names)}
    by_name = {name: number for number, name in enumerate(names)}
    return {
        "model_id": service.name,
        "model_sha": runtime.fingerprint,
        "model_dtype": runtime.name.split()[-1],
        "model_type": {"classifier": {"id2label": by_number, "label2id": by_name}},
        "max_input_length": service.max_tokens,
        "max_client_batch_size": settings.max_texts,
        "auto_truncate": True,
        "version": version("exitpoll"),
        "runtime": runtime.name,
        "problem_type": runtime.problem_type,
        "pairs": service.model.training.get("pairs"),
        "layers": service.layers,
        "exit_layers": list(runtime.exit_layers),
        "max_queue_layer_tokens": settings.max_queue,
        "policies": policies(service)["policies"],
    }


def policies(service: Service) -> dict[str, Any]:
    """Describe the policies."""
    certificates = [named.policy.certificate for named in service.policies.values()]
    guarantees = [certificate.guarantee for certificate in certificates if certificate is not None]
    of_full = 0.0 if all(one is None or one.reference == FULL_MODEL for one in guarantees) else None
    rows = [
        {
            "name": named.name,
            "policy": named.policy.name,
            "exits_early": named.policy.threshold is not None,
            "guarantee": named.guarantee,
            **_figures(named.policy, of_full),
        }
        for named in service.policies.values()
    ]
    return {"default": DEFAULT, "policies": rows}


def _figures(policy: Policy, of_full: float | None) -> dict[str, float | None]:
    """Return how fast a policy is and how often its answers differ, as calibration found; with bound and limit."""
    certificate = policy.certificate
    guarantee = None if certificate is None else certificate.guarantee
    unknown: dict[str, float | None] = dict.fromkeys(("speedup", "measured", "bound", "limit"))
    if policy.threshold is None and policy.max_depth is None:
        return unknown | {"speedup": 1.0, "measured": of_full}
    if certificate is None:
        return unknown
    if guarantee is None or guarantee.risk != "disagreement":
        return unknown | {"speedup": certificate.speedup}
    figures = {"measured": certificate.measured, "bound": certificate.bound, "limit": guarantee.at_most}
    return {"speedup": certificate.speedup, **figures}


def reload(service: Service) -> dict[str, Any]:
    """Read the policies again."""
    try:
        service.reload()
    except (InputError, OSError) as error:
        raise invalid(f"the policies stay as they were: {error}", 409) from error
    return policies(service)


def models(service: Service) -> dict[str, Any]:
    """List the model, and the model with each policy, as OpenAI's API lists models."""
    names = [service.name, *(f"{service.name}:{name}" for name in service.policies)]
    return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "exitpoll"} for name in names]}
