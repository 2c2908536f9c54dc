"""The ASGI app: routes, and what happens around every request: key, body, limits, headers, errors, counts."""

from __future__ import annotations

import asyncio
import hmac
import logging
import random
import re
import time
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
from exitpoll.server.collecting import check_results, collect
from exitpoll.server.dialects import Dialect, Incoming
from exitpoll.server.headers import headers_of_answered
from exitpoll.server.inputs import INFERENCE, PREDICT
from exitpoll.server.metrics import OTHER
from exitpoll.server.native import NATIVE, Stream
from exitpoll.server.open_inference import OPEN_INFERENCE
from exitpoll.server.open_inference import error as open_inference_error
from exitpoll.server.refusals import RefusalError, backend, too_large
from exitpoll.server.service import Service

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

    for path in (STREAM, *PREDICTING):
        service.metrics.count_request(path, 200, 0)  # has a series of its own, whatever comes first
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
        response.headers["X-Request-Id"] = _request_id(request)
        service.metrics.count_request(route, response.status_code)

        def end() -> None:
            service.tracing.end(span)
            service.metrics.request_seconds.observe(time.perf_counter() - before)

        if isinstance(response, Stream):
            response.on_end.append(end)
        else:
            end()
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
        headers = {"Allow": _methods_at(request)} if error.status_code == 405 else error.headers
        refusal = RefusalError(error.status_code, "NotFound", message, headers)
        service.metrics.count_request(OTHER, error.status_code)
        is_classify = request.url.path.startswith(("/classify", "/v1/classify"))
        write = classify_error if is_classify else native.error
        response = error_response(refusal, open_inference_error if request.url.path.startswith("/v2") else write)
        response.headers["X-Request-Id"] = _request_id(request)
        return response

    return handle


def _methods_at(request: Request) -> str:
    """List the methods of a path, which may have several routes."""
    routes = (route for route in request.app.routes if route.path_regex.match(request.url.path))
    return ", ".join(sorted({method for route in routes for method in route.methods}))


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
    return given if REQUEST_ID.fullmatch(given) else f"{random.getrandbits(128):032x}"


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
        headers = headers_of_answered(running, results, time.perf_counter() - before)
        # All are new: no need to look for each among the others, as `headers.update` does.
        response.raw_headers += [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        return response

    return handle


def _stream(service: Service) -> Handle:
    """Return the handler of the stream."""

    async def handle(request: Request) -> Response:
        return await native.stream(service, await _incoming(service, request))

    return handle
