"""The tests of the soak on faults: slow clients, odd bytes and texts, poison, hung calls.

Clients that ask and do not read are in tests/server/test_connections.py, where buffers are small enough to fill.
"""

from __future__ import annotations

import json
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from soak_bars import at_most
from soak_client import quantile
from soak_load import TEXTS, WORKERS, Figures, seconds_to_load
from soak_server import FAULTS, Faults, connect, serving

CRASHES, HANGS, RAISES, IS_KILLED = FAULTS
REQUEST = b"POST /v1/predict HTTP/1.1\r\nHost: a\r\n"
ODD = (b"\0", b"\r\n\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: -1\r\n", b"X: " + b"a" * 100_000)
TEXTS_THAT_ARE_ODD: dict[str, tuple[object, int]] = {
    "empty": ("", 422),
    "spaces": (" \n", 422),
    "a megabyte": ("a" * 1_000_000, 413),
    "a token 150,000 times": ("w1 " * 150_000, 200),
    "a token a million times": ("a " * 1_000_000, 413),
    "half of a surrogate pair": ("\ud800", 422),
    "NUL": ("a\0b", 200),
    "right to left": ("\u202eabc", 200),
    "100,000 combining marks": ("a" + "\u0301" * 100_000, 200),
    "a number": (5, 422),
    "a list of three": (["a", "b", "c"], 422),
}


def slow_clients(model: Path, share: float) -> Figures:
    """Test 6: 200 clients that send headers or bodies slowly."""
    probes, closed, seconds = [], 0, []
    with serving(model, *WORKERS, "--header-timeout", "2", "--body-timeout", "2") as server, ExitStack() as stack:
        before, usual = server.handles(), [server.probe() for _ in range(20)]
        began = time.monotonic()
        slow = [stack.enter_context(connect(server.port)) for _ in range(200)]
        for number, connection in enumerate(slow):
            connection.settimeout(10)
            connection.sendall(REQUEST if number % 2 else REQUEST + b"Content-Length: 100\r\n\r\n")
        while time.monotonic() < began + 1.5:
            for connection in slow:
                connection.sendall(b"a")
            probes.append(server.probe())
            time.sleep(0.1)
        for connection in slow:
            with suppress(ConnectionError):
                closed += connection.recv(1 << 12).startswith(b"HTTP/1.1 408")
            seconds.append(time.monotonic() - began)
        stack.close()
        time.sleep(1)
        after = server.handles()
    checks = {"all are closed with 408": closed == len(slow)}
    checks["descriptors return"] = after["descriptors"] <= before["descriptors"]
    without = quantile(usual, 1.0)
    bars = {
        "slowest probe, ms": at_most(quantile(probes, 1.0), 20, max(200, 3 * without)),
        "median probe, ms": at_most(quantile(probes, 0.5), 20, 3 * quantile(usual, 0.5)),
        "seconds until the last is closed": at_most(max(seconds), 3, 6),
    }
    figures = {"clients": len(slow), "slowest_probe_without_ms": without, "handles": [before, after]}
    return {**figures, "bars": bars, "checks": checks}


def odd_bytes(model: Path, share: float) -> Figures:
    """Test 8: mutated requests."""
    chance, number, probes = random.Random(0), int(2000 * share), []
    body = json.dumps({"text": "a"}).encode()
    whole = REQUEST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with serving(model, *WORKERS, "--header-timeout", "1") as server:
        for _ in range(number):
            content = bytearray(whole)
            for _ in range(chance.randint(1, 4)):
                start = chance.randrange(len(content))
                change = chance.choice([b"", chance.randbytes(4), chance.choice(ODD), bytes(content[:start])])
                content[start : start + chance.randint(0, 8)] = change
            with connect(server.port) as connection, suppress(ConnectionError):
                connection.sendall(content)
                connection.shutdown(socket.SHUT_WR)
            probes.append(server.probe())
        alive = server.process.poll() is None
    bars = {
        "slowest probe, ms": at_most(quantile(probes, 1.0), 50, 1000),
        "99 % of probes, ms": at_most(quantile(probes, 0.99), 50, 100),
    }
    return {"requests": number, "bars": bars, "checks": {"alive": alive}}


def odd_texts(model: Path, share: float) -> Figures:
    """Test 9: odd texts get the documented status, and neighbors their usual answer."""
    statuses, checks = {}, {}
    with serving(model, *WORKERS, "--max-body-bytes", "8000000") as server:
        usual = server.post("/v1/predict", {"text": TEXTS[0]})["predictions"][0]
        for name, (text, expected) in TEXTS_THAT_ARE_ODD.items():
            status, _, content = server.ask("POST", "/v1/predict", {"texts": [TEXTS[0], text]})
            statuses[name] = status
            if status == 200:
                row = json.loads(content)["predictions"][0]
                checks[name] = expected == 200 and (row["label"], row["depth"]) == (usual["label"], usual["depth"])
            else:
                checks[name] = status == expected and "text 1" in json.loads(content)["error"]
        for name, body in (
            ("NaN", b'{"text": NaN}'),
            ("nested", b"[" * 10_000),
            ("duplicate", b'{"text": "a", "text": 5}'),
        ):
            statuses[name] = server.ask("POST", "/v1/predict", body)[0]
            checks[name] = statuses[name] in (400, 422)
    return {"statuses": statuses, "checks": checks}


def poison(model: Path, share: float) -> Figures:
    """Test 10: a text that raises, one that crashes its process, and one that is killed, among others."""
    with serving(model, *WORKERS, faults=Faults()) as server:
        usual = [row["label"] for row in server.post("/v1/predict", {"texts": TEXTS[:40]})["predictions"]]
        mixed = server.post("/v1/predict", {"texts": [*TEXTS[:20], CRASHES, *TEXTS[20:40]]})["predictions"]
        restarts = server.restarts(2)
        raising = server.post("/v1/predict", {"texts": [TEXTS[0], RAISES]})["predictions"]
        killed = server.post("/v1/predict", {"texts": [TEXTS[0], IS_KILLED]})["predictions"]
    with serving(model, "--workers", "1", faults=Faults()) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.ask, "POST", "/predict", {"inputs": CRASHES})
        while server.status("/health/ready") == 200:
            time.sleep(0.002)
        fell, live = time.monotonic(), server.status("/health/live")
        alone, _, content = asked.result()
        server.wait_ready()
        seconds = time.monotonic() - fell
        again = server.post("/v1/predict", {"texts": TEXTS[:40]})["predictions"]
    labels, loading = [row["label"] for row in mixed], seconds_to_load(model)
    checks = {
        "all others are answered": labels[:20] + labels[21:] == usual,
        "poison is named": mixed[20]["label"] is None and "poison" in mixed[20]["error"],
        "run twice, and never a third time": restarts == 2,
        "alone it is 500": alone == 500 and b"poison" in content,
        "one that raises fails alone": raising[0]["label"] == usual[0] and raising[1]["label"] is None,
        "one that is killed every time fails alone": killed[0]["label"] == usual[0] and "poison" in killed[1]["error"],
        "not ready, but live, while no process is up": live == 200,
        "afterwards as ever": [row["label"] for row in again] == usual,
    }
    bars = {"seconds until ready, after two crashes": at_most(seconds, 5, 3 * loading + 1)}
    return {"seconds_to_load": round(loading, 2), "bars": bars, "checks": checks}


def hung_call(model: Path, share: float) -> Figures:
    """Test 14: a call hangs: its process is replaced, and the server stays alive."""
    checks = {}
    with serving(model, *WORKERS, "--stall-timeout", "1", faults=Faults()) as server:
        rows = server.post("/v1/predict", {"texts": [TEXTS[0], HANGS]})["predictions"]
        checks["the others are answered"] = rows[0]["label"] is not None
        checks["the text is refused"] = rows[1]["label"] is None and "hung" in rows[1]["error"]
        checks["live"] = server.status("/health/live") == 200
        checks["replaced twice"] = server.restarts(2) == 2
    return {"checks": checks}
