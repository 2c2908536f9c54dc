"""The benchmark of servers: its load generator, its search for a capacity, its tables."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from benchmarks.queueing import from_serving
from benchmarks.serving.capacity import find_capacity, in_time
from benchmarks.serving.generator import poisson_times, quantile
from benchmarks.serving.servers import servers
from benchmarks.serving_tables import bars_table, capacity_table, latency_table, replicas_table, validation_table

GENERATOR = str(Path(__file__).parents[2] / "benchmarks" / "serving" / "generator.py")


class Answering(BaseHTTPRequestHandler):
    """Answers with a depth, and refuses every text that says so."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = json.dumps({"predictions": [{"depth": len(body["text"])}]}).encode()
        self.send_response(429 if body["text"] == "no" else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def port():
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def generate(port, bodies, *options):
    command = [sys.executable, GENERATOR, "--port", str(port), "--bodies", str(bodies), "--connections", "8", *options]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_every_request_is_counted(port, tmp_path):
    (tmp_path / "bodies").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("a", "abc", "no")))
    measured = generate(port, tmp_path / "bodies", "--rate", "100", "--seconds", "0.6")
    assert measured["sent"] == len(poisson_times(100, 0.6, 0))
    assert measured["answered"] + measured["refused"] == measured["sent"]
    assert measured["refused"] == pytest.approx(measured["sent"] / 3, abs=1)
    assert measured["depths"].keys() == {"1", "3"}
    assert measured["milliseconds"]["p50"] <= measured["milliseconds"]["p99"]
    assert generate(port, tmp_path / "bodies", "--closed", "9")["sent"] == 9


def test_requests_come_at_random_times():
    times = poisson_times(100, 50, seed=1)
    gaps = np.diff(times)
    assert len(times) == pytest.approx(5000, rel=0.05)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # as of an exponential distribution
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([], 0.5) is None


@pytest.mark.parametrize("first", [1.0, 80.0, 5000.0])
def test_the_capacity_is_found(first):
    tried = []

    def attempt(rate):
        tried.append(rate)
        return rate <= 137.0

    assert find_capacity(attempt, first, most_steps=40) == pytest.approx(137.0, rel=0.06)
    assert find_capacity(lambda rate: False, 10.0) == 0.0


def test_a_refusal_is_not_in_time():
    measured = {"sent": 2, "answered": 2, "milliseconds": {"p99": 5.0}}
    assert in_time(measured, 5.0)
    assert not in_time(measured, 4.9)
    assert not in_time({**measured, "answered": 1}, 5.0)


def test_bodies_are_those_of_each_server(tmp_path):
    found = servers("model", "onnx", tmp_path, "python", "infinity_emb")
    assert list(found) == ["exits", "full", "no refill", "fastapi", "litserve", "infinity"]
    lines = {name: server.bodies(["a"], tmp_path / "b").read_text() for name, server in found.items()}
    assert json.loads(lines["full"]) == {"text": "a", "policy": "full"}
    assert json.loads(lines["infinity"]) == {"input": ["a"], "model": "classifier"}
    assert list(servers("model", None, tmp_path, None, None)) == ["exits", "full", "no refill", "fastapi"]


def measured_results():
    """Results as the benchmark writes them."""

    def run(rate, p50):
        return {
            **{"rate": rate, "server_cpu_ms": 2.0, "mean_depth": 3.0, "depths": {"2": 50, "4": 50}},
            "milliseconds": {"p50": p50, "p95": 2 * p50, "p99": 3 * p50},
        }

    measured = {
        "in process": {
            "exits": {"mean": 3.0, "p50": 3.0, "p99": 4.0, "cpu": 3.0},
            "full": {"mean": 12.0, "p50": 12.0, "p99": 13.0, "cpu": 12.0},
            "layers": 12,
            "mean_tokens": 10.0,
        },
        "idle": {"milliseconds": {"p50": 3.5, "p99": 6.0}, "server_cpu_ms": 3.25},
    }
    capacities = {"exits": 240.0, "full": 75.0, "no refill": 230.0, "fastapi": 70.0}
    for name, capacity in capacities.items():
        measured[f"round 1, {name}"] = {"capacity": capacity, "late_attempts": 0, "attempts": [run(capacity, 5.0)]}
    for name, p50 in (("exits", 4.0), ("full", 16.0), ("no refill", 4.0)):
        shares = {str(share): run(75.0 * share, p50) for share in (0.3, 0.6, 0.9)}
        measured[f"round 1, {name}, latency"] = shares
    return {"measured": measured}


def test_tables_say_what_was_measured_or_how_to_measure_it(monkeypatch):
    for write in (capacity_table, latency_table, bars_table):
        assert "python -m benchmarks.serving" in write(None)
    results = measured_results()
    assert "| exitpoll, with exits and refill | 240 (240 to 240) | 3.20 | 2.00 |" in capacity_table(results)
    assert "| 60 % | exitpoll, never exits early | 16.0 | 32.0 | 48.0 |" in latency_table(results)
    bars = bars_table(results)
    assert "| capacity with exits ÷ (layer speed-up × full depth) | 0.80 | ≥ 0.75 |" in bars
    assert "| p50 at 60 % load ÷ full depth | 0.25 | ≤ 0.5 |" in bars
    assert "| HTTP adds on an idle server, p50, ms | 0.50 | ≤ 1 |" in bars
    assert "| CPU of the front, ms a request | 0.25 | ≤ 0.3 |" in bars
    monkeypatch.setattr("benchmarks.queueing.TEXTS", 3_000)
    estimate = from_serving(results)
    assert len(estimate["validation"]) == 6
    page = {"texts_a_day": 10**9, "peak": 2.0, "patience": 10, **estimate}
    assert "picks any replica" in replicas_table(page)
    assert "| exitpoll, never exits early | 30 % | 16.0 / 48.0 |" in validation_table(page)
    assert "benchmarks/queueing.py" in validation_table({})
