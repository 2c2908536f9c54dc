"""Spans: a request is the child of its caller's span, and every text a child of its request's; no text is in them."""

from __future__ import annotations

import pytest

from exitpoll import Policy
from exitpoll.errors import MissingExtraError
from tests.server.conftest import POLICIES, model_of

pytest.importorskip("prometheus_client", reason="the extra server is not installed")
pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

from exitpoll.server.app import build_app
from exitpoll.server.service import Service
from exitpoll.server.tracing import Tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def client(exporter):
    service = Service(model_of(), policy=POLICIES["fast"], name="m", tracing=Tracing(exporter, at_once=True))
    with TestClient(build_app(service)) as client:
        yield client


def hexadecimal(span):
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/predict/stream"])
def test_spans_of_a_request_and_its_texts(client, exporter, path):
    response = client.post(path, json={"texts": ["secret a", "secret b c"]}, headers=CALLER)
    spans = exporter.get_finished_spans()
    [request] = [span for span in spans if span.name == f"POST {path}"]
    texts = [span for span in spans if span.name == "text"]
    trace, number = hexadecimal(request)
    assert trace == TRACE
    assert f"{request.parent.span_id:016x}" == PARENT
    assert response.headers["traceresponse"] == f"00-{trace}-{number}-01"
    assert request.attributes["http.response.status_code"] == 200
    assert len(texts) == 2
    for span in texts:
        assert span.parent.span_id == request.context.span_id
        assert span.attributes["exitpoll.policy"] == "default"
        assert [event.name for event in span.events] == ["first call", "exit"]
        assert span.events[1].attributes["exitpoll.layer"] == span.attributes["exitpoll.depth"] in (1, 2, 4, 5, 6)
        assert span.start_time <= span.events[0].timestamp <= span.end_time
    assert not any("secret" in span.to_json() for span in spans)


def test_every_exit_that_a_text_passes_is_an_event(exporter):
    """With its own time where every exit is a call; the request's span ends with its stream."""
    never = Policy("votes", 9.0)
    service = Service(model_of(), policy=never, name="m", tracing=Tracing(exporter, at_once=True))
    with TestClient(build_app(service)) as client:
        client.post("/v1/predict/stream", json={"text": "a"})
    request, text = sorted(exporter.get_finished_spans(), key=lambda span: span.name)
    assert [event.name for event in text.events] == ["first call", *["exit passed"] * 4, "exit"]
    assert [event.attributes["exitpoll.layer"] for event in text.events[1:]] == [1, 2, 4, 5, 6]
    times = [event.timestamp for event in text.events]
    assert times == sorted(times)
    assert len(set(times)) == 6
    assert request.end_time >= text.end_time


def test_without_a_caller_and_with_an_error(client, exporter):
    response = client.post("/v1/predict", json={"texts": []})
    [span] = exporter.get_finished_spans()
    assert span.parent is None
    assert span.attributes["http.response.status_code"] == response.status_code == 400
    assert hexadecimal(span)[0] in response.headers["traceresponse"]
    client.get("/health", headers={"traceparent": "nonsense"})
    assert exporter.get_finished_spans()[-1].parent is None


def test_no_tracing_no_header(serving):
    with serving() as client:
        assert "traceresponse" not in client.post("/v1/predict", json={"text": "a"}, headers=CALLER).headers


def test_exporters_by_name(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")  # comes with the SDK
    Tracing.by_environment().stop()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "carrier-pigeon")
    with pytest.raises(MissingExtraError, match=r"the exporter 'carrier-pigeon' of serve --traces .*exitpoll\[otel\]"):
        Tracing.by_environment()
    monkeypatch.delenv("OTEL_TRACES_EXPORTER")
    monkeypatch.setattr("exitpoll.server.tracing.entry_points", lambda group: [])  # as without the extra
    with pytest.raises(MissingExtraError, match="the exporter 'otlp' of serve --traces needs more packages"):
        Tracing.by_environment()
