"""How many replicas a load needs: a small simulation of texts that arrive, queue and leave at their depth.

python benchmarks/queueing.py

A replica runs one text at a time, for a time that grows with the depth at which the text leaves. Writes
benchmarks/results/queueing.json: replicas for a billion texts a day with exits and without, from measured times of a
text (serving.json where it was measured, else engine.json), and, with serving.json, the simulated p99 of the measured
server beside the measured one.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapreplace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESULTS = Path(__file__).parent / "results"
A_DAY = 1_000_000_000  # texts
PEAK = 2.0  # texts a second at the busiest time, by the mean over the day
PATIENCE = 10  # times the time of a text at full depth, within which 99 % of texts must leave
TEXTS = 200_000  # simulated


@dataclass(frozen=True)
class TextTimes:
    """What a text takes on a replica: seconds beside its layers, and seconds for each."""

    overhead: float
    layer: float

    @classmethod
    def between(cls, full: float, exits: float, layers: int, mean_depth: float) -> TextTimes:
        """Draw a line through the mean times at full depth and with exits."""
        layer = (full - exits) / (layers - mean_depth)
        return cls(max(full - layers * layer, 0.0), layer)

    def of(self, depths: NDArray) -> NDArray:
        """Return the seconds of texts: (texts,) depths -> (texts,)."""
        return self.overhead + self.layer * depths


def response_times(rate: float, service: NDArray, replicas: int, *, balanced: bool = True, seed: int = 0) -> NDArray:
    """Simulate texts that arrive at random (Poisson) and are run in the order of arrival.

    Args:
        rate: Texts a second.
        service: Seconds that each text takes, (texts,).
        replicas: How many texts run at once.
        balanced: Whether a text goes to the replica that is free first; otherwise to any, as some load balancers do.
        seed: Of the random generator.

    Returns:
        Seconds from arrival to departure, (texts,).
    """
    chance = np.random.default_rng(seed)
    arrived = np.cumsum(chance.exponential(1 / rate, len(service)))
    if not balanced:
        return _any_replica(arrived, service, chance.integers(replicas, size=len(service)), replicas)
    free = [0.0] * replicas  # when each replica is free: a heap
    left = np.empty(len(service))
    for text, (moment, seconds) in enumerate(zip(arrived.tolist(), service.tolist(), strict=True)):
        left[text] = end = max(moment, free[0]) + seconds
        heapreplace(free, end)
    return left - arrived


def _any_replica(arrived: NDArray, service: NDArray, chosen: NDArray, replicas: int) -> NDArray:
    """Run every text on the replica that was drawn for it."""
    free, left = [0.0] * replicas, np.empty(len(service))
    for text, (moment, seconds, replica) in enumerate(
        zip(arrived.tolist(), service.tolist(), chosen.tolist(), strict=True)
    ):
        left[text] = free[replica] = max(moment, free[replica]) + seconds
    return left - arrived


def replicas_for(rate: float, service: NDArray, limit: float, *, balanced: bool = True) -> int:
    """Find the fewest replicas with which 99 % of texts leave within a limit.

    Args:
        rate: Texts a second.
        service: Seconds that each text takes.
        limit: Seconds.
        balanced: As in `response_times`.

    Returns:
        The number of replicas.
    """
    low = int(rate * service.mean())  # too few: the queue grows for ever
    high = low + 1
    while np.quantile(response_times(rate, service, high, balanced=balanced), 0.99) > limit:
        low, high = high, high + max(1, high // 8)
    while high - low > 1:
        middle = (low + high) // 2
        late = np.quantile(response_times(rate, service, middle, balanced=balanced), 0.99) > limit
        low, high = (middle, high) if late else (low, middle)
    return high


def drawn_depths(counts: Mapping[int, float], texts: int, seed: int = 0) -> NDArray:
    """Draw depths from a histogram.

    Args:
        counts: How often each depth was seen.
        texts: How many to draw.
        seed: Of the random generator.

    Returns:
        Depths, (texts,).
    """
    shares = np.array(list(counts.values()), dtype=np.float64)
    return np.random.default_rng(seed).choice(np.array(list(counts)), size=texts, p=shares / shares.sum())


def geometric_counts(layers: int, mean_depth: float) -> dict[int, float]:
    """Return a histogram of depths that falls by a constant factor, with a given mean."""
    depths = np.arange(1, layers + 1)
    low, high = 1e-6, 1.0 - 1e-9
    for _ in range(60):
        stop = (low + high) / 2
        shares = stop * (1 - stop) ** (depths - 1)
        shares[-1] = (1 - stop) ** (layers - 1)
        low, high = (stop, high) if (shares * depths).sum() > mean_depth else (low, stop)
    return dict(zip(depths.tolist(), shares.tolist(), strict=True))


def estimate(times: TextTimes, counts: Mapping[int, float], layers: int, threads: int) -> dict[str, Any]:
    """Estimate the replicas for a billion texts a day, at the busiest time of the day.

    Args:
        times: What a text takes.
        counts: Histogram of the depths at which texts leave.
        layers: Of the model.
        threads: Of a replica.

    Returns:
        Replicas and cores with exits and without, for both ways of balancing.
    """
    rate, limit = PEAK * A_DAY / 86_400, PATIENCE * float(times.of(np.array([layers]))[0])
    found: dict[str, Any] = {"texts_a_second": round(rate), "limit_ms": round(1000 * limit, 2)}
    ways = {"with exits": drawn_depths(counts, TEXTS), "without": np.full(TEXTS, layers)}
    for name, depths in ways.items():
        service = times.of(depths)
        found[name] = {"mean_ms": round(1000 * float(service.mean()), 3)}
        for balanced, title in ((True, "least busy"), (False, "any")):
            count = replicas_for(rate, service, limit, balanced=balanced)
            p99 = float(np.quantile(response_times(rate, service, count, balanced=balanced), 0.99))
            found[name][title] = {"replicas": count, "cores": count * threads, "p99_ms": round(1000 * p99, 2)}
    return found


def from_engine(results: Mapping[str, Any]) -> dict[str, Any]:
    """Estimate from the times of single texts in engine.json: TREC in ONNX Runtime."""
    task = results["tasks"]["trec"]
    rows = {row["way"]: row for row in task["timings"] if (row["runtime"], row["batch_size"]) == ("onnx", 1)}
    full, exits = rows["engine, all layers"], rows["engine"]
    times = TextTimes.between(full["milliseconds"] / 1000, exits["milliseconds"] / 1000, task["layers"], exits["depth"])
    counts = geometric_counts(task["layers"], exits["depth"])
    source = {"source": "engine.json", "mean_depth": exits["depth"], "layers": task["layers"]}
    return {**source, "threads": task["threads"], **estimate(times, counts, task["layers"], task["threads"])}


def from_serving(results: Mapping[str, Any]) -> dict[str, Any]:
    """Estimate from the server that was measured, and simulate that server at the loads that were measured."""
    measured, alone = results["measured"], results["measured"]["in process"]
    attempts = [attempt for attempt in measured["round 1, exits"]["attempts"] if attempt["depths"]]
    counts = {int(depth): float(count) for depth, count in attempts[-1]["depths"].items()}
    mean_depth = attempts[-1]["mean_depth"]
    front = max(measured["idle"]["server_cpu_ms"] - alone["exits"]["cpu"], 0.0)
    times = TextTimes.between(
        (alone["full"]["mean"] + front) / 1000, (alone["exits"]["mean"] + front) / 1000, alone["layers"], mean_depth
    )
    found = {"source": "serving.json", "mean_depth": mean_depth, "layers": alone["layers"], "threads": 1}
    return {
        **found,
        **estimate(times, counts, alone["layers"], 1),
        "validation": [*_validated(measured, times, counts, alone["layers"])],
    }


def _validated(
    measured: Mapping[str, Any], times: TextTimes, counts: Mapping[int, float], layers: int
) -> list[dict[str, Any]]:
    """Return p50 and p99 of the server, as medians over rounds, beside the simulated ones."""
    rows = []
    for name, depths in (("exits", drawn_depths(counts, TEXTS)), ("full", np.full(TEXTS, layers))):
        rounds = [found for key, found in measured.items() if key.endswith(f", {name}, latency")]
        for share in rounds[0]:
            rate = statistics.median(one[share]["rate"] for one in rounds)
            latencies = [
                statistics.median(one[share]["milliseconds"][level] for one in rounds) for level in ("p50", "p99")
            ]
            simulated = _simulated(rate, times.of(depths))
            rows.append({"server": name, "load": float(share), "measured_ms": latencies, "simulated_ms": simulated})
    return rows


def _simulated(rate: float, service: NDArray) -> list[float] | None:
    """Return p50 and p99 in milliseconds; None if it is more than can be done one text at a time."""
    if rate * service.mean() >= 1:
        return None
    times = 1000 * response_times(rate, service, 1)
    return [round(float(np.quantile(times, level)), 2) for level in (0.5, 0.99)]


def main() -> None:
    """Write the estimate."""
    serving = RESULTS / "serving.json"
    if serving.exists():
        found = from_serving(json.loads(serving.read_text(encoding="utf-8")))
    else:
        found = from_engine(json.loads((RESULTS / "engine.json").read_text(encoding="utf-8")))
    content = json.dumps({"texts_a_day": A_DAY, "peak": PEAK, "patience": PATIENCE, **found}, indent=2)
    (RESULTS / "queueing.json").write_text(content + "\n", encoding="utf-8")
    print(content)


if __name__ == "__main__":
    main()
