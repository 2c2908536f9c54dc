"""Clients of other servers, unmodified, against a served model: they read the engine's answers; and damaged ones."""

from __future__ import annotations

import socket
from contextlib import suppress
from urllib.request import urlopen

import numpy as np
import pytest

from exitpoll import Engine
from tests.server.conftest import POLICIES, listening_to, model_of

pytest.importorskip("uvicorn", reason="the extra server is not installed")
pytest.importorskip("prometheus_client", reason="the extra server is not installed")

TEXTS = ["a b", "c"]


@pytest.fixture(scope="module")
def port():
    """The port of a server in another thread."""
    from exitpoll.server.service import Service

    with listening_to(Service(model_of(), policy=POLICIES["fast"], name="m")) as number:
        yield number


@pytest.fixture(scope="module")
def expected():
    return Engine(model_of(), POLICIES["fast"])(TEXTS)


REQUEST = (
    b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
    b'{"text": "a b"}'
)
SHAPES = (
    b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    REQUEST.replace(b"Content-Length: 15", b"Content-Length: 15\r\nTransfer-Encoding: chunked"),
    REQUEST.replace(b"Content-Length: 15", b"Content-Length: -1"),
    REQUEST.replace(b"Content-Length: 15", b"Content-Length: 15\r\nContent-Length: 3"),
    REQUEST.replace(b"Content-Length: 15", b"Transfer-Encoding: chunked").replace(b'{"', b"zz\r\n"),
    REQUEST.replace(b"HTTP/1.1", b"HTTP/9.9"),
    REQUEST.replace(b"/v1/predict", b"/v1/%00predict\x00"),
    b"\x16\x03\x01\x02\x00" * 20,
)


def test_whatever_bytes_come_the_server_lives(port):
    chance = np.random.default_rng(0)
    requests, statuses = [REQUEST, *SHAPES], set()
    for _ in range(150):
        damaged = bytearray(REQUEST)
        for place in chance.integers(len(damaged), size=chance.integers(1, 6)):
            damaged[place] = chance.integers(256)
        requests.append(bytes(damaged[: chance.integers(1, len(damaged) + 1)]))
    for request in requests:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(request)
            if request is not REQUEST:  # those that are cut would be waited for
                connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):  # it may be closed before all is read
                answer = connection.recv(65536)
                statuses |= {int(answer.split(b" ")[1])} if answer else set()
    assert {200, 400} <= statuses
    assert all(code < 500 for code in statuses)
    with urlopen(f"http://127.0.0.1:{port}/health/live", timeout=30) as response:
        assert response.status == 200


def test_huggingface_hub(port, expected, monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # this server is not the hub
    client = hub.InferenceClient(f"http://127.0.0.1:{port}")
    rows = client.text_classification(TEXTS[0])
    assert {row.label: row.score for row in rows} == pytest.approx(expected[0].probabilities, abs=1e-6)
    assert rows[0].label == expected[0].label
    assert len(client.text_classification(TEXTS[0], top_k=1)) == 1


def test_tritonclient(port, expected):
    http = pytest.importorskip("tritonclient.http", reason="tritonclient and geventhttpclient are not installed")
    client = http.InferenceServerClient(f"127.0.0.1:{port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("m")
    assert client.get_model_metadata("m")["inputs"][0]["datatype"] == "BYTES"
    tensor = http.InferInput("text", [2, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()] for text in TEXTS], dtype=np.object_))
    answer = client.infer("m", [tensor])  # binary both ways, by default
    assert [label.decode() for label in answer.as_numpy("label")] == [row.label for row in expected]
    assert answer.as_numpy("depth").tolist() == [row.depth for row in expected]
    shares = [list(row.probabilities.values()) for row in expected]
    np.testing.assert_allclose(answer.as_numpy("probabilities"), shares, atol=1e-6)
    with pytest.raises(Exception, match="there is no model 'other'"):
        client.infer("other", [tensor])
    client.close()


def test_openai(port, expected):
    openai = pytest.importorskip("openai", reason="openai is not installed")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
    answer = client.post("/classify", cast_to=object, body={"model": "m", "input": TEXTS})
    assert [row["label"] for row in answer["data"]] == [row.label for row in expected]
    assert "m:full" in [model.id for model in client.models.list()]
    with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
        client.post("/classify", cast_to=object, body={"model": "other", "input": TEXTS})
