"""Clients that are slow, gone or broken at the level of connections: they cost themselves, and no others."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import threading
import time
from contextlib import ExitStack, suppress
from http.client import HTTPConnection

import pytest

from exitpoll import InputError
from tests.numbers_runtime import Numbers
from tests.server.conftest import TEXTS, model_of, wait_until
from tests.server.test_limits import Gated
from tests.web.javascript import PACKAGES, needs_node, run_node

pytest.importorskip("uvicorn", reason="the extra server is not installed")

REQUEST = b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


def connect(port):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.settimeout(60)
    return connection


def read_all(connection):
    """All that comes until the connection is closed."""
    parts = []
    with suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def probe(port):
    """The seconds that a probe takes."""
    before = time.monotonic()
    client = HTTPConnection("127.0.0.1", port, timeout=60)
    client.request("GET", "/health/live")
    assert client.getresponse().status == 200
    client.close()
    return time.monotonic() - before


def descriptors():
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def body_of(**fields):
    body = json.dumps(fields).encode()
    return REQUEST + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_a_refusal_before_the_end_of_the_body_is_the_only_answer(listening):
    with listening(max_body_bytes=1000, header_timeout=0.3) as (_, port), connect(port) as connection:
        connection.sendall(REQUEST + b"Content-Length: 200000\r\n\r\n" + b"a" * 150_000)
        time.sleep(0.5)  # longer than headers may take
        last = body_of(text="a").replace(b"Host: a", b"Host: a\r\nConnection: close")
        connection.sendall(b"a" * 50_000 + last)
        statuses = [part[:3] for part in read_all(connection).split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"413", b"200"]


@pytest.mark.parametrize("kind", ["trailers", "pipelined headers"])
def test_headers_without_end_behind_the_first(listening, kind):
    chunked = REQUEST + b"Transfer-Encoding: chunked\r\n\r\n"
    first = chunked + b"0\r\n" if kind == "trailers" else chunked + b"2\r\n{}\r\n0\r\n\r\n" + REQUEST
    with listening(body_timeout=60) as (_, port), connect(port) as connection:
        connection.sendall(first)
        with suppress(OSError):  # closed while it sends
            for _ in range(200):
                connection.sendall(b"a: b\r\n" * 1000)
        assert b"431" in read_all(connection) or not connection.recv(1)


@pytest.mark.parametrize(
    "first", [b"", b"\r\n", b"POST /v1/predict HTTP/1.1\r\nHost:"], ids=["nothing", "line", "headers"]
)
def test_headers_that_come_slowly(listening, first):
    with listening(header_timeout=0.4) as (_, port), ExitStack() as stack:
        probe(port)
        before = descriptors()
        slow = [stack.enter_context(connect(port)) for _ in range(20)]
        began = time.monotonic()
        for connection in slow:
            connection.sendall(first)
        for _ in range(3):
            time.sleep(0.05)
            assert probe(port) < 1
            for connection in slow:
                connection.sendall(first[-2:])
        assert {read_all(connection).split(b"\r\n")[0] for connection in slow} == {b"HTTP/1.1 408 Request Timeout"}
        assert 0.2 < time.monotonic() - began < 20
        stack.close()
        wait_until(lambda: descriptors() <= before)


def test_the_second_request_of_a_connection_that_comes_slowly(listening):
    with listening(header_timeout=0.3) as (_, port), connect(port) as connection:
        connection.sendall(body_of(text="a"))
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.sendall(REQUEST)
        assert read_all(connection).startswith(b"HTTP/1.1 408")


def test_a_request_whose_headers_came_in_time_may_take_its_time(listening):
    with listening(header_timeout=0.2) as (_, port), connect(port) as connection:
        content = body_of(text="a")
        connection.sendall(content[:-3])
        time.sleep(0.4)
        connection.sendall(content[-3:])
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_a_body_that_comes_slowly(listening):
    with listening(body_timeout=0.3) as (_, port), connect(port) as connection:
        connection.sendall(body_of(text="a")[:-3])
        assert read_all(connection).startswith(b"HTTP/1.1 408")


def test_headers_without_end(listening):
    with listening() as (_, port), connect(port) as connection:
        connection.sendall(REQUEST)
        with suppress(ConnectionError):  # it closes the connection while we write
            for number in range(50):
                connection.sendall(b"X-%d: " % number + b"a" * 8000 + b"\r\n")
        assert read_all(connection)[:12] in (b"HTTP/1.1 431", b"")
        probe(port)


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a port is bound once")
def test_two_servers_that_start_at_once(folder):
    """Both take the port before they load their models: the later one is refused when it begins to listen."""
    from exitpoll.server.run import bind, serve_forever
    from exitpoll.server.service import Service

    with bind("127.0.0.1", 0) as first:
        address = first.getsockname()
        second = bind(*address)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        first.listen()
        with pytest.raises(InputError, match=f"cannot listen at 127.0.0.1, port {address[1]}: Address already in use"):
            serve_forever(Service(model_of(), folder=folder), second)
        with pytest.raises(InputError, match="Address already in use"):
            bind(*address)


def test_a_reader_that_stops(listening):
    """What it asked for is not kept for ever, and it takes no room in the queue."""
    with listening(body_timeout=0.3) as (service, port), ExitStack() as stack:
        before = descriptors()
        for _ in range(5):
            connection = socket.socket()
            stack.enter_context(connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.connect(("127.0.0.1", port))
            content = body_of(texts=TEXTS * 6, explain=True, policy="default")
            connection.sendall(content.replace(b"/v1/predict", b"/v1/predict/stream", 1))
        wait_until(lambda: service.texts_under_way)
        assert probe(port) < 1
        wait_until(lambda: service.texts_under_way == 0)
        stack.close()
        wait_until(lambda: descriptors() <= before)


def mutated(chance, request):
    """A request with bytes changed, removed, repeated or put in."""
    content = bytearray(request)
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(content))
        end = min(len(content), start + chance.randint(1, 12))
        kind = chance.randrange(5)
        if kind == 0:
            content[start:end] = chance.randbytes(end - start)
        elif kind == 1:
            del content[start:end]
        elif kind == 2:
            content[start:start] = content[start:end] * chance.randint(1, 5)
        elif kind == 3:
            content[start:start] = chance.choice(ODD)
        else:
            content = content[: max(start, 1)]
    return bytes(content)


ODD = [
    b"\x00",
    b"\r\n",
    b"\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Upgrade: websocket\r\nConnection: upgrade\r\n",
    b"Expect: 100-continue\r\n",
    b"GET http://[ HTTP/1.1\r\n\r\n",
    b" HTTP/9.9",
    b"X: " + b"a" * 100_000 + b"\r\n",
]


def test_two_hundred_requests_of_odd_bytes(listening):
    chance = random.Random(0)
    with listening(header_timeout=0.5, body_timeout=0.5) as (_, port):
        for number in range(200):
            with connect(port) as connection, suppress(OSError):  # it may be closed before all is sent, or shut down
                connection.sendall(mutated(chance, body_of(text="a")))
                connection.shutdown(socket.SHUT_WR)
            if number % 10 == 0:
                assert probe(port) < 1


class Slow(Numbers):
    """Takes twenty milliseconds for a text in a call."""

    def advance(self, state, layers):
        time.sleep(0.02 * len(state))
        return state


def test_ten_times_more_than_it_can_do(listening):
    """Nothing fails but what is refused, at once; and afterwards all is as before."""
    sent, statuses, refused, waits = 400, [], [], []

    async def ask(port, delay):
        await asyncio.sleep(delay)
        before = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(body_of(text="a b c", policy="full").replace(b"Host: a", b"Host: a\r\nConnection: close", 1))
        head, _, _ = (await reader.read()).partition(b"\r\n\r\n")
        statuses.append(int(head.split()[1]))
        if statuses[-1] == 429:
            refused.append(time.monotonic() - before)
            waits.extend(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"retry-after"))
        writer.close()

    async def overload(port):
        await asyncio.gather(*[ask(port, number / 400) for number in range(sent)])

    with listening(Slow(), max_queue=18 * 20) as (service, port):  # room for twenty texts
        asyncio.run(overload(port))
        assert len(statuses) == sent
        assert set(statuses) == {200, 429}
        assert len(waits) == len(refused) == statuses.count(429)
        assert all(1 <= wait <= 60 for wait in waits)
        assert sorted(refused)[len(refused) // 2] < 0.5
        assert (service.work, service.texts_under_way) == (0, 0)
        assert probe(port) < 1


ONE_CALL = """
const {{InferenceClient}} = require("@huggingface/inference");
new InferenceClient("", {{endpointUrl: "http://127.0.0.1:{port}"}})
  .textClassification({{inputs: "a b c"}})
  .catch(error => console.log(String(error)));
"""


@needs_node
@pytest.mark.skipif(not (PACKAGES / "@huggingface" / "inference").is_dir(), reason="there is no @huggingface/inference")
def test_a_refused_call_of_the_javascript_client_is_one_request(listening, tmp_path):
    """After 503 it would ask again at once, and without end."""
    runtime = Gated()
    with listening(runtime, max_queue=20) as (service, port), connect(port) as first:
        first.sendall(body_of(text="a b c"))
        wait_until(lambda: service.texts_under_way)
        script = tmp_path / "call.cjs"
        script.write_text(ONE_CALL.format(port=port))
        run_node(script)
        runtime.gate.set()
        assert first.recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert 'exitpoll_requests_total{code="429",route="/"} 1.0' in service.metrics.render().decode()


def test_many_connections_that_do_nothing(listening):
    with listening() as (_, port), ExitStack() as stack:
        idle = [stack.enter_context(connect(port)) for _ in range(200)]
        for connection in idle:
            connection.sendall(body_of(text="a"))
        assert all(connection.recv(1 << 12).startswith(b"HTTP/1.1 200") for connection in idle)
        assert probe(port) < 1


class TestAtTheEnd:
    """When the server ends, a request on a connection that was accepted is answered, by 503 at least: it is not cut."""

    @pytest.fixture
    def ending(self, folder, monkeypatch):
        """A function that ends a server: what a client does meanwhile, and the bytes that it gets."""
        from exitpoll.server.run import DrainingServer, bind, server_of
        from exitpoll.server.service import Service

        def end(before, meanwhile):
            ready, over = threading.Event(), threading.Event()

            async def blocked(server):
                """Be busy while the client does something, and end at once: nothing was accepted or read since."""
                while not over.is_set() and not ready.is_set():
                    await asyncio.sleep(0.001)
                wait = time.monotonic() + 0.3
                while time.monotonic() < wait:
                    time.sleep(0.01)
                server.service.is_draining = True

            monkeypatch.setattr(DrainingServer, "main_loop", blocked)
            listener = bind("127.0.0.1", 0)
            server = server_of(Service(model_of(), folder=folder, name="m"))
            listener.listen()
            thread = threading.Thread(target=server.run, args=([listener],))
            thread.start()
            try:
                wait_until(lambda: server.started)
                port = listener.getsockname()[1]
                connection = before(port)
                ready.set()
                time.sleep(0.05)
                connection = meanwhile(port, connection)
                return read_all(connection)
            finally:
                over.set()
                thread.join(timeout=60)
                listener.close()
                assert not thread.is_alive()

        return end

    def test_a_connection_that_nobody_has_taken_yet(self, ending):
        def meanwhile(port, _):
            connection = connect(port)
            connection.sendall(body_of(text="a"))
            return connection

        assert ending(lambda port: None, meanwhile).startswith(b"HTTP/1.1 503 ")

    @pytest.mark.parametrize("first", ["nothing", "part of the headers", "a whole request"])
    def test_a_connection_that_is_open(self, ending, first):
        content = body_of(text="a")
        sent = {"nothing": b"", "part of the headers": content[:40], "a whole request": content}[first]

        def before(port):
            connection = connect(port)
            connection.sendall(sent)
            if sent == content:
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
            time.sleep(0.05)
            return connection

        def meanwhile(port, connection):
            connection.sendall(content if sent == content else content[len(sent) :])
            return connection

        answer = ending(before, meanwhile)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"connection: close" in answer.lower()
