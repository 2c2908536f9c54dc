"""The tests of the soak on faults and limits: slow clients, odd bytes and texts, poison, hung calls, memory, start."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import psutil

from common import make_texts
from soak_client import Request, count, quantile, run
from soak_load import TEXTS, WORKERS, Figures, capacity, single
from soak_server import FAULTS, NEVER, serving

KILLS, HANGS, RAISES = FAULTS
REQUEST = b"POST /v1/predict HTTP/1.1\r\nHost: a\r\n"
ODD = (b"\0", b"\r\n\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: -1\r\n", b"X: " + b"a" * 100_000)
# Statuses that schemathesis does not expect: too large, and too late for a request that asked for no time. Texts are
# refused for what no schema says: the shape of a tensor that does not fit its data.
SCHEMATHESIS = """
[checks]
positive_data_acceptance.enabled = false
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 429]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 504]
"""
TEXTS_THAT_ARE_ODD: dict[str, tuple[object, int]] = {
    "empty": ("", 422),
    "spaces": (" \n", 422),
    "a megabyte": ("a" * 1_000_000, 413),
    "a token 200,000 times": ("w1 " * 150_000, 200),
    "half of a surrogate pair": ("\ud800", 422),
    "NUL": ("a\0b", 200),
    "right to left": ("\u202eabc", 200),
    "100,000 combining marks": ("a" + "\u0301" * 100_000, 200),
    "a number": (5, 422),
    "a list of three": (["a", "b", "c"], 422),
}


def slow_clients(model: Path, share: float) -> Figures:
    """Test 6: 200 clients that send headers or bodies slowly, or do not read."""
    probes, closed = [], 0
    with serving(model, *WORKERS, "--header-timeout", "2", "--body-timeout", "2") as server, ExitStack() as stack:
        before, usual = server.handles(), [server.probe() for _ in range(20)]
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(200)]
        for number, connection in enumerate(slow):
            connection.settimeout(10)
            connection.sendall(REQUEST if number % 2 else REQUEST + b"Content-Length: 100\r\n\r\n")
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            for connection in slow:
                connection.sendall(b"a")
            probes.append(server.probe())
            time.sleep(0.1)
        for connection in slow:
            with suppress(ConnectionError):
                closed += connection.recv(1 << 12).startswith(b"HTTP/1.1 408")
        stack.close()
        time.sleep(1)
        after = server.handles()
    checks = {
        "all are closed with 408": closed == len(slow),
        "descriptors return": after["descriptors"] <= before["descriptors"],
        "probes take 20 ms, or as long as without them": quantile(probes, 0.5) <= max(20, 3 * quantile(usual, 0.5)),
    }
    return {
        "clients": len(slow),
        "p50_of_probes_ms": [quantile(rows, 0.5) for rows in (usual, probes)],
        "handles": [before, after],
        "checks": checks,
    }


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
            with socket.create_connection(("127.0.0.1", server.port)) as connection, suppress(ConnectionError):
                connection.sendall(content)
                connection.shutdown(socket.SHUT_WR)
            probes.append(server.probe())
        alive = server.process.poll() is None
    return {
        "requests": number,
        "p99_of_probes_ms": quantile(probes, 0.99),
        "checks": {"alive": alive, "probes are answered": quantile(probes, 0.5) <= 50},
    }


def odd_texts(model: Path, share: float) -> Figures:
    """Test 9: odd texts get the documented status, and neighbors their usual answer."""
    statuses, checks = {}, {}
    with serving(model, *WORKERS) as server:
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
    """Test 10: a text that raises, and one that kills its process, among others."""
    with serving(model, *WORKERS, faulty=True) as server:
        usual = [row["label"] for row in server.post("/v1/predict", {"texts": TEXTS[:40]})["predictions"]]
        began = time.monotonic()
        mixed = server.post("/v1/predict", {"texts": [*TEXTS[:20], KILLS, *TEXTS[20:40]]})["predictions"]
        seconds = time.monotonic() - began
        restarts = server.metrics()["exitpoll_worker_restarts_total"]
        live = server.status("/health/live")
        back = server.wait_ready()
        raising = server.post("/v1/predict", {"texts": [TEXTS[0], RAISES]})["predictions"]
        alone, _, content = server.ask("POST", "/predict", {"inputs": KILLS})
    labels = [row["label"] for row in mixed]
    checks = {
        "all others are answered": labels[:20] + labels[21:] == usual,
        "poison is named": mixed[20]["label"] is None and "poison" in mixed[20]["error"],
        "run twice, and never a third time": restarts == 2,
        "alone it is 500": alone == 500 and b"poison" in content,
        "one that raises fails alone": raising[0]["label"] == usual[0] and raising[1]["label"] is None,
        "live meanwhile": live == 200,
        "back within 5 s": back <= 5,
    }
    return {"seconds": round(seconds, 2), "back_after_seconds": round(back, 2), "checks": checks}


def front_killed(model: Path, share: float) -> Figures:
    """Test 12: the front is killed: no orphan after 2 s, and the port is free."""
    with serving(model, *WORKERS) as server:
        workers, port = server.workers(), server.port
        server.process.kill()
        server.process.wait()
        _, alive = psutil.wait_procs(workers, timeout=2)
        with socket.create_server(("127.0.0.1", port)):
            return {
                "workers": len(workers),
                "checks": {"no orphans": not alive and len(workers) == 2, "port free": True},
            }


def hung_call(model: Path, share: float) -> Figures:
    """Test 14: a call hangs: its process is replaced, and in one process the liveness probe fails."""
    checks = {}
    with serving(model, *WORKERS, "--stall-timeout", "1", faulty=True) as server:
        rows = server.post("/v1/predict", {"texts": [TEXTS[0], HANGS]})["predictions"]
        checks["the others are answered"] = rows[0]["label"] is not None
        checks["the text is refused"] = rows[1]["label"] is None and "hung" in rows[1]["error"]
        checks["live"] = server.status("/health/live") == 200
        checks["replaced twice"] = server.metrics()["exitpoll_worker_restarts_total"] == 2
    return {"checks": checks}


def starvation(model: Path, share: float) -> Figures:
    """Test 16: 95 % long texts that leave early, and 5 % short ones that run to the end."""
    shallow: list[Request] = [("/v1/predict", {"texts": [text], "policy": "fast"}) for text in make_texts(200, 100)]
    deep: list[Request] = [("/v1/predict", {"texts": [text], "policy": NEVER}) for text in make_texts(200, 8)]
    chance, total = random.Random(0), int(3000 * share)
    requests = [chance.choice(deep if chance.random() < 0.05 else shallow) for _ in range(total)]
    with serving(model, *WORKERS) as server:
        answers = run(server.port, requests, 0.5 * capacity(server))
    seconds: dict[str, list[float]] = {NEVER: [], "fast": []}
    for answer in answers:
        seconds[str(requests[answer.number][1]["policy"])].append(answer.seconds)
    p99 = {name: quantile(rows, 0.99) for name, rows in seconds.items()}
    checks = {
        "all answered": {answer.status for answer in answers} == {200},
        "deep texts wait no longer than others": p99[NEVER] <= 2 * p99["fast"] + 50,
    }
    return {"sent": total, "p99_ms": p99, "checks": checks}


def slow_down(model: Path, share: float) -> Figures:
    """Test 17: texts that never leave early, against a policy that asks no exits; and the cap on depth."""
    with serving(model, "--workers", "1") as server:
        rates: dict[str, list[float]] = {NEVER: [], "full": []}
        for _ in range(3):
            for name, rows in rates.items():
                rows.append(capacity(server, name))
        capped = server.post("/v1/predict", {"texts": TEXTS[:50], "policy": NEVER, "max_depth": 2})["predictions"]
    ratio = float(np.median(rates[NEVER]) / np.median(rates["full"]))
    checks = {"the cap holds": all(row["depth"] <= 2 for row in capped), "all heads cost less than half": ratio > 0.5}
    return {"throughput_ratio": round(ratio, 3), "checks": checks}


def memory(model: Path, share: float) -> Figures:
    """Test 19: mixed load for minutes: memory, descriptors and threads stay; a server that leaks is found."""
    steady = _slope(model, max(120, 450 * share), 0)  # a shorter time would measure how caches fill
    leaking = _slope(model, max(30, 150 * share), 20_000)
    checks = {
        "memory stays": float(str(steady["mb_a_minute"])) <= 1.0,
        "a leak is found": float(str(leaking["mb_a_minute"])) > 1.0,
        "nothing fails": steady["statuses"] == [-1, 200],
        "descriptors return": bool(steady["descriptors_return"]),
    }
    return {"steady": steady, "leaking": leaking, "checks": checks}


def _slope(model: Path, seconds: float, leak: int) -> dict[str, object]:
    """Measure how memory grows under mixed load, after the first third."""
    samples: list[tuple[float, float]] = []
    with serving(model, *WORKERS, leak=leak) as server:
        rate = 0.3 * capacity(server)
        before = server.handles()
        chance = random.Random(0)
        requests: list[Request] = [
            (
                "/v1/predict",
                {"texts": chance.sample(TEXTS, chance.randint(1, 4)), "policy": chance.choice(["default", NEVER])},
            )
            for _ in range(int(seconds * rate / 2))
        ]

        def watch() -> None:
            began = time.monotonic()
            while time.monotonic() - began < seconds - 1:
                samples.append((time.monotonic() - began, server.rss()))
                time.sleep(0.5)
                if len(samples) % 10 == 0:
                    server.ask("POST", "/v1/policies/reload")

        answers = run(server.port, requests, rate / 2, leaving=0.1, during=watch)
        time.sleep(7)  # idle connections are closed
        after = server.handles()
    late = [(moment, size) for moment, size in samples if moment > seconds / 3]
    moments, sizes = np.array(late).T
    slope = float(np.polyfit(moments, sizes, 1)[0]) * 60
    return {
        "seconds": round(seconds),
        "sent": len(answers),
        "statuses": sorted({answer.status for answer in answers}),
        "mb_a_minute": round(slope, 3),
        "handles": [before, after],
        "descriptors_return": after["descriptors"] <= before["descriptors"] + 2,
        "mb": [round(samples[0][1], 1), round(samples[-1][1], 1)],
    }


def many_connections(model: Path, share: float) -> Figures:
    """Test 20: many idle keep-alive connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = min(5000, (hard if hard > 0 else 5000) // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, number + 500), hard))
    body = json.dumps({"text": "w1"}).encode()
    request = REQUEST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with serving(model, *WORKERS, "--header-timeout", "60") as server, ExitStack() as stack:
        before, answered = server.rss(), 0
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(number)]
        each = 1000 * (server.rss() - before) / number
        for connection in idle[:1000]:
            connection.sendall(request)
        for connection in idle[:1000]:
            connection.settimeout(30)
            answered += connection.recv(1 << 12).startswith(b"HTTP/1.1 200")
        probe = server.probe()
    checks = {"none lost": answered == 1000, "at most 20 kB each": each <= 20, "probe": probe < 0.2}
    return {"connections": number, "kb_each": round(each, 2), "checks": checks}


def metrics(model: Path, share: float) -> Figures:
    """Test 21: metrics under load, and their number whatever clients send."""
    times: list[float] = []
    with serving(model, *WORKERS) as server:
        rate = 0.5 * capacity(server)

        def scrape() -> None:
            for _ in range(5):
                before = time.monotonic()
                server.ask("GET", "/metrics")
                times.append(time.monotonic() - before)
                time.sleep(0.5)

        answers = run(server.port, single(int(rate * 3)), rate, during=scrape)
        for number in range(100):
            server.ask("POST", f"/models/x{number}", {"inputs": "a"})
            server.ask("POST", "/v1/predict", {"text": "a", "policy": f"p{number}"})
            server.ask("GET", f"/nothing/{number}")
        series = len(server.metrics())
    checks = {"at most 500 series": series <= 500, "all answered": set(count(answers)) == {"200"}}
    return {"series": series, "p50_ms": quantile(times, 0.5), "checks": checks}


def starts(model: Path, share: float) -> Figures:
    """Test 22: what prevents a start is said in one line, with exit code 2."""
    checks, seconds = {}, {}
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as taken:
        broken = Path(shutil.copytree(model, Path(name) / "broken"))
        (broken / "policy.json").write_text("{")
        for what, words in {
            "policy": [str(broken)],
            "model": [str(Path(name) / "nothing")],
            "port": [str(model), "--port", str(taken.getsockname()[1])],
            "option": [str(model), "--max-texts", "0"],
            "permission": [str(model), "--host", "203.0.113.1"],
        }.items():
            before = time.monotonic()
            command = [sys.executable, "-m", "exitpoll", "serve", *words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            seconds[what] = round(time.monotonic() - before, 2)
            line = done.stderr.strip().splitlines()[-1:]
            checks[what] = done.returncode == 2 and bool(line) and line[0].startswith("exitpoll: ")
    return {"seconds": seconds, "checks": checks}


def fuzz(model: Path, share: float) -> Figures:
    """Test 7: schemathesis on all paths."""
    cases = max(10, int(1000 * share))
    with serving(model, *WORKERS, "--max-queue", "20000000") as server, tempfile.NamedTemporaryFile("w") as config:
        config.write(SCHEMATHESIS)
        config.flush()
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", config.name),
            *("run", f"http://127.0.0.1:{server.port}/openapi.json", "--max-examples", str(cases), "--no-color"),
            *("--phases", "examples,coverage,fuzzing,stateful", "--request-timeout", "30"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
        failed, alive = server.outcomes()["failed"], server.status("/health") == 200
    lines = [line.strip() for line in done.stdout.splitlines()]
    summary = [line[:200] for line in lines if line][-12:]
    checks = {"no failures": done.returncode == 0, "no text failed": failed == 0, "up": alive}
    return {"cases_a_path": cases, "summary": summary, "checks": checks}


def retries(model: Path, share: float) -> Figures:
    """Test 4: how many requests one call of the JavaScript client makes when the server is overloaded."""
    packages = Path(os.environ.get("NODE_PATH", "node_modules"))
    if shutil.which("node") is None or not (packages / "@huggingface" / "inference").is_dir():
        return {"skipped": "needs node and @huggingface/inference (NODE_PATH)", "checks": {}}
    queue = ("--workers", "1", "--max-queue", "20", "--timeout", "20")
    with serving(model, *queue, faulty=True) as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.ask, "POST", "/v1/predict", {"text": HANGS})  # fills the queue
        while not server.metrics()["exitpoll_queue_texts"]:
            time.sleep(0.01)
        script = (
            "const {InferenceClient} = require('@huggingface/inference');"
            f"new InferenceClient('', {{endpointUrl: 'http://127.0.0.1:{server.port}'}})"
            ".textClassification({inputs: 'w1'}).catch(error => console.log(String(error)))"
        )
        environment = {**os.environ, "NODE_PATH": str(packages)}
        done = subprocess.run(["node", "-e", script], capture_output=True, text=True, env=environment, timeout=30)
        asked = server.metrics().get('exitpoll_requests_total{code="429",route="/"}', 0)
        server.process.terminate()
        waiting.exception()
    return {"requests": asked, "error": done.stdout.strip()[:200], "checks": {"at most 2": 1 <= asked <= 2}}
