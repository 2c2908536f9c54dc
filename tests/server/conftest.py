"""A served model made of numbers, and a client for it."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager

import pytest

from exitpoll import Policy
from exitpoll.engine.runtime import LoadedModel
from tests.numbers_runtime import Numbers, tokenize
from tests.samples import certified

POLICIES = {
    "default": Policy("votes", 1.6, {"k": 0.5}, certificate=certified(runtime="numbers")),
    "fast": Policy("max_prob", 0.6),
    "full": Policy(),
}
TEXTS = [f"text number {number} " + "and more " * (number % 7) for number in range(40)]


@pytest.fixture
def folder(tmp_path):
    """A folder with two policies."""
    (tmp_path / "policies").mkdir()
    POLICIES["default"].save(tmp_path / "policy.json")
    POLICIES["fast"].save(tmp_path / "policies" / "fast.json")
    return tmp_path


def model_of(runtime=None, training=None):
    return LoadedModel(runtime or Numbers(), tokenize, ["yes", "no"], training or {})


@pytest.fixture
def serving(folder):
    """A function that serves a model, with a client to ask."""
    pytest.importorskip("prometheus_client", reason="the extra server is not installed")
    from starlette.testclient import TestClient

    from exitpoll.server.app import build_app
    from exitpoll.server.service import Service
    from exitpoll.server.settings import ServerSettings

    class ServedClient(TestClient):
        """A client that knows what it asks."""

        service: Service

    @contextmanager
    def serve(runtime=None, training=None, **settings):
        service = Service(model_of(runtime, training), folder=folder, settings=ServerSettings(**settings), name="m")
        with ServedClient(build_app(service), raise_server_exceptions=False) as client:
            client.service = service
            yield client
        assert (service.work, service.texts_under_way) == (0, 0)

    return serve


@contextmanager
def listening_to(service):
    """Serve over a real socket in another thread, and yield the port."""
    import uvicorn

    from exitpoll.server.app import build_app
    from exitpoll.server.run import DrainingServer, bind

    listener = bind("127.0.0.1", 0)
    server = DrainingServer(uvicorn.Config(build_app(service), log_level="warning"), service)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(timeout=60)
    assert not thread.is_alive()


def counts(client, name="exitpoll_texts_total"):
    """Values of a metric by its labels."""
    lines = client.get("/metrics").text.splitlines()
    rows = [line.removeprefix(name).rsplit(" ", 1) for line in lines if line.startswith(name + "{")]
    return {labels: float(value) for labels, value in rows if float(value)}


def wait_until(condition, seconds=300.0):
    """Wait for what another thread does."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.002)


@pytest.fixture
def listening(folder):
    """A function that serves a model at a port, from a thread."""
    pytest.importorskip("uvicorn", reason="the extra server is not installed")
    from exitpoll.server.run import bind, server_of
    from exitpoll.server.service import Service
    from exitpoll.server.settings import ServerSettings

    @contextmanager
    def serve(runtime=None, **settings):
        service = Service(model_of(runtime), folder=folder, settings=ServerSettings(**settings), name="m")
        server, listener = server_of(service), bind("127.0.0.1", 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # little is written that nobody reads
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield service, listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(timeout=60)
            listener.close()
        assert not thread.is_alive()
        assert (service.work, service.texts_under_way) == (0, 0)

    return serve
