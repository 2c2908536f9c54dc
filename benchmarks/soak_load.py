"""The tests of the soak that need load: answers, overload, disconnects, kills, reloads, starvation."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common import make_texts
from exitpoll import Engine, Policy, load_model
from soak_bars import at_most
from soak_client import LEFT, Answer, Request, count, encoded, quantile, run, saturate
from soak_model import NEVER
from soak_server import Faults, Server, connect, serving

Figures = dict[str, object]
WORKERS = ("--workers", "2")
LAYERS = 4  # of the model
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


def capacity(server: Server, policy: str = "default", requests: int = 300) -> float:
    """Measure how many requests of one text are answered in a second, by clients that always have another."""
    return saturate(server.port, single(requests, policy))


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
    seconds, queue, waits = max(5.0, 30 * share), 6000, Faults(token_seconds=0.001)
    with serving(model, "--workers", "1", "--max-queue", str(queue), faults=waits) as server:
        rate, before = saturate(server.port, single(200)), server.outcomes()
        usual = run(server.port, single(int(2.5 * rate)), rate / 2)
        memory, flooding, sizes = server.rss(), int(10 * rate * seconds), list[float]()

        def watch() -> None:
            while server.status("/health") is not None and len(sizes) < 2 * seconds:
                sizes.append(server.rss())
                time.sleep(0.5)

        requests = single(flooding + int(5 * rate))
        answers = run(server.port, requests, lambda number: 10 * rate if number < flooding else rate / 2, during=watch)
        checks = accounted(server, before, [*usual, *answers])
        sizes.append(server.rss())
    flood = [answer for answer in answers if answer.number < flooding]
    end = max(answer.planned for answer in flood)
    later = [answer for answer in answers if answer.planned > end + 5]
    refused = [answer for answer in flood if answer.status == 429]
    p50 = [quantile([answer.seconds for answer in rows], 0.5) for rows in (usual, later)]
    # It was busy all the time, so the time of a full queue follows from the work that it did.
    done = [answer for answer in flood if answer.status == 200]
    work = sum(_layer_tokens(requests[answer.number]) for answer in done)
    began, ended = (edge(answer.planned + answer.seconds for answer in done) for edge in (min, max))
    queue_ms, accepted = 1000 * queue * (ended - began) / work, [answer.served for answer in done]
    checks |= {
        "no status but 200 and 429": {answer.status for answer in answers} <= {200, 429},
        "most are refused": len(refused) > len(accepted),
        "Retry-After between 1 and 60": all(1 <= int(answer.headers.get("retry-after", 0)) <= 60 for answer in refused),
        "none is refused later": {answer.status for answer in later} == {200},
    }
    refusals = [answer.served for answer in refused]
    bars = {
        "slowest refusal, ms": at_most(quantile(refusals, 1.0), 50, 500),
        "99 % of refusals, ms": at_most(quantile(refusals, 0.99), 50, 100),
        "99 % of accepted, ms: the time of a full queue": at_most(quantile(accepted, 0.99), queue_ms, 1.5 * queue_ms),
        "memory above that before, MB": at_most(max(sizes) - memory, 64),
        "median 5 s after, ms: as before": at_most(p50[1], 1.2 * p50[0], 2 * p50[0] + 10),
    }
    figures = {"capacity": round(rate, 1), "sent": len(flood), "refused": len(refused), "accepted": len(accepted)}
    return {**figures, "p50_before_and_after_ms": p50, "bars": bars, "checks": checks}


def _layer_tokens(request: Request) -> int:
    """Return the work of a request as the server counts it, with two tokens around every text."""
    texts = request[1]["texts"]
    assert isinstance(texts, list)
    return LAYERS * sum(len(text.split()) + 2 for text in texts)


def disconnects(model: Path, share: float) -> Figures:
    """Test 5: half of the clients go away at random times."""
    total, usual, left = int(max(300, 1500 * share)), list[Answer](), list[Answer]()
    with serving(model, *WORKERS, faults=Faults(token_seconds=0.0005)) as server:
        rate = 0.4 * capacity(server)
        before = server.outcomes()
        for turn in range(3):
            usual += run(server.port, single(total // 3, NEVER, turn), rate)
            left += run(server.port, single(total // 3, NEVER, turn), rate, leaving=0.5)
        checks = accounted(server, before, [*usual, *left])
        cancelled = server.outcomes()["cancelled"]
    further = _calls_after_leaving(model, int(max(15, 60 * share)))
    stayed = [answer for answer in left if answer.status != LEFT]
    p99 = [quantile([answer.seconds for answer in rows], 0.99) for rows in (usual, stayed)]
    checks["all others are answered"] = {answer.status for answer in stayed} == {200}
    bars = {
        "99 % of others, ms: 1.2 times that without": at_most(p99[1], 1.2 * p99[0], 2 * p99[0]),
        "most further calls of a text": at_most(max(further), 1, 2),
        "share of texts with more than one": at_most(sum(calls > 1 for calls in further) / len(further), 0, 0.1),
    }
    figures = {"sent": len(left), "stayed": len(stayed), "cancelled": cancelled, "further_calls": further}
    return {**figures, "p99_without_and_with_ms": p99, "bars": bars, "checks": checks}


def _calls_after_leaving(model: Path, clients: int) -> list[int]:
    """Let clients leave one after another, and return how many calls began for the text of each after it had left."""
    chance, further = random.Random(0), []
    with tempfile.NamedTemporaryFile("r") as log:
        faults = Faults(call_seconds=0.05, log=log.name)
        with serving(model, "--workers", "1", faults=faults) as server:
            for _ in range(clients):
                with connect(server.port) as connection:
                    connection.sendall(encoded("/v1/predict", {"text": TEXTS[0], "policy": NEVER}))
                    time.sleep(chance.uniform(0.01, 0.9 * LAYERS * faults.call_seconds))
                gone = time.monotonic()
                time.sleep(1.5 * LAYERS * faults.call_seconds)  # all of its calls would be over
                further.append(sum(float(line) > gone for line in log))
    return further


def kills(model: Path, share: float) -> Figures:
    """Test 11: model processes are killed at random moments under 60 % load."""
    number, chance = max(2, round(20 * share)), random.Random(0)
    loading = seconds_to_load(model)
    with serving(model, *WORKERS) as server:
        rate, before = 0.6 * capacity(server), server.outcomes()

        def kill() -> None:
            for _ in range(number):
                time.sleep(chance.uniform(0.5, 1.5))
                server.kill_worker()

        answers = run(server.port, single(int(rate * number * 1.2)), rate, during=kill)
        server.wait_ready()
        checks = accounted(server, before, answers)
        restarts = server.restarts(number)
    checks["nothing is lost"] = {answer.status for answer in answers} == {200}
    checks["every death is counted"] = restarts == number
    p99 = quantile([answer.seconds for answer in answers], 0.99)
    bars = {"99 %, ms: the time to load a model, and a second": at_most(p99, 1000 * loading + 1000)}
    figures: Figures = {"kills": number, "sent": len(answers), "seconds_to_load": round(loading, 2)}
    return {**figures, "statuses": count(answers), "bars": bars, "checks": checks}


def seconds_to_load(model: Path) -> float:
    """Kill the only model process of an idle server, and return the seconds until it is ready again."""
    with serving(model, "--workers", "1") as server:
        before = time.monotonic()
        server.kill_worker()
        while server.status("/health/ready") == 200:
            time.sleep(0.002)
        server.wait_ready()
        return time.monotonic() - before


def reloads(model: Path, share: float) -> Figures:
    """Test 15: a policy is replaced by another and back under load, half of the time by a broken file."""
    number, path = max(8, round(100 * share)), model / "policies" / "fast.json"
    content = path.read_text()
    contents = [content, "{", (model / "policies" / f"{NEVER}.json").read_text(), "{"]
    requests, depths = _several(int(4 * number)), _depths_by(model, ("fast", NEVER))
    statuses: list[int] = []
    with serving(model, *WORKERS) as server:
        rate = saturate(server.port, requests[:100])

        def reload() -> None:
            for turn in range(number):
                path.write_text(contents[turn % len(contents)])
                statuses.append(server.ask("POST", "/v1/policies/reload")[0])
                time.sleep(0.05)
            path.write_text(content)

        before = server.outcomes()
        asked = [requests[turn % len(requests)] for turn in range(int(0.4 * rate * number * 0.06))]
        answers = run(server.port, asked, 0.4 * rate, during=reload)
        checks = accounted(server, before, answers)
    checks["no request fails"] = {answer.status for answer in answers} == {200}
    checks["each names its policy"] = all(json.loads(answer.body)["policy"] == "fast" for answer in answers)
    made_by = [_policy_of(answer, asked, depths) for answer in answers if answer.status == 200]
    checks["each is made by one policy only"] = None not in made_by
    checks["both policies answer"] = {"fast", NEVER} <= set(made_by)
    checks["broken files are refused"] = sorted(set(statuses)) == [200, 409]
    return {"reloads": number, "sent": len(answers), "by_policy": dict(Counter(map(str, made_by))), "checks": checks}


def _several(count: int) -> list[Request]:
    """Make requests of eight texts each, for policy `fast`."""
    chance = random.Random(2)
    return [("/v1/predict", {"texts": chance.sample(TEXTS, 8), "policy": "fast"}) for _ in range(count)]


def _depths_by(model: Path, names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the depth of every text by each of some policies."""
    loaded = load_model(model, threads=1)
    policies = {name: Policy.load(model / "policies" / f"{name}.json") for name in names}
    return {
        name: {text: row.depth for text, row in zip(TEXTS, Engine(loaded, policy)(TEXTS), strict=True)}
        for name, policy in policies.items()
    }


def _policy_of(answer: Answer, asked: Sequence[Request], depths: dict[str, dict[str, int]]) -> str | None:
    """Return the policy that explains the depths of all texts of an answer; None if no single one does."""
    texts: Any = asked[answer.number][1]["texts"]
    found = [row["depth"] for row in json.loads(answer.body)["predictions"]]
    return next((name for name, known in depths.items() if [known[text] for text in texts] == found), None)


def starvation(model: Path, share: float) -> Figures:
    """Test 16: 95 % long texts that leave early, and 5 % short ones that run to the end."""
    shallow: list[Request] = [("/v1/predict", {"texts": [text], "policy": "fast"}) for text in make_texts(200, 100)]
    deep: list[Request] = [("/v1/predict", {"texts": [text], "policy": NEVER}) for text in make_texts(200, 8)]
    chance, total = random.Random(0), int(3000 * share)
    requests = [chance.choice(deep if chance.random() < 0.05 else shallow) for _ in range(total)]
    with serving(model, *WORKERS) as server:
        rate, before = 0.5 * saturate(server.port, requests[:300]), server.outcomes()
        answers = run(server.port, requests, rate)
        checks = accounted(server, before, answers)
    seconds: dict[str, list[float]] = {NEVER: [], "fast": []}
    for answer in answers:
        seconds[str(requests[answer.number][1]["policy"])].append(answer.seconds)
    p99 = {name: quantile(rows, 0.99) for name, rows in seconds.items()}
    checks["all answered"] = {answer.status for answer in answers} == {200}
    bars = {"99 % of deep texts, ms: as of the others": at_most(p99[NEVER], p99["fast"], 2 * p99["fast"] + 50)}
    return {"sent": total, "p99_ms": p99, "bars": bars, "checks": checks}
