"""The ASGI app: routes, and what happens around every request: key, body, limits, headers, errors, counts."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from exitpoll.server import native, operations
from exitpoll.server.classify import CLASSIFY
from exitpoll.server.classify import error as classify_error
from exitpoll.server.dialects import Dialect, Incoming
from exitpoll.server.inputs import INFERENCE, PREDICT
from exitpoll.server.metrics import OTHER
from exitpoll.server.model_thread import Result
from exitpoll.server.native import NATIVE
from exitpoll.server.open_inference import OPEN_INFERENCE
from exitpoll.server.open_inference import error as open_inference_error
from exitpoll.server.refusals import RefusalError, backend, too_large
from exitpoll.server.service import Running, Service, check_results, collect

logger = logging.getLogger("exitpoll.server")
REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
PREDICTING: dict[str, Dialect] = {
    "/v1/predict": NATIVE,
    "/predict": PREDICT,
    "/invocations": PREDICT,
    "/": INFERENCE,
    "/models/{name:path}": INFERENCE,
    "/classify": CLASSIFY,
    "/v1/classify": CLASSIFY,
    "/v2/models/{name}/infer": OPEN_INFERENCE,
    "/v2/models/{name}/versions/{version}/infer": OPEN_INFERENCE,
}
STREAM = "/v1/predict/stream"

Handle = Callable[[Request], Awaitable[Response]]
WriteError = Callable[[RefusalError], object]


def build_app(service: Service) -> Starlette:
    """Build the app of a service, which starts and ends with it.

    Args:
        service: The service.

    Returns:
        The app.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            service.stop()

    routes = [
        Route(path, _guarded(service, path, _predict(service, dialect), dialect.error), methods=["POST"])
        for path, dialect in PREDICTING.items()
    ]
    streaming = _guarded(service, STREAM, _stream(service), native.error)
    routes.insert(0, Route(STREAM, streaming, methods=["POST"]))
    for path, (method, handle) in operations.routes(service).items():
        error = open_inference_error if path.startswith("/v2") else native.error
        is_open = path in operations.OPEN or (path == "/metrics" and not service.settings.protect_metrics)
        routes.append(Route(path, _guarded(service, path, handle, error, is_open=is_open), methods=[method]))
    return Starlette(
        routes=_merged(routes), lifespan=lifespan, exception_handlers={HTTPException: _http_error(service)}
    )


def _merged(routes: Sequence[Route]) -> list[Route]:
    """Put routes with parameters last, so that they hide no others."""
    return sorted(routes, key=lambda route: "{" in route.path)


# ---- around every request -------------------------------------------------------------------------------------------


def _guarded(service: Service, route: str, handle: Handle, error: WriteError, *, is_open: bool = False) -> Handle:
    """Wrap a handler: whatever is wrong becomes an error of its dialect, and every request is counted."""

    async def guarded(request: Request) -> Response:
        before = time.perf_counter()
        with service.tracing.request(request.method, route, request.headers) as span:
            try:
                if not is_open:
                    _check_key(service, request)
                response = await handle(request)
            except RefusalError as refusal:
                response = error_response(refusal, error)
            except ClientDisconnect:
                response = error_response(RefusalError(499, "Cancelled", "the client has closed the connection"), error)
            except Exception:
                logger.exception("a request to %s failed", route)
                response = error_response(backend("the server failed on this request", 500), error)
            response.headers.update(service.tracing.answer(span, response.status_code))
        seconds = time.perf_counter() - before
        response.headers["X-Request-Id"] = _request_id(request)
        service.metrics.requests.labels(route, response.status_code).inc()
        service.metrics.request_seconds.observe(seconds)
        return response

    return guarded


def error_response(refusal: RefusalError, error: WriteError) -> Response:
    """Return the response of an error, in the shape of a dialect."""
    return JSONResponse(error(refusal), refusal.status, headers=refusal.headers)


def _http_error(service: Service) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Return what answers paths and methods that do not exist."""

    async def handle(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path:.80} is not served; GET /openapi.json lists what is"
        refusal = RefusalError(error.status_code, "NotFound", message, error.headers)
        service.metrics.requests.labels(OTHER, error.status_code).inc()
        if request.url.path.startswith("/v2"):
            return error_response(refusal, open_inference_error)
        is_classify = request.url.path.startswith(("/classify", "/v1/classify"))
        return error_response(refusal, classify_error if is_classify else native.error)

    return handle


def _check_key(service: Service, request: Request) -> None:
    """Refuse a request that does not bear the key."""
    key = service.settings.api_key
    if key is None:
        return
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), key.encode()):
        headers = {"WWW-Authenticate": "Bearer"}
        raise RefusalError(401, "Authentication", "the request has no valid key: Authorization: Bearer …", headers)


def _request_id(request: Request) -> str:
    """Return the id that the client gave the request, or a new one."""
    given = request.headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


async def _incoming(service: Service, request: Request) -> Incoming:
    """Read a request, within the limits of size and time."""
    settings = service.settings
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 12 or int(length) > settings.max_body_bytes):
        raise too_large(f"the body is larger than {settings.max_body_bytes} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(settings.body_timeout):
            async for chunk in request.stream():
                body += chunk
                if len(body) > settings.max_body_bytes:
                    raise too_large(f"the body is larger than {settings.max_body_bytes} bytes")
    except TimeoutError as error:
        message = f"the body did not arrive within {settings.body_timeout:g} s"
        raise RefusalError(408, "Timeout", message, {"Connection": "close"}) from error
    return Incoming(bytes(body), request.headers, request.path_params)


# ---- predicting -----------------------------------------------------------------------------------------------------


def _predict(service: Service, dialect: Dialect) -> Handle:
    """Return the handler of a dialect."""

    async def handle(request: Request) -> Response:
        before = time.perf_counter()
        ask, render = dialect.parse(service, await _incoming(service, request))
        running, results = await collect(service, ask, request.receive)
        if dialect.is_finite:
            check_results(results, finite=True)
        elif all(result.prediction is None for result in results):
            check_results(results, finite=False)
        response = render(running, results)
        _add_times(response, running, results, time.perf_counter() - before)
        return response

    return handle


def _stream(service: Service) -> Handle:
    """Return the handler of the stream."""

    async def handle(request: Request) -> Response:
        return await native.stream(service, await _incoming(service, request))

    return handle


def _add_times(response: Response, running: Running, results: Sequence[Result], seconds: float) -> None:
    """Add headers: policy, guarantee, depth, tokens, and times as text-embeddings-inference and as Server-Timing."""
    queue = max((result.queue_seconds for result in results), default=0.0)
    model = max((result.model_seconds for result in results), default=0.0)
    times = {"tokenize": running.tokenize_seconds, "queue": queue, "model": model}
    milliseconds = {name: 1000 * value for name, value in times.items()}
    characters = sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in running.texts)
    depths = [result.prediction.depth for result in results if result.prediction is not None]
    response.headers.update(
        {
            "x-total-time": f"{1000 * seconds:.0f}",
            "x-tokenization-time": f"{milliseconds['tokenize']:.0f}",
            "x-queue-time": f"{milliseconds['queue']:.0f}",
            "x-inference-time": f"{milliseconds['model']:.0f}",
            "x-compute-tokens": str(sum(running.lengths)),
            "x-compute-characters": str(characters),
            "Server-Timing": ", ".join(f"{name};dur={value:.3f}" for name, value in milliseconds.items()),
            "X-Exit-Depth": f"{sum(depths) / max(len(depths), 1):.4g}",
            "X-Exit-Policy": running.policy.name,
        }
    )
    if running.guarantee is not None:
        response.headers["X-Exit-Guarantee"] = running.guarantee
