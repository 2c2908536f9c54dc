"""The tests of the soak on limits: texts that never leave early, memory, connections, metrics."""

from __future__ import annotations

import json
import random
import resource
import tempfile
import time
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

from common import make_texts
from soak_bars import at_least, at_most
from soak_client import LEFT, Request, encoded, quantile, run, saturate
from soak_load import TEXTS, WORKERS, Figures, accounted, capacity, single
from soak_model import NEVER, UNSURE, certify, make_model
from soak_server import Faults, connect, serving

AT_ONCE = 20  # texts in a request


def slow_down(model: Path, share: float) -> Figures:
    """Test 17: texts that never leave early: what exits cost them, the cap on depth, and the warning."""
    rates: dict[str, list[float]] = {UNSURE: [], "full": [], NEVER: []}
    with tempfile.TemporaryDirectory() as folder:
        wide = make_model(Path(folder), layers=6, width=384)  # a head costs as little of it as of a real model
        texts = make_texts(50, 40)
        with serving(wide, "--workers", "1") as server:
            for _ in range(max(3, round(7 * share))):
                for name, rows in rates.items():
                    requests: list[Request] = [("/v1/predict", {"text": text, "policy": name}) for text in texts]
                    rows.append(saturate(server.port, requests, 4))
            capped = server.post("/v1/predict", {"texts": texts, "policy": NEVER, "max_depth": 2})["predictions"]
    ratios = {name: np.divide(rates[name], rates["full"]) for name in (UNSURE, NEVER)}  # of neighbors in time
    before, noticed, line = _texts_until_noticed(model)
    checks = {
        "the cap holds": {row["depth"] for row in capped} == {2},
        "no warning before": not before,
        "a line is logged": line.count("differ from the calibration texts in depth") == 1,
    }
    bars = {
        "throughput against a policy that asks no exits": at_least(float(np.median(ratios[UNSURE])), 0.95, 0.85),
        "the same, one call for every exit": at_least(float(np.median(ratios[NEVER])), 0.95, 0.5),
        "texts until a warning": at_most(noticed, 2000),
    }
    rounded = {name: np.round(rows, 3).tolist() for name, rows in ratios.items()}
    return {"ratios": rounded, "warning": line[-300:], "bars": bars, "checks": checks}


def _texts_until_noticed(model: Path) -> tuple[bool, int, str]:
    """Serve texts as those of the calibration, then such as leave at the last exit only.

    Returns:
        Whether the server warned of the first, the number of the others after which it did, and what it logged.
    """
    texts = make_texts(6000, 12, seed=9)
    kept = (model / "policy.json").read_text()
    try:
        rows = certify(model, texts[:2000])
        deepest = max(row.depth for row in rows)
        hard = [text for text, row in zip(texts, rows, strict=False) if row.depth == deepest]
        with serving(model, *WORKERS) as server:

            def warned() -> bool:
                return server.metrics()['exitpoll_shifted{policy="default"}'] == 1.0

            for start in range(2000, 3500, AT_ONCE):  # one window of the watch, and half of another
                server.post("/v1/predict", {"texts": texts[start : start + AT_ONCE]})
            before, sent = warned(), 0
            while sent < 4000 and not warned():
                places = range(sent, sent + AT_ONCE)
                server.post("/v1/predict", {"texts": [hard[place % len(hard)] for place in places]})
                sent += AT_ONCE
            return before, sent, server.errors().strip()
    finally:
        (model / "policy.json").write_text(kept)


def memory(model: Path, share: float) -> Figures:
    """Test 19: mixed load for minutes: memory, descriptors and threads stay; a server that leaks is found."""
    steady = _slope(model, max(120, 600 * share), 0)  # a shorter time would measure how caches fill
    leaking = _slope(model, max(30, 60 * share), 20_000)
    before, after = steady["handles"]
    checks = {
        **steady.pop("checks"),
        "nothing fails": steady["statuses"] == [LEFT, 200],
        "descriptors return": after["descriptors"] <= before["descriptors"] + 2,
        "threads return": after["threads"] <= before["threads"],
        "nothing is under way": steady["under_way"] == 0,
    }
    bars = {
        "memory, MB a minute": at_most(steady["mb_a_minute"], 1),
        "memory of one that leaks, MB a minute": at_least(leaking["mb_a_minute"], 1.001),
    }
    return {"steady": steady, "leaking": leaking, "bars": bars, "checks": checks}


def _slope(model: Path, seconds: float, leak: int) -> dict[str, Any]:
    """Measure how memory grows under mixed load, after two minutes, or the first half of a shorter time."""
    samples: list[tuple[float, float]] = []
    with serving(model, *WORKERS, faults=Faults(leak=leak) if leak else None) as server:
        rate = 0.3 * capacity(server)
        time.sleep(7)  # idle connections are closed
        before, counted = server.handles(), server.outcomes()
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
        after, under_way = server.handles(), server.metrics()["exitpoll_queue_texts"]
        checks = accounted(server, counted, answers)
    late = [(moment, size) for moment, size in samples if moment > min(120.0, seconds / 2)]
    moments, sizes = np.array(late).T
    slope = float(np.polyfit(moments, sizes, 1)[0]) * 60
    return {
        "seconds": round(seconds),
        "sent": len(answers),
        "statuses": sorted({answer.status for answer in answers}),
        "mb_a_minute": round(slope, 3),
        "handles": [before, after],
        "under_way": under_way,
        "checks": checks,
        "mb": [round(samples[0][1], 1), round(samples[-1][1], 1)],
    }


def many_connections(model: Path, share: float) -> Figures:
    """Test 20: many idle keep-alive connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = min(5000, (hard if hard > 0 else 5000) // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, number + 500), hard))
    request = encoded("/v1/predict", {"text": "w1"})
    with serving(model, *WORKERS, "--header-timeout", "60") as server, ExitStack() as stack:
        before, answered = server.rss(), 0
        idle = [stack.enter_context(connect(server.port)) for _ in range(number)]
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
    with serving(model, *WORKERS, faults=Faults(token_seconds=0.0005)) as server:
        rate, before = 0.5 * capacity(server), server.outcomes()

        def scrape() -> None:
            connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
            for _ in range(30):
                began = time.monotonic()
                connection.request("GET", "/metrics")
                connection.getresponse().read()
                times.append(time.monotonic() - began)
                time.sleep(0.1)
            connection.close()

        answers = run(server.port, single(int(rate * 4)), rate, during=scrape)
        checks = accounted(server, before, answers)
        paths = json.loads(server.ask("GET", "/openapi.json")[2])["paths"]
        for number in range(100):
            server.ask("POST", f"/models/x{number}", {"inputs": "a"})
            server.ask("POST", "/v1/predict", {"text": "a", "policy": f"p{number}"})
            server.ask("GET", f"/nothing/{number}")
        for path in paths:
            for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
                for body in (b"", b"{", b"[]", b"{}", b'{"inputs": "a", "input": "a", "text": "a"}', b"a" * 2_100_000):
                    with suppress(ConnectionError):  # a large body is refused before it has been sent
                        server.ask(method, path.replace("{", "").replace("}", ""), body)
        series = len(server.metrics())
    checks["all answered"] = {answer.status for answer in answers} == {200}
    bars = {
        "median of a scrape, ms": at_most(quantile(times, 0.5), 5, 25),
        "slowest scrape, ms": at_most(quantile(times, 1.0), 5, 500),
        "series": at_most(series, 500),
    }
    return {"bars": bars, "checks": checks}
