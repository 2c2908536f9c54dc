"""Tables of benchmarks/results/serving*.json, and whether the bars were reached.

Rates that could not be kept up with, by the rules of `benchmarks.serving.capacity`, are left out, and named below the
table. Latencies for which the generator was late are marked: they are of the generator too.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.serving.capacity import ENOUGH, LATE_MS, most_drain

NOT_YET = "Not measured yet: `python -m benchmarks.serving MODEL TEXTS` writes this table."
ABOUT = {
    "exits": "exitpoll, with exits and refill",
    "full": "exitpoll, never exits early",
    "exits, in process": "exitpoll with `--workers 0`, with exits and refill",
    "full, in process": "exitpoll with `--workers 0`, never exits early",
    "no refill": "exits without refill",
    "fastapi": "FastAPI micro-batcher, full ONNX graph",
    "litserve": "LitServe, full ONNX graph",
    "infinity": "Infinity, torch",
}
IN_PROCESS = ", in process"  # of servers of exitpoll that run the model in a thread
LOADS = {  # files of results, by their name, with the options that measure them
    "serving": "",
    "serving_bursts": "--bursts",
    "serving_16_texts": "--at-once 16",
    "serving_pairs": "--pairs",
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


def fault_of(results: Mapping[str, Any], run: Mapping[str, Any]) -> str | None:
    """Say why a server could not have kept up with a rate for long.

    Args:
        results: The content of the file.
        run: What was measured at the rate.

    Returns:
        A few words; None if it could.
    """
    request_ms = results.get("limit_ms", 0.0) / results["setting"].get("patience", 10.0)
    drain, cores = run.get("drain_seconds", 0.0), run["rate"] * run.get("server_cpu_ms", 0.0) / 1000
    words = [f"answers came in for {drain:.1f} s after the last request"] if drain > most_drain(request_ms) else []
    if results["setting"].get("pinned") and cores > 1:
        words.append(f"{cores:.1f} cores would be needed, of one")
    return " and ".join(words) or None


def capacities_of(results: Mapping[str, Any], name: str) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the rounds of a server whose capacity counts, and why others do not."""
    counted, faults = [], []
    for found in rounds_of(results, name):
        at_capacity = [run for run in found["attempts"] if abs(run["rate"] - found["capacity"]) < 0.01]
        fault = fault_of(results, at_capacity[-1]) if at_capacity else None
        if fault is None:
            counted.append(found)
        else:
            faults.append(fault)
    return counted, faults


def capacity_of(results: Mapping[str, Any], name: str) -> float | None:
    """Return the median capacity of a server, in requests a second; None if no round counts."""
    found = [measured["capacity"] for measured in capacities_of(results, name)[0]]
    return statistics.median(found) if found else None


def latencies_of(results: Mapping[str, Any], name: str, share: str) -> list[Mapping[str, Any]]:
    """Return what was measured of a server under a load, round by round, where it could keep up with that."""
    if capacity_of(results, "full") is None:  # loads are shares of it
        return []
    runs = (found[share] for found in rounds_of(results, name, ", latency"))
    return [run for run in runs if fault_of(results, run) is None]


def left_out(results: Mapping[str, Any]) -> str:
    """Say which rounds do not count, and why; nothing if all do."""
    found = ((ABOUT[name], capacities_of(results, name)[1]) for name in ABOUT)
    words = [f"{about} ({', '.join(faults)})" for about, faults in found if faults]
    if words and not any(capacity_of(results, name) for name in ABOUT):
        return f"left out, as no rate that was found can be kept up with for long: {words[0]}, and others alike."
    return f"left out, as rates that cannot be kept up with for long: {'; '.join(words)}." if words else ""


def capacity_table(results: Mapping[str, Any] | None) -> str:
    """Write the capacity of every server, absolute and against ours at full depth."""
    if results is None:
        return NOT_YET
    full = capacity_of(results, "full") or 1.0
    rows = ["| server | requests a second (range) | × ours at full depth | CPU ms a request |", "|---|---|---|---|"]
    for name, about in ABOUT.items():
        found, _ = capacities_of(results, name)
        if found:
            capacities = [measured["capacity"] for measured in found]
            median = statistics.median(capacities)
            cpu = statistics.median(attempt["server_cpu_ms"] for one in found for attempt in one["attempts"])
            spread = f"{min(capacities):.0f} to {max(capacities):.0f}"
            rows.append(f"| {about} | {median:.0f} ({spread}) | {median / full:.2f} | {cpu:.2f} |")
    return _with_notes("\n".join(rows), _sentence(left_out(results)))


def capacity_in_words(results: Mapping[str, Any] | None) -> str:
    """Say in a sentence what one core serves with exits, without, and with other servers."""
    if results is None:
        return NOT_YET
    exits, full, *others = (
        f"{capacity_of(results, name) or 0.0:.0f}" for name in ("exits", "full", "fastapi", "litserve", "infinity")
    )
    return (
        f"One core answers {exits} of TREC's questions a second with exits and {full} at full depth, where a FastAPI "
        f"micro-batcher\nanswers {others[0]}, LitServe {others[1]} and Infinity {others[2]} "
        "([how it was measured](docs/concepts/sizing.md#measured-capacity-of-one-core))."
    )


def latency_table(results: Mapping[str, Any] | None) -> str:
    """Write latencies at the same loads, as medians over rounds."""
    if results is None:
        return NOT_YET
    rows = ["| load, of ours at full depth | server | p50, ms | p95, ms | p99, ms |", "|---|---|---|---|---|"]
    for share in ("0.3", "0.6", "0.9"):
        for name in ("exits", "exits, in process", "no refill", "full", "full, in process"):
            if found := latencies_of(results, name, share):
                cells = " | ".join(f"{_median(found, quantile):.1f}" for quantile in ("p50", "p95", "p99"))
                rows.append(f"| {100 * float(share):.0f} % | {ABOUT[name]}{_lateness(found)} | {cells} |")
    return _with_notes("\n".join(rows), _few_requests(results))


def _few_requests(results: Mapping[str, Any]) -> str:
    """Say how many requests are behind a latency, where that is fewer than the rules ask for."""
    sent = [run["sent"] for name in ABOUT for found in rounds_of(results, name, ", latency") for run in found.values()]
    if not sent or min(sent) >= 0.9 * ENOUGH:
        return ""
    return f"A run of a round sent {min(sent)} to {max(sent)} requests; the present rules ask for {ENOUGH:,}."


def _lateness(runs: Sequence[Mapping[str, Any]]) -> str:
    """Say by how much the generator was late, if it was."""
    late = max((run.get("lag_p99_ms", 0.0) for run in runs), default=0.0)
    return f" (generator {late:.1f} ms late)" if late > LATE_MS else ""


def _sentence(words: str) -> str:
    """Begin words with a capital."""
    return words[:1].upper() + words[1:]


def _with_notes(table: str, *notes: str) -> str:
    """Write notes below a table."""
    return "\n\n".join(part for part in (table, *notes) if part)


def load_in_words(setting: Mapping[str, Any]) -> str:
    """Describe what a request holds and when requests come.

    Args:
        setting: Of the results.

    Returns:
        A few words.
    """
    texts, what = setting.get("texts_a_request", 1), "pair" if setting.get("pairs") else "text"
    held = f"one {what}" if texts == 1 else f"{texts} {what}s"
    return f"{held} a request, {'in bursts' if setting.get('arrivals') == 'bursts' else 'at random times'}"


def loads_table(found: Mapping[str, Mapping[str, Any] | None]) -> str:
    """Write what exits gain under every load that was measured, and how to measure the others.

    Args:
        found: The content of the files of `LOADS`, by name; None for one that is not there.

    Returns:
        A table, and a sentence on what is missing.
    """
    missing = [f"`{LOADS[name]}`" if LOADS[name] else "no option" for name, results in found.items() if not results]
    rows = [
        "| load | requests a second with exits | exits without refill | at full depth | best of the others "
        "| p50 at 60 % ÷ full depth | p99 |",
        "|---|---|---|---|---|---|---|",
    ]
    notes = []
    for results in filter(None, found.values()):
        others = [capacity_of(results, name) or 0.0 for name in ("fastapi", "litserve", "infinity")]
        capacities = [*(capacity_of(results, name) or 0.0 for name in ("exits", "no refill", "full")), max(others)]
        load = load_in_words(results["setting"])
        if left_out(results):
            notes.append(f"{_sentence(load)}: {left_out(results)}")
        if not any(capacities):
            continue
        latencies = [_latency_ratio(results, quantile) for quantile in ("p50", "p99")]
        cells = [f"{rate:.3g}" if rate else "–" for rate in capacities]
        cells += ["–" if ratio is None else f"{ratio:.2f}{late}" for ratio, late in latencies]
        rows.append(f"| {load} | {' | '.join(cells)} |")
    table = "\n".join(rows) if len(rows) > 2 else ""
    command = f"Not measured yet: `python -m benchmarks.serving MODEL TEXTS` with {', '.join(missing)}."
    return _with_notes(table, *notes, command if missing else "")


def _latency_ratio(
    results: Mapping[str, Any], quantile: str, mode: str = "", of: str | None = None
) -> tuple[float | None, str]:
    """Return the latency with exits against that of another server, at 60 % of our capacity at full depth.

    Args:
        results: The content of a file.
        quantile: p50, p95 or p99.
        mode: Nothing, or `IN_PROCESS`.
        of: The other server; ours at full depth by default.

    Returns:
        The ratio, None if either was not measured; and whether the generator was late, in words.
    """
    ours, theirs = (latencies_of(results, name, "0.6") for name in (f"exits{mode}", of or f"full{mode}"))
    if not ours or not theirs:
        return None, ""
    return _median(ours, quantile) / _median(theirs, quantile), _lateness([*ours, *theirs])


def bars_table(found: Mapping[str, Mapping[str, Any] | None]) -> str:
    """Write what was to be reached, and what was, with the model in a process of its own and in the server's.

    Args:
        found: The content of the files of `LOADS`, by name; None for one that is not there.

    Returns:
        A table of all loads that were measured.
    """
    rows = [
        "| load | what | model in its own process | in the server's (`--workers 0`) | to reach |",
        "|---|---|---|---|---|",
    ]
    for results in filter(None, found.values()):
        load = load_in_words(results["setting"])
        for (what, ours, late, bar), (_, inside, late_too, _) in zip(
            _bars(results), _bars(results, IN_PROCESS), strict=True
        ):
            if ours is not None or inside is not None:
                cells = f"{_against(ours, bar)}{late} | {_against(inside, bar)}{late_too}"
                rows.append(f"| {load} | {what} | {cells} | {bar} |")
    return "\n".join(rows) if len(rows) > 2 else NOT_YET


def _against(reached: float | None, bar: str) -> str:
    """Write what was reached, and whether that misses the bar."""
    if reached is None:
        return "–"
    limit = float(bar.split()[1])
    is_missed = reached < limit if bar.startswith("≥") else reached > limit
    return f"{reached:.2f} (missed)" if is_missed else f"{reached:.2f}"


Bar = tuple[str, float | None, str, str]  # what, how much, whether the generator was late, what is to be reached


def _bars(results: Mapping[str, Any], mode: str = "") -> list[Bar]:
    """Return what was to be reached, and what was; None where that was not measured, or not kept up with."""
    measured, alone = results["measured"], results["measured"]["in process"]
    exits, full, without = (capacity_of(results, name) for name in (f"exits{mode}", f"full{mode}", "no refill"))
    depths = [attempt["mean_depth"] for found in rounds_of(results, f"exits{mode}") for attempt in found["attempts"]]
    of_layers = None if full is None else full * alone["layers"] / statistics.median(depths)
    least = 0.75 if alone["mean_tokens"] <= 16 else 0.9
    others = {name: capacity_of(results, name) for name in ("fastapi", "litserve", "infinity")}
    best = max((capacity for capacity in others.values() if capacity), default=None)
    bars: list[Bar] = [
        ("capacity with exits ÷ (layer speed-up × full depth)", _ratio(exits, of_layers), "", f"≥ {least}"),
        ("capacity with refill ÷ without", _ratio(exits, without), "", "≥ 0.95"),
        ("capacity at full depth ÷ best of the others", _ratio(full, best), "", "≥ 0.95"),
    ]
    for name in ("litserve", "infinity"):
        bars.append((f"capacity with exits ÷ {ABOUT[name]}", _ratio(exits, others[name]), "", "≥ 2 (TREC)"))
    for quantile, of, bar in (
        ("p50", f"full{mode}", "0.5"),
        ("p99", f"full{mode}", "0.6"),
        ("p50", "no refill", "1.05"),
    ):
        about = "exits without refill" if of == "no refill" else "full depth"
        bars.append((f"{quantile} at 60 % load ÷ {about}", *_latency_ratio(results, quantile, mode, of), f"≤ {bar}"))
    if results["setting"].get("texts_a_request", 1) > 1:  # what was timed in process is one text
        return bars
    idle = measured[f"idle{mode}"]
    for quantile, bar in (("p50", "1"), ("p99", "3")):
        added = idle["milliseconds"][quantile] - alone["exits"][quantile]
        bars.append((f"HTTP adds on an idle server, {quantile}, ms", added, "", f"≤ {bar}"))
    beside = idle["server_cpu_ms"] - alone["exits"]["cpu"]
    return [*bars, ("CPU of the server beside the model, ms a request", beside, "", "≤ 0.3")]


def _ratio(one: float | None, other: float | None) -> float | None:
    """Divide, if both are known."""
    return one / other if one and other else None


def _median(found: Sequence[Mapping[str, Any]], quantile: str) -> float:
    """Return the median of a quantile over rounds."""
    return statistics.median(one["milliseconds"][quantile] for one in found)


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
        cells = (
            "more than one text at a time allows" if row[name] is None else " / ".join(f"{ms:.1f}" for ms in row[name])
            for name in ("measured_ms", "simulated_ms")
        )
        rows.append(f"| {ABOUT[row['server']]} | {100 * row['load']:.0f} % | {' | '.join(cells)} |")
    return "\n".join([*rows, "", _simulation_errors(estimate["validation"])])


def _simulation_errors(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say how far the simulated latencies are from the measured ones."""
    parts = []
    for server in dict.fromkeys(row["server"] for row in rows):
        of_server = [row for row in rows if row["server"] == server and row["simulated_ms"] is not None]
        for place, level in enumerate(("p50", "p99")):
            errors = [100 * (row["simulated_ms"][place] / row["measured_ms"][place] - 1) for row in of_server]
            parts.append(f"{level} by {min(errors):+.0f} to {max(errors):+.0f} %" if errors else f"{level} nowhere")
    with_exits, full = f"{parts[0]} and {parts[1]}", f"{parts[2]} and {parts[3]}"
    return f"The simulated latencies differ from the measured ones: with exits {with_exits}, at full depth {full}."
