"""The benchmark of servers: its load generator, its search for a capacity, its tables."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from argparse import Namespace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from benchmarks.queueing import from_serving
from benchmarks.serving.__main__ import path_of, read_texts, variant_of
from benchmarks.serving.capacity import attempt_seconds, find_capacity, in_time, latency_seconds, on_time
from benchmarks.serving.generator import CYCLE, PEAK, burst_times, poisson_times, quantile
from benchmarks.serving.servers import running, server_at, servers
from benchmarks.serving_tables import (
    LOADS,
    bars_table,
    capacity_table,
    latency_table,
    load_in_words,
    loads_table,
    replicas_table,
    validation_table,
)

GENERATOR = str(Path(__file__).parents[2] / "benchmarks" / "serving" / "generator.py")


class Answering(BaseHTTPRequestHandler):
    """Answers with a depth, and refuses every text that says so."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        texts = body.get("texts") or [body["text"]]
        answer = json.dumps({"predictions": [{"depth": len(text)} for text in texts]}).encode()
        self.send_response(429 if texts == ["no"] else 200)
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


def test_all_depths_of_a_request_are_counted(port, tmp_path):
    (tmp_path / "bodies").write_text(json.dumps({"texts": ["a", "abc", "abc"]}) + "\n")
    measured = generate(port, tmp_path / "bodies", "--closed", "5")
    assert measured["depths"] == {"1": 5, "3": 10}


def test_requests_come_in_bursts(port, tmp_path):
    times = np.array(burst_times(100, 50, seed=1))
    assert (np.diff(times) >= 0).all()
    assert len(times) == pytest.approx(5000, rel=0.05)
    assert times.max() < 50
    assert (times % CYCLE <= CYCLE / PEAK).all()  # and nothing for the rest of a cycle
    (tmp_path / "bodies").write_text(json.dumps({"text": "a"}) + "\n")
    measured = generate(port, tmp_path / "bodies", "--rate", "80", "--seconds", "0.5", "--bursts")
    assert measured["answered"] == len(burst_times(80, 0.5, 0))


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


def test_what_counts_as_in_time():
    measured = {"sent": 2, "answered": 2, "milliseconds": {"p99": 5.0}, "drain_seconds": 0.9, "valid": True}
    assert in_time(measured, 5.0, 1.0)
    assert not in_time(measured, 4.9, 1.0)
    assert not in_time({**measured, "answered": 1}, 5.0, 1.0)
    assert not in_time({**measured, "valid": False}, 5.0, 1.0)
    assert not in_time({**measured, "drain_seconds": 1.1}, 5.0, 1.0)
    assert in_time({**measured, "drain_seconds": 1.1}, 5.0, 500.0)  # three requests take longer


def simulated(rate, seconds, service_ms, seed=0, lag=0.0):
    """What the generator would measure of a server that runs one request after another."""
    times = np.array(poisson_times(rate, seconds, seed))
    free, left = 0.0, np.empty(len(times))
    for number, moment in enumerate(times.tolist()):
        left[number] = free = max(moment, free) + service_ms / 1000
    milliseconds = 1000 * (left - times)
    return {
        **{"sent": len(times), "answered": len(times), "rate": rate, "lag_p99_ms": lag},
        "drain_seconds": max(float(left.max() - seconds), 0.0),
        "milliseconds": {"p50": float(np.median(milliseconds)), "p99": float(np.quantile(milliseconds, 0.99))},
    }


@pytest.mark.parametrize("service_ms", [5.0, 60.0, 250.0])
def test_a_capacity_can_be_kept_up_with_for_ever(service_ms):
    """A backlog that grows is within ten times the time of a request until the end of a short run, not of ours."""
    limit_ms, most = 10 * service_ms, 1000 / service_ms

    def capacity(kept_up, seconds):
        found = []
        for turn in range(5):
            found.append(
                find_capacity(
                    lambda rate: kept_up(simulated(rate, seconds, service_ms, seed=int(1000 * rate) + turn)),  # noqa: B023
                    0.7 * most,
                    most_steps=40,
                )
            )
        return np.median(found)

    def ours(run):
        return in_time({**run, "valid": True}, limit_ms, service_ms)

    assert capacity(ours, attempt_seconds(4.0, limit_ms)) <= 1.05 * most
    if service_ms == 250.0:  # as of 16 texts
        assert capacity(lambda run: run["milliseconds"]["p99"] <= limit_ms, 4.0) > 1.15 * most


def test_a_generator_that_is_late_sends_again():
    lags = iter([3.0, 1.2, 0.4, 9.0, 9.0, 9.0])
    told = []

    def send(late):
        told.append(late)
        return simulated(50, 1, 1.0, lag=next(lags))

    first, second = on_time(send), on_time(send)
    assert (first["valid"], first["late_runs"], first["lag_p99_ms"]) == (True, 2, 0.4)
    assert (second["valid"], second["late_runs"]) == (False, 3)
    assert told == [0, 1, 2, 0, 1, 2]
    assert not in_time(second, 1000.0, 1.0)


def test_runs_are_long_enough():
    assert attempt_seconds(4.0, 55.0) == 4.0
    assert attempt_seconds(4.0, 2531.0) == pytest.approx(6 * 2.531)
    assert latency_seconds(4.0, 1000.0) == 4.0
    assert latency_seconds(4.0, 50.0) == 40.0
    assert latency_seconds(4.0, 3.0) == 60.0


def test_a_server_that_runs_already():
    server = server_at("tei=http://127.0.0.1:8080/predict")
    assert (server.name, server.port, server.path, server.key) == ("tei", 8080, "/predict", "inputs")
    with running(server, None) as process:
        assert (process.port, process.cpu_seconds()) == (8080, 0.0)
    assert "tei" in servers("model", None, Path(), None, None, ["tei=http://localhost:8080"])
    with pytest.raises(SystemExit, match="must be a name and an address here"):
        server_at("http://elsewhere:80/")


def test_bodies_are_those_of_each_server(tmp_path):
    found = servers("model", "onnx", tmp_path, "python", "infinity_emb")
    ours = ["exits", "full", "exits, in process", "full, in process", "no refill", "fastapi"]
    assert list(found) == [*ours, "litserve", "infinity"]
    lines = {name: server.bodies(["a"], tmp_path / "b").read_text() for name, server in found.items()}
    assert json.loads(lines["full"]) == {"text": "a", "policy": "full"}
    assert json.loads(lines["infinity"]) == {"input": ["a"], "model": "classifier"}
    assert list(servers("model", None, tmp_path, None, None)) == ours
    pairs = [("a", "b"), ("c", "d"), ("e", "f")]
    assert found["full"].bodies(pairs, tmp_path / "b", 1).read_text().splitlines()[2] == (
        '{"text": ["e", "f"], "policy": "full"}'
    )
    assert found["exits"].bodies(pairs, tmp_path / "b", 2).read_text() == '{"texts": [["a", "b"], ["c", "d"]]}\n'
    assert json.loads(found["infinity"].bodies(["a", "b"], tmp_path / "b", 2).read_text())["input"] == ["a", "b"]
    assert json.loads(found["exits"].bodies(["a"], tmp_path / "b", 16).read_text()) == {"texts": ["a"]}


def test_every_load_has_a_file_of_its_own(tmp_path):
    def chosen(**options):
        return Namespace(**{"bursts": False, "at_once": 1, "pairs": False, "out": None, **options})

    usual = chosen()
    assert (path_of(usual).stem, variant_of(usual)) == ("serving", {})
    options = (chosen(), chosen(bursts=True), chosen(at_once=16), chosen(pairs=True))
    assert [path_of(one).stem for one in options] == list(LOADS)
    described = [load_in_words(variant_of(one)) for one in options]
    assert described[1:] == [
        "one text a request, in bursts",
        "16 texts a request, at random times",
        "one pair a request, at random times",
    ]
    (tmp_path / "pairs.tsv").write_text("a b\tc\n\nd\te\n")
    assert read_texts(tmp_path / "pairs.tsv", pairs=True) == [("a b", "c"), ("d", "e")]
    (tmp_path / "pairs.tsv").write_text("a\tb\nc\n")
    with pytest.raises(SystemExit, match=r"line 2 of .* is not two texts"):
        read_texts(tmp_path / "pairs.tsv", pairs=True)


def measured_results():
    """Results as the benchmark writes them."""

    def run(rate, p50):
        return {
            **{"rate": rate, "sent": 2000, "server_cpu_ms": 2.0, "mean_depth": 3.0, "depths": {"2": 50, "4": 50}},
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
        "idle, in process": {"milliseconds": {"p50": 3.25, "p99": 6.0}, "server_cpu_ms": 3.2},
    }
    capacities = {"exits": 240.0, "full": 75.0, "no refill": 230.0, "fastapi": 70.0}
    capacities |= {"exits, in process": 270.0, "full, in process": 75.0}
    for name, capacity in capacities.items():
        measured[f"round 1, {name}"] = {"capacity": capacity, "late_attempts": 0, "attempts": [run(capacity, 5.0)]}
    latencies = {"exits": 4.0, "full": 16.0, "no refill": 4.0, "exits, in process": 4.0, "full, in process": 10.0}
    for name, p50 in latencies.items():
        shares = {str(share): run(75.0 * share, p50) for share in (0.3, 0.6, 0.9)}
        measured[f"round 1, {name}, latency"] = shares
    return {"setting": {"model": "m"}, "measured": measured}


def test_tables_say_what_was_measured_or_how_to_measure_it(monkeypatch):
    for write in (capacity_table, latency_table):
        assert "python -m benchmarks.serving" in write(None)
    assert "python -m benchmarks.serving" in bars_table({"serving": None})
    results = measured_results()
    assert "| exitpoll, with exits and refill | 240 (240 to 240) | 3.20 | 2.00 |" in capacity_table(results)
    assert "| 60 % | exitpoll, never exits early | 16.0 | 32.0 | 48.0 |" in latency_table(results)
    bars = bars_table({"serving": results, "serving_bursts": None})
    load = "one text a request, at random times"
    assert f"| {load} | capacity with exits ÷ (layer speed-up × full depth) | 0.80 | 0.90 | ≥ 0.75 |" in bars
    assert "| p50 at 60 % load ÷ full depth | 0.25 | 0.40 | ≤ 0.5 |" in bars
    assert "| HTTP adds on an idle server, p50, ms | 0.50 | 0.25 | ≤ 1 |" in bars
    assert "| CPU of the server beside the model, ms a request | 0.25 | 0.20 | ≤ 0.3 |" in bars
    assert "| p50 at 60 % load ÷ exits without refill | 1.00 | 1.00 | ≤ 1.05 |" in bars
    loads = loads_table({"serving": results, "serving_bursts": None})
    assert "| one text a request, at random times | 240 | 230 | 75 | 70 | 0.25 | 0.25 |" in loads
    assert "Not measured yet: `python -m benchmarks.serving MODEL TEXTS` with `--bursts`." in loads
    monkeypatch.setattr("benchmarks.queueing.TEXTS", 3_000)
    estimate = from_serving(results)
    assert len(estimate["validation"]) == 6
    page = {"texts_a_day": 10**9, "peak": 2.0, "patience": 10, **estimate}
    assert "picks any replica" in replicas_table(page)
    assert "| exitpoll, never exits early | 30 % | 16.0 / 48.0 |" in validation_table(page)
    assert "benchmarks/queueing.py" in validation_table({})


def test_rates_that_cannot_be_kept_up_with_are_left_out_and_named():
    results = measured_results()
    results |= {"limit_ms": 120.0, "setting": {"patience": 10.0, "pinned": True}}
    measured = results["measured"]
    measured["round 1, fastapi"]["attempts"][0]["drain_seconds"] = 1.8
    measured["round 1, no refill"]["attempts"][0]["server_cpu_ms"] = 5.0  # at 230 a second
    capacities = capacity_table(results)
    assert "| FastAPI" not in capacities
    assert "FastAPI micro-batcher, full ONNX graph (answers came in for 1.8 s after the last request)" in capacities
    assert "exits without refill (1.1 cores would be needed, of one)" in capacities
    assert "| 240 | – | 75 | – | 0.25 | 0.25 |" in loads_table({"serving": results})
    bars = bars_table({"serving": results})
    assert "÷ best of the others" not in bars
    assert "capacity with refill ÷ without" not in bars
    for run in (run for name, rows in measured.items() if name.endswith("latency") for run in rows.values()):
        run |= {"sent": 300, "lag_p99_ms": 0.1}
    measured["round 1, full, latency"]["0.6"]["lag_p99_ms"] = 7.0
    assert "| p50 at 60 % load ÷ full depth | 0.25 (generator 7.0 ms late) | 0.40 | ≤ 0.5 |" in bars_table(
        {"a": results}
    )
    assert "A run of a round sent 300 to 300 requests; the present rules ask for 2,000." in latency_table(results)
    for found in (found for found in measured.values() if "attempts" in found):
        found["attempts"][0]["drain_seconds"] = 2.0
    assert "no rate that was found can be kept up with for long" in loads_table({"serving": results})
    assert "at full depth" not in bars_table({"serving": results})
