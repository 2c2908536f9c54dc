"""Traces: a span for every request, as a child of the caller's (W3C trace context), and one below it for every text.

Spans say how long a text waited and ran, how deep it went and by which policy; never what it said.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from exitpoll.errors import MissingExtraError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

    from exitpoll.server.model_thread import Result
    from exitpoll.server.service import Running

NAME, OTLP = "exitpoll", "otlp_proto_http"


class Tracing:
    """Spans of a server; without an exporter there are none, and nothing of OpenTelemetry is imported."""

    def __init__(self, exporter: SpanExporter | None = None, *, at_once: bool = False) -> None:
        """Prepare to send spans somewhere.

        Args:
            exporter: Where spans go; None for nowhere.
            at_once: Whether each span is sent when it ends, in place of many together.
        """
        self._provider: Any = None
        if exporter is None:
            return
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

        self._provider = TracerProvider(resource=Resource.create({"service.name": NAME}))
        self._provider.add_span_processor(SimpleSpanProcessor(exporter) if at_once else BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(NAME)

    @classmethod
    def by_environment(cls) -> Tracing:
        """Send spans where OTEL_TRACES_EXPORTER says: by default with OTLP, to OTEL_EXPORTER_OTLP_ENDPOINT."""
        name = os.environ.get("OTEL_TRACES_EXPORTER", "otlp")
        known = entry_points(group="opentelemetry_traces_exporter")
        found = [point for point in known if point.name == (OTLP if name == "otlp" else name)]
        if not found:
            raise MissingExtraError(f"the exporter '{name:.40}' of serve --traces", "otel")
        return cls(found[0].load()())

    @property
    def is_on(self) -> bool:
        """Whether spans go anywhere."""
        return self._provider is not None

    def stop(self) -> None:
        """Send what has not been sent."""
        if self._provider is not None:
            self._provider.shutdown()

    # ---- requests ---------------------------------------------------------------------------------------------------

    @contextmanager
    def request(self, method: str, route: str, headers: Mapping[str, str]) -> Iterator[Span | None]:
        """Open the span of a request.

        Args:
            method: Of the request.
            route: Its path, without parameters.
            headers: Of which `traceparent` and `tracestate` name the span of the caller.

        Yields:
            The span, which is the current one meanwhile, and goes on; None without an exporter.
        """
        if self._provider is None:
            yield None
            return
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(headers)
        about = {"http.request.method": method, "http.route": route}
        with self._tracer.start_as_current_span(
            f"{method} {route}", parent, kind=SpanKind.SERVER, attributes=about, end_on_exit=False
        ) as span:
            try:
                yield span
            except BaseException:  # it was cancelled: nobody will end it
                span.end()
                raise

    def end(self, span: Span | None) -> None:
        """End the span of a request, whose last part has been sent if it is answered in parts.

        Args:
            span: What `request` yielded.
        """
        if span is not None:
            span.end()

    def answer(self, span: Span | None, status: int) -> dict[str, str]:
        """Note the status of a response.

        Args:
            span: Of the request.
            status: Of its response.

        Returns:
            Headers that name the span, so that a caller without a trace can find it: `traceresponse`.
        """
        if span is None:
            return {}
        from opentelemetry.trace import Status, StatusCode

        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        known = span.get_span_context()
        return {"traceresponse": f"00-{known.trace_id:032x}-{known.span_id:016x}-{known.trace_flags:02x}"}

    # ---- texts ------------------------------------------------------------------------------------------------------

    def current(self) -> Context | None:
        """Return where spans of texts belong: below the request that is being read."""
        if self._provider is None:
            return None
        from opentelemetry.context import get_current

        return get_current()

    def text(self, running: Running, result: Result) -> None:
        """Write the span of a text that has left: from its arrival on, with its first call and its exits as events.

        Exits that it passed have the time at which its next call began; those within a call that decides by itself
        are not told apart.

        Args:
            running: Its request.
            result: What became of it.
        """
        if self._provider is None:
            return
        now = time.time_ns()
        began = now - round(1e9 * result.model_seconds)
        about: dict[str, str | int | float] = {
            "exitpoll.policy": running.policy.name,
            "exitpoll.index": result.index,
            "exitpoll.tokens": running.lengths[result.index],
        }
        arrived = began - round(1e9 * result.queue_seconds)
        span = self._tracer.start_span("text", running.trace, attributes=about, start_time=arrived)
        span.add_event("first call", timestamp=began)
        for layer, seconds in result.passed:
            span.add_event("exit passed", {"exitpoll.layer": layer}, timestamp=began + round(1e9 * seconds))
        if result.prediction is None:
            span.add_event("failed", {"exitpoll.error": result.error or ""}, timestamp=now)
        else:
            span.set_attribute("exitpoll.depth", result.prediction.depth)
            span.add_event("exit", {"exitpoll.layer": result.prediction.depth}, timestamp=now)
        span.end(now)
