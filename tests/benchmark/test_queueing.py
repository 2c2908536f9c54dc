"""The queueing simulation agrees with what is known of simple queues."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from benchmarks import queueing
from benchmarks.queueing import TextTimes, estimate, geometric_counts, replicas_for, response_times

TEXTS = 200_000


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_constant_times_wait_as_in_theory(load):
    """M/D/1: a text waits ρ / (2 (1 - ρ)) times its own time on average."""
    waited = response_times(load, np.ones(TEXTS), 1) - 1
    assert waited.mean() == pytest.approx(load / (2 * (1 - load)), rel=0.05)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_exponential_times_have_the_tail_of_theory(load):
    """M/M/1: response times are exponential with rate μ - λ."""
    service = np.random.default_rng(1).exponential(1.0, TEXTS)
    times = response_times(load, service, 1)
    assert times.mean() == pytest.approx(1 / (1 - load), rel=0.08)
    assert np.quantile(times, 0.99) == pytest.approx(-math.log(0.01) / (1 - load), rel=0.1)


def test_several_replicas_wait_as_in_theory():
    """M/M/c: the share of texts that wait is Erlang's C formula."""
    replicas, load = 4, 0.75
    offered = replicas * load
    terms = [offered**count / math.factorial(count) for count in range(replicas)]
    busy = offered**replicas / math.factorial(replicas) / (1 - load)
    service = np.random.default_rng(2).exponential(1.0, TEXTS)
    waited = response_times(offered, service, replicas) - service
    assert (waited > 1e-9).mean() == pytest.approx(busy / (sum(terms) + busy), rel=0.05)


def test_any_replica_is_as_many_single_queues():
    single = response_times(0.6, np.ones(TEXTS), 1)
    any_of_four = response_times(2.4, np.ones(TEXTS), 4, balanced=False)
    assert any_of_four.mean() == pytest.approx(single.mean(), rel=0.05)
    assert response_times(2.4, np.ones(TEXTS), 4).mean() < any_of_four.mean()


def test_the_fewest_replicas_are_found():
    service = np.full(20_000, 0.01)
    count = replicas_for(1000.0, service, 0.03)
    assert np.quantile(response_times(1000.0, service, count), 0.99) <= 0.03
    assert count == 11 or np.quantile(response_times(1000.0, service, count - 1), 0.99) > 0.03


def test_depths_are_drawn_with_the_given_mean():
    counts = geometric_counts(12, 3.0)
    assert sum(counts.values()) == pytest.approx(1)
    assert sum(depth * share for depth, share in counts.items()) == pytest.approx(3.0, abs=1e-3)


def test_exits_need_fewer_replicas(monkeypatch):
    monkeypatch.setattr("benchmarks.queueing.TEXTS", 5_000)
    times = TextTimes.between(full=0.0125, exits=0.0035, layers=12, mean_depth=3.0)
    assert times == TextTimes(pytest.approx(0.0005), pytest.approx(0.001))
    found = estimate(times, geometric_counts(12, 3.0), 12, 1)
    without, exits = found["without"]["least busy"], found["with exits"]["least busy"]
    assert without["replicas"] / exits["replicas"] == pytest.approx(12.5 / 3.5, rel=0.1)
    assert exits["p99_ms"] <= found["limit_ms"]


DEPTHS = {2: 300, 4: 100, 12: 50}  # how many texts left at which of 12 layers
FRONT, LAYER = 0.25, 1.0  # milliseconds of a request beside its layers, and of a layer
MEAN_DEPTH = sum(depth * count for depth, count in DEPTHS.items()) / sum(DEPTHS.values())


def served(rate, depths, seed):
    """Return what the load generator would print of a server that runs one text after another (Lindley's equation)."""
    chance = np.random.default_rng(seed)
    service = FRONT + LAYER * chance.choice(
        list(depths), p=np.array(list(depths.values())) / sum(depths.values()), size=20_000
    )
    gaps, waited, times = chance.exponential(1000 / rate, len(service)), 0.0, []
    for own, gap in zip(service, gaps, strict=True):
        times.append(waited + own)
        waited = max(0.0, waited + own - gap)
    p50, p95, p99 = np.quantile(times, [0.5, 0.95, 0.99])
    counts = {"sent": len(times), "answered": len(times), "refused": 0, "failed": 0}
    return {
        **counts,
        "rate": rate,
        "milliseconds": {"p50": p50, "p95": p95, "p99": p99},
        "mean_depth": MEAN_DEPTH,
        "depths": {str(depth): count for depth, count in depths.items()},
        "lag_p99_ms": 0.1,
    }


def measured_server():
    """Results as benchmarks/serving writes them, of a server that behaves as the simulation says."""
    full, exits = 12 * LAYER, MEAN_DEPTH * LAYER
    alone = {
        name: {"mean": mean, "p50": mean, "p99": mean, "cpu": mean} for name, mean in (("full", full), ("exits", exits))
    }
    measured = {
        "in process": {**alone, "layers": 12, "mean_tokens": 10.0},
        "idle": {"milliseconds": {"p50": exits, "p99": full}, "server_cpu_ms": exits + FRONT},
    }
    capacity = 1000 / (full + FRONT)
    for name, depths in (("exits", DEPTHS), ("full", {12: 1})):
        attempt = {**served(capacity, depths, 1), "server_cpu_ms": 2.0}
        measured[f"round 1, {name}"] = {"capacity": capacity, "late_attempts": 0, "attempts": [attempt]}
        rates = {str(share): round(share * capacity, 2) for share in (0.3, 0.6, 0.9)}
        measured[f"round 1, {name}, latency"] = {share: served(rate, depths, 7) for share, rate in rates.items()}
    return {"setting": {"model": "toy", "seconds": 4.0}, "measured": measured, "limit_ms": 10 * full}


def test_the_measured_server_is_simulated(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(queueing, "RESULTS", tmp_path)
    monkeypatch.setattr(queueing, "TEXTS", 20_000)
    (tmp_path / "serving.json").write_text(json.dumps(measured_server()))
    queueing.main()
    found = json.loads((tmp_path / "queueing.json").read_text())
    assert json.loads(capsys.readouterr().out) == found
    assert (found["source"], found["layers"], found["threads"]) == ("serving.json", 12, 1)
    assert found["with exits"]["mean_ms"] == pytest.approx(FRONT + MEAN_DEPTH, rel=0.02)
    assert found["without"]["mean_ms"] == pytest.approx(12.25)
    assert [(row["server"], row["load"]) for row in found["validation"]] == [
        (name, share) for name in ("exits", "full") for share in (0.3, 0.6, 0.9)
    ]
    for row in found["validation"]:
        assert row["simulated_ms"] == pytest.approx(row["measured_ms"], rel=0.25 if row["load"] == 0.9 else 0.1)


def test_without_a_measured_server_the_engine_is_taken(tmp_path, monkeypatch):
    rows = [
        {"way": way, "runtime": "onnx", "batch_size": 1, "milliseconds": milliseconds, "depth": depth}
        for way, milliseconds, depth in (("engine", 3.5, 3.0), ("engine, all layers", 12.5, 12.0))
    ]
    monkeypatch.setattr(queueing, "RESULTS", tmp_path)
    monkeypatch.setattr(queueing, "TEXTS", 5_000)
    task = {"layers": 12, "threads": 2, "timings": rows}
    (tmp_path / "engine.json").write_text(json.dumps({"tasks": {"trec": task}}))
    queueing.main()
    found = json.loads((tmp_path / "queueing.json").read_text())
    assert found["source"] == "engine.json"
    assert "validation" not in found
