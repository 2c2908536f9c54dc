"""Tables of benchmarks/results/serving.json, and whether its bars were reached."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

NOT_YET = "Not measured yet: `python -m benchmarks.serving MODEL TEXTS` writes this table."
ABOUT = {
    "exits": "exitpoll, with exits and refill",
    "full": "exitpoll, never exits early",
    "no refill": "exits without refill",
    "fastapi": "FastAPI micro-batcher, full ONNX graph",
    "litserve": "LitServe, full ONNX graph",
    "infinity": "Infinity, torch",
}


def rounds_of(results: Mapping[str, Any], name: str, what: str = "") -> list[Any]:
    """Return the measurements of a server, round by round.

    Args:
        results: The content of the file.
        name: Of the server.
        what: Nothing for capacities, or ", latency".

    Returns:
        The measurements.
    """
    measured = results["measured"]
    keys = (f"round {turn}, {name}{what}" for turn in range(1, len(measured) + 1))
    return [measured[key] for key in keys if key in measured]


def capacity_of(results: Mapping[str, Any], name: str) -> float | None:
    """Return the median capacity of a server, in requests a second; None if it was not measured."""
    found = [measured["capacity"] for measured in rounds_of(results, name)]
    return statistics.median(found) if found else None


def capacity_table(results: Mapping[str, Any] | None) -> str:
    """Write the capacity of every server, absolute and against ours at full depth."""
    if results is None:
        return NOT_YET
    full = capacity_of(results, "full") or 1.0
    rows = ["| server | requests a second (range) | × ours at full depth | CPU ms a request |", "|---|---|---|---|"]
    for name, about in ABOUT.items():
        found = rounds_of(results, name)
        if found:
            capacities = [measured["capacity"] for measured in found]
            median = statistics.median(capacities)
            cpu = statistics.median(attempt["server_cpu_ms"] for one in found for attempt in one["attempts"])
            spread = f"{min(capacities):.0f} to {max(capacities):.0f}"
            rows.append(f"| {about} | {median:.0f} ({spread}) | {median / full:.2f} | {cpu:.2f} |")
    return "\n".join(rows)


def latency_table(results: Mapping[str, Any] | None) -> str:
    """Write latencies at the same loads, as medians over rounds."""
    if results is None:
        return NOT_YET
    rows = ["| load, of ours at full depth | server | p50, ms | p95, ms | p99, ms |", "|---|---|---|---|---|"]
    for share in ("0.3", "0.6", "0.9"):
        for name in ("exits", "no refill", "full"):
            found = [measured[share]["milliseconds"] for measured in rounds_of(results, name, ", latency")]
            if found:
                cells = " | ".join(f"{_median(found, quantile):.1f}" for quantile in ("p50", "p95", "p99"))
                rows.append(f"| {100 * float(share):.0f} % | {ABOUT[name]} | {cells} |")
    return "\n".join(rows)


def bars_table(results: Mapping[str, Any] | None) -> str:
    """Write what was to be reached, and what was."""
    if results is None:
        return NOT_YET
    rows = ["| what | reached | to reach |", "|---|---|---|"]
    for what, reached, bar in _bars(results):
        rows.append(f"| {what} | {reached:.2f} | {bar} |")
    return "\n".join(rows)


def _bars(results: Mapping[str, Any]) -> list[tuple[str, float, str]]:
    """Return what was to be reached, what was, and the bar."""
    measured, alone = results["measured"], results["measured"]["in process"]
    exits, full = capacity_of(results, "exits") or 0.0, capacity_of(results, "full") or 1.0
    depths = [attempt["mean_depth"] for found in rounds_of(results, "exits") for attempt in found["attempts"]]
    speedup = alone["layers"] / statistics.median(depths)
    least = 0.75 if alone["mean_tokens"] <= 16 else 0.9
    bars = [("capacity with exits ÷ (layer speed-up × full depth)", exits / (speedup * full), f"≥ {least}")]
    without = capacity_of(results, "no refill")
    if without:
        bars.append(("capacity with refill ÷ without", exits / without, "≥ 0.95"))
    others = {name: capacity_of(results, name) for name in ("fastapi", "litserve", "infinity")}
    known = {name: capacity for name, capacity in others.items() if capacity}
    if known:
        bars.append(("capacity at full depth ÷ best of the others", full / max(known.values()), "≥ 0.95"))
    for name in ("litserve", "infinity"):
        if name in known:
            bars.append((f"capacity with exits ÷ {ABOUT[name]}", exits / known[name], "≥ 2 (TREC)"))
    latencies = {name: rounds_of(results, name, ", latency") for name in ("exits", "full")}
    for quantile, bar in (("p50", 0.5), ("p99", 0.6)):
        ours, theirs = (
            _median([one["0.6"]["milliseconds"] for one in latencies[name]], quantile) for name in ("exits", "full")
        )
        bars.append((f"{quantile} at 60 % load ÷ full depth", ours / theirs, f"≤ {bar}"))
    idle = measured["idle"]
    for quantile, bar in (("p50", 1), ("p99", 3)):
        added = idle["milliseconds"][quantile] - alone["exits"][quantile]
        bars.append((f"HTTP adds on an idle server, {quantile}, ms", added, f"≤ {bar}"))
    bars.append(("CPU of the front, ms a request", idle["server_cpu_ms"] - alone["exits"]["cpu"], "≤ 0.3"))
    return bars


def _median(found: list[Mapping[str, float]], quantile: str) -> float:
    """Return the median of a quantile over rounds."""
    return statistics.median(one[quantile] for one in found)


def replicas_table(estimate: Mapping[str, Any]) -> str:
    """Write the replicas for a billion texts a day, with exits and without.

    Args:
        estimate: The content of benchmarks/results/queueing.json.

    Returns:
        A sentence on what was measured, and a table.
    """
    ways = {name: estimate[name] for name in ("with exits", "without")}
    threads = estimate["threads"]
    rows = [
        f"{estimate['texts_a_day']:,} texts a day are {estimate['texts_a_second']:,} a second at a peak of "
        f"{estimate['peak']:g} times the mean. A text takes\n{ways['without']['mean_ms']:.2f} ms at full depth "
        f"({estimate['layers']} layers) and {ways['with exits']['mean_ms']:.2f} ms with exits "
        f"(mean depth {estimate['mean_depth']:.1f}), on {threads} thread{'s' * (threads > 1)}\n"
        f"(`benchmarks/results/{estimate['source']}`, TREC, ONNX Runtime). "
        f"99 % of answers must come within {estimate['limit_ms']:.0f} ms,\n{estimate['patience']:g} times a text at "
        "full depth.",
        "",
        "| load balancer | replicas without exits | with exits | cores without | with | p99 with exits, ms |",
        "|---|---|---|---|---|---|",
    ]
    for title, about in (("least busy", "picks the least busy replica"), ("any", "picks any replica")):
        full, exits = ways["without"][title], ways["with exits"][title]
        rows.append(
            f"| {about} | {full['replicas']} | {exits['replicas']} | {full['cores']} | {exits['cores']} "
            f"| {exits['p99_ms']:.0f} |"
        )
    return "\n".join(rows)


def validation_table(estimate: Mapping[str, Any]) -> str:
    """Write the measured latencies of a server beside the simulated ones."""
    if "validation" not in estimate:
        return "Not measured yet: run `python -m benchmarks.serving MODEL TEXTS`, then `python benchmarks/queueing.py`."
    rows = ["| server | load | measured p50 / p99, ms | simulated p50 / p99, ms |", "|---|---|---|---|"]
    for row in estimate["validation"]:
        cells = (" / ".join(f"{value:.1f}" for value in row[name]) for name in ("measured_ms", "simulated_ms"))
        rows.append(f"| {ABOUT[row['server']]} | {100 * row['load']:.0f} % | {' | '.join(cells)} |")
    return "\n".join(rows)
