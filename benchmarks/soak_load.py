"""The tests of the soak that need load: answers, overload, disconnects, kills, signals, reloads."""

from __future__ import annotations

import json
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from common import make_texts
from exitpoll import Engine, Policy, load_model
from soak_client import CUT_OFF, LEFT, NOTHING, Answer, Request, count, quantile, run
from soak_server import NEVER, Server, serving

Figures = dict[str, object]
WORKERS = ("--workers", "2")
ALTERNATE = ("/v1/predict", "/v1/predict/stream")
TEXTS = [text for tokens in (4, 8, 16, 40) for text in make_texts(100, tokens, tokens)]
PATHS: dict[str, Callable[[list[str], str], dict[str, object]]] = {
    "/v1/predict": lambda texts, policy: {"texts": texts, "policy": policy},
    "/v2/models/onnx/infer": lambda texts, policy: {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(texts), 1], "data": texts}],
        "parameters": {"policy": policy},
    },
    "/classify": lambda texts, policy: {"input": texts, "model": f"onnx:{policy}"},
    "/predict": lambda texts, policy: {"inputs": texts},
}


def single(count: int, policy: str = "default", seed: int = 0) -> list[Request]:
    """Make requests of one text each."""
    chance = random.Random(seed)
    return [("/v1/predict", {"texts": [chance.choice(TEXTS)], "policy": policy}) for _ in range(count)]


def capacity(server: Server, policy: str = "default") -> float:
    """Measure how many requests of one text are answered in a second, by more clients than there is work for."""
    answered = [answer for answer in run(server.port, single(300, policy), 10_000.0) if answer.status == 200]
    return len(answered) / max(answer.seconds for answer in answered)


def accounted(server: Server, before: dict[str, int], answers: list[Answer]) -> dict[str, bool]:
    """Check the law of accounting: what clients saw is what the metrics count, and every text sent is counted."""
    deadline = time.monotonic() + 10
    sent = sum(answer.texts for answer in answers)
    while True:
        counts = {name: value - before[name] for name, value in server.outcomes().items()}
        if sum(counts.values()) == sent or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    seen = count(answers)
    gone = seen.get(str(LEFT), 0)
    return {
        "sent = answered + refused + cancelled + expired + failed": sum(counts.values()) == sent,
        "answered as clients saw": seen.get("200", 0) <= counts["answered"] <= seen.get("200", 0) + gone,
        "refused as clients saw": seen.get("429", 0) <= counts["refused"] <= seen.get("429", 0) + gone,
    }


def same_answers(model: Path, share: float) -> Figures:
    """Test 2: answers over HTTP are those of the engine, in every dialect and with mixed policies."""
    chance, files = random.Random(1), {"default": "policy.json", "fast": "policies/fast.json"}
    loaded = load_model(model, threads=1)
    expected = {
        name: dict(zip(TEXTS, Engine(loaded, Policy.load(model / file))(TEXTS), strict=True))
        for name, file in files.items()
    }
    asked: list[tuple[str, list[str], str]] = []
    while sum(len(texts) for _, texts, _ in asked) < 10_000 * share:
        path = chance.choice([*PATHS])
        policy = "default" if path == "/predict" else chance.choice([*files])
        asked.append((path, [chance.choice(TEXTS) for _ in range(chance.choice([1, 1, 2, 8, 16]))], policy))
    requests = [(path, PATHS[path](texts, policy)) for path, texts, policy in asked]
    with serving(model, *WORKERS, "--max-queue", "20000000") as server:
        before = server.outcomes()
        answers = run(server.port, requests, 100.0)
        checks = accounted(server, before, answers)
    checks["all answered"] = {answer.status for answer in answers} == {200}
    differences, worst = 0, 0.0
    for answer in answers:
        path, texts, policy = asked[answer.number]
        for text, (label, depth, probability) in zip(texts, rows_of(path, json.loads(answer.body)), strict=True):
            row = expected[policy][text]
            differences += row.label != label or depth not in (None, row.depth)
            worst = max(worst, abs(float(str(row.probability)) - probability))
    checks["no differences"] = differences == 0 and worst <= 1e-6
    total = sum(len(texts) for _, texts, _ in asked)
    return {"texts": total, "differences": differences, "worst_probability": worst, "checks": checks}


def rows_of(path: str, answer: Any) -> list[tuple[str, int | None, float]]:
    """Return label, depth and probability of every text, from the answer of a dialect."""
    if path == "/v1/predict":
        return [(row["label"], row["depth"], row["probability"]) for row in answer["predictions"]]
    if path == "/classify":
        return [(row["label"], row["depth"], max(row["probs"])) for row in answer["data"]]
    if path == "/predict":
        return [(row[0]["label"], None, row[0]["score"]) for row in answer]
    outputs = {output["name"]: output["data"] for output in answer["outputs"]}
    shares = np.array(outputs["probabilities"]).reshape(len(outputs["label"]), -1).max(axis=1).tolist()
    return list(zip(outputs["label"], outputs["depth"], shares, strict=True))


def overload(model: Path, share: float) -> Figures:
    """Test 3: ten times more than it can do, then half of it."""
    with serving(model, *WORKERS, "--max-queue", "6000") as server:
        rate, memory, before = capacity(server), server.rss(), server.outcomes()
        usual = run(server.port, single(int(rate)), rate / 2)
        flood = run(server.port, single(int(min(10 * rate, 2000) * 30 * share)), min(10 * rate, 2000))
        time.sleep(5 * share)
        after = run(server.port, single(int(rate)), rate / 2)
        checks = accounted(server, before, [*usual, *flood, *after])
        grown = server.rss() - memory
    refused = [answer for answer in flood if answer.status == 429]
    waits = [int(answer.headers.get("retry-after", 0)) for answer in refused]
    p50 = quantile([answer.seconds for answer in usual], 0.5), quantile([answer.seconds for answer in after], 0.5)
    checks |= {
        "no status but 200 and 429": {answer.status for answer in flood} <= {200, 429},
        "some were refused": bool(refused),
        "Retry-After between 1 and 60": all(1 <= wait <= 60 for wait in waits),
        "within 64 MB of before": grown <= 64,
        "afterwards as before": p50[1] <= 2 * p50[0] + 5,
    }
    return {
        "capacity": round(rate, 1),
        "sent": len(flood),
        "refused": len(refused),
        "p50_of_refusals_ms": quantile([answer.seconds for answer in refused], 0.5),
        "p99_of_accepted_ms": quantile([answer.seconds for answer in flood if answer.status == 200], 0.99),
        "p50_before_and_after_ms": p50,
        "grown_mb": round(grown, 1),
        "checks": checks,
    }


def disconnects(model: Path, share: float) -> Figures:
    """Test 5: half of the clients go away at random times."""
    with serving(model, *WORKERS) as server:
        rate, total = capacity(server), int(3000 * share)
        usual = run(server.port, single(total, NEVER), 0.4 * rate)
        before = server.outcomes()
        answers = run(server.port, single(total, NEVER), 0.4 * rate, leaving=0.5)
        checks = accounted(server, before, answers)
        cancelled = server.outcomes()["cancelled"]
    stayed = [answer for answer in answers if answer.status != LEFT]
    p99 = [quantile([answer.seconds for answer in rows], 0.99) for rows in (usual, stayed)]
    checks["all others are answered"] = {answer.status for answer in stayed} == {200}
    return {
        "sent": total,
        "stayed": len(stayed),
        "cancelled": cancelled,
        "p99_alone_and_with_ms": p99,
        "checks": checks,
    }


def kills(model: Path, share: float) -> Figures:
    """Test 11: model processes are killed at random moments under 60 % load."""
    number = max(2, round(20 * share))
    with serving(model, *WORKERS) as server:
        rate, before = capacity(server), server.outcomes()
        chance = random.Random(0)

        def kill() -> None:
            for _ in range(number):
                time.sleep(chance.uniform(0.5, 1.5))
                server.kill_worker()

        answers = run(server.port, single(int(0.6 * rate * number * 1.2)), 0.6 * rate, during=kill)
        server.wait_ready()
        checks = accounted(server, before, answers)
        restarts = server.metrics()["exitpoll_worker_restarts_total"]
    checks["nothing is lost"] = {answer.status for answer in answers} == {200}
    checks["every death is counted"] = restarts == number
    p99 = quantile([answer.seconds for answer in answers], 0.99)
    return {"kills": number, "sent": len(answers), "statuses": count(answers), "p99_ms": p99, "checks": checks}


def signals(model: Path, share: float) -> Figures:
    """Test 13: SIGTERM under load, twice, while loading, and with idle connections and open streams."""
    rounds = [_end_under_load(model) for _ in range(max(2, round(20 * share)))]
    checks = {name: all(checks[name] for checks, _ in rounds) for name in rounds[0][0]}
    with serving(model, *WORKERS, "--drain-delay", "30") as server:
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        checks["not ready first"] = (server.status("/health/ready"), server.status("/health/live")) == (503, 200)
        checks["a second signal ends it at once"] = server.end(signal.SIGINT, 10) == 0
    with serving(model, *WORKERS, ready=False) as server:
        time.sleep(0.3)
        server.end(signal.SIGTERM, 10)  # raises if it does not end
    totals = [figures for _, figures in rounds]
    sums = {name: sum(figures[name] for figures in totals) for name in totals[0] if name != "seconds"}
    longest = round(max(figures["seconds"] for figures in totals), 2)
    return {"times": len(rounds), "longest_seconds": longest, **sums, "checks": checks}


def _end_under_load(model: Path) -> tuple[dict[str, bool], dict[str, float]]:
    """Send SIGTERM while requests come, half of them streams, whose status shows that they were accepted."""
    requests = [(path, body) for number, (_, body) in enumerate(single(300)) for path in [ALTERNATE[number % 2]]]
    ended: list[tuple[float, float, int]] = []
    with serving(model, *WORKERS) as server, socket.create_connection(("127.0.0.1", server.port)) as idle:
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        workers = server.workers()

        def end() -> None:
            time.sleep(0.5)
            began = time.monotonic()
            code = server.end()
            ended.append((began, time.monotonic() - began, code))

        answers = run(server.port, requests, 300.0, during=end)
        _, orphans = psutil.wait_procs(workers, timeout=2)
    [(signalled, seconds, code)] = ended
    early = [answer for answer in answers if answer.planned < signalled - 0.1]
    streams = [answer for answer in answers if answer.number % 2 and answer.status == 200]
    checks = {
        "exit code 0 within 30 s": code == 0 and seconds <= 30,
        "requests before the signal are answered": {answer.status for answer in early} == {200},
        "none is cut off": CUT_OFF not in {answer.status for answer in answers},
        "streams have their end": all(b"event: done" in answer.body for answer in streams),
        "no other status": {answer.status for answer in answers} <= {200, 503, NOTHING},
        "no orphans": not orphans,
    }
    answered = sum(answer.status == 200 for answer in answers)
    return checks, {"seconds": seconds, "sent": len(answers), "answered": answered}


def reloads(model: Path, share: float) -> Figures:
    """Test 15: policies are read again under load, half of the time from broken files."""
    number, path = max(5, round(100 * share)), model / "policies" / "fast.json"
    content = path.read_text()
    statuses: list[int] = []
    with serving(model, *WORKERS) as server:
        rate = capacity(server)

        def reload() -> None:
            for turn in range(number):
                path.write_text("{" if turn % 2 else content)
                statuses.append(server.ask("POST", "/v1/policies/reload")[0])
                time.sleep(0.05)
            path.write_text(content)

        before = server.outcomes()
        answers = run(server.port, single(int(0.4 * rate * number * 0.06), "fast"), 0.4 * rate, during=reload)
        checks = accounted(server, before, answers)
    checks["no request fails"] = {answer.status for answer in answers} == {200}
    checks["each names its policy"] = all(json.loads(answer.body)["policy"] == "fast" for answer in answers)
    checks["broken files are refused"] = sorted(set(statuses)) == [200, 409]
    return {"reloads": number, "sent": len(answers), "checks": checks}
