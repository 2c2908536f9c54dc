"""The tables and sentences of the documentation, from what engine.py measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KINDS = ("torch", "onnx", "onnx-int8")
TITLES = {"torch": "PyTorch", "onnx": "ONNX Runtime", "onnx-int8": "ONNX Runtime, int8"}
MOST_SECONDS = 0.5  # to load an export
FULL_DEPTH = {  # what a user would run without exits in each runtime: (runtime, way)
    "torch": ("torch", "plain transformers"),
    "onnx": ("onnx", "full graph"),
    "onnx-int8": ("onnx-int8", "full graph"),
}


def kept_table(tasks: Mapping[str, Any]) -> str:
    """Write which share of the speed-up in layers is left in wall-clock time."""
    rows = [
        "| task | runtime | speed-up in layers | way | 1 at a time | 8 | 32 | 128 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, task in tasks.items():
        for kind in KINDS:
            for way in ("engine", "engine, no refill", "whole batch waits"):
                timings = [timing for timing in task["timings"] if (timing["runtime"], timing["way"]) == (kind, way)]
                cells = " | ".join(f"{timing['of_layers']:.2f}" for timing in timings)
                rows.append(f"| {name} | {kind} | {task['layers'] / timings[0]['depth']:.2f} | {way} | {cells} |")
    return "\n".join(rows)


def limit_table(tasks: Mapping[str, Any]) -> str:
    """Write which share of the engine's time its layers take; the rest is the overhead of early exit."""
    rows = ["| task | tokens | runtime | 1 at a time | 8 | 32 | 128 |", "|---|---|---|---|---|---|---|"]
    for name, task in tasks.items():
        for kind in KINDS:
            parts = [row["milliseconds"] for row in task["breakdowns"] if row["runtime"] == kind]
            layers = [part["layers"] + part.get("layers with exits", 0.0) for part in parts]
            cells = " | ".join(f"{own / sum(part.values()):.2f}" for own, part in zip(layers, parts, strict=True))
            rows.append(f"| {name} | {task['mean_tokens']:.0f} | {kind} | {cells} |")
    return "\n".join(rows)


def plain_table(tasks: Mapping[str, Any]) -> str:
    """Write how many times as fast as plain transformers every way is, at the same batch size."""
    rows = ["| task | way | runtime | 1 at a time | 8 | 32 | 128 |", "|---|---|---|---|---|---|---|"]
    for name, task in tasks.items():
        for kind, way in dict.fromkeys((timing["runtime"], timing["way"]) for timing in task["timings"]):
            if way not in ("plain transformers", "engine, no refill"):
                timings = [timing for timing in task["timings"] if (timing["runtime"], timing["way"]) == (kind, way)]
                cells = " | ".join(f"{timing['against_plain']:.2f}" for timing in timings)
                rows.append(f"| {name} | {way} | {kind} | {cells} |")
    return "\n".join(rows)


def short_table(tasks: Mapping[str, Any]) -> str:
    """Write how fast short texts are, one at a time, and what early exit and int8 cost."""
    rows = [
        "| task | runtime | all layers, × plain | with exits, × plain | score, all layers | with exits | static |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, task in tasks.items():
        for kind in KINDS if task["short_texts"] else ():
            timings = [timing for timing in task["short_texts"]["timings"] if timing["runtime"] == kind]
            ways = {timing["way"]: timing for timing in timings}
            full, exits = (f"{ways[way]['against_plain']:.2f}" for way in ("engine, all layers", "engine"))
            score = task["scores"][kind]
            scores = " | ".join(f"{100 * score[way]:.1f}" for way in ("all_layers", "with_exits", "static"))
            rows.append(f"| {name} | {kind} | {full} | {exits} | {scores} |")
    return "\n".join(rows)


def guarantee_in_words(task: Mapping[str, Any], max_disagreement: float) -> str:
    """Describe the guarantee of a task in PyTorch, and what was measured on its test split."""
    score = task["scores"]["torch"]
    return (
        f"guarantee: answers differ from the full model's on at most {100 * max_disagreement:g} % of texts, with 95 % "
        f"confidence; speed-up {score['certified_speedup']:.2f} × in layers.\n"
        f"On the {score['texts']} test texts: accuracy {100 * score['with_exits']:.1f} % against "
        f"{100 * score['all_layers']:.1f} % of the full model,\nspeed-up {score['speedup_in_layers']:.2f} × in layers, "
        f"{100 * score['differs']:.1f} % of answers differ."
    )


def exits_table(tasks: Mapping[str, Any]) -> str:
    """Write how many times as fast as the same runtime without exits the engine is, at the same batch size."""
    rows = ["| task | runtime | without exits | 1 at a time | 8 | 32 | 128 |", "|---|---|---|---|---|---|---|"]
    for name, task in tasks.items():
        for kind in KINDS:
            ratios = zip(_ratios(task, kind, "engine"), _ratios(task, *FULL_DEPTH[kind]), strict=True)
            cells = " | ".join(f"{ours / theirs:.2f}" for ours, theirs in ratios)
            rows.append(f"| {name} | {kind} | {FULL_DEPTH[kind][1]} | {cells} |")
    return "\n".join(rows)


def gains_table(results: Mapping[str, Any], quickstart: Mapping[str, Any]) -> str:
    """Write what early exit gains in every runtime, beside that runtime at full depth and plain transformers.

    The gain of ONNX Runtime itself is in the last column only: the column before compares with ONNX Runtime without
    exits.

    Args:
        results: The content of benchmarks/results/engine.json.
        quickstart: The content of experiments/results/quickstart.json.

    Returns:
        A Markdown table; wall-clock ratios are for one text at a time / batches of 32.
    """
    rows = [
        "| texts | runtime | score: full depth → exits | guarantee | fewer layers "
        "| faster than the same runtime without exits | faster than plain transformers |",
        "|---|---|---|---|---|---|---|",
    ]
    most = results.get("max_disagreement", results.get("max_drop"))  # its name in older files
    bound = f"≤ {100 * most:g} % of answers differ"
    for name, task in results["tasks"].items():
        for kind in KINDS:
            score, speedup = task["scores"][kind], task["layers"] / _depth(task, kind)
            cells = [
                f"{name.upper()}, {task['mean_tokens']:.0f} tokens",
                TITLES[kind],
                f"{100 * score['all_layers']:.1f} → {100 * score['with_exits']:.1f} %",
                bound if speedup > 1 else "none possible: no early exit",
                f"{speedup:.1f} ×",
                *_gain_cells(task, kind, "**" if speedup > 1 else ""),
            ]
            rows.append("| " + " | ".join(cells) + " |")
    cells = [
        f"movie reviews, {quickstart['mean_tokens']:.0f} tokens",
        TITLES["torch"],
        " → ".join(f"{100 * quickstart[row]['score']['value']:.1f}" for row in ("full", "policy")) + " %",
        quickstart["guarantee"].split(",")[0].replace("is at most", "≤").replace(" the full model's", ""),
        f"{quickstart['policy']['speedup']:.1f} ×",
        *_gain_cells(quickstart, "torch", "**"),
    ]
    return "\n".join([*rows, "| " + " | ".join(cells) + " |"])


def _gain_cells(task: Mapping[str, Any], kind: str, bold: str) -> list[str]:
    """Write what exits gain, and what runtime and exits gain together: one text at a time / batches of 32."""
    by_exits = [_gain(task, kind, FULL_DEPTH[kind], size) for size in (1, 32)]
    in_all = [_gain(task, kind, FULL_DEPTH["torch"], size) for size in (1, 32)]
    return [
        " / ".join(f"{bold}{value:.1f} ×{bold}{spread}" for value, spread in by_exits),
        " / ".join(f"{value:.1f} ×{spread}" for value, spread in in_all),
    ]


def _gain(task: Mapping[str, Any], kind: str, other: tuple[str, str], batch_size: int) -> tuple[float, str]:
    """Return how many times as fast as another way the engine is, and the range over rounds where they are known."""
    timings = {(row["runtime"], row["way"]): row for row in task["timings"] if row["batch_size"] == batch_size}
    ours, theirs = timings[kind, "engine"], timings[other]
    ratios = [slow / fast for slow, fast in zip(theirs.get("rounds", ()), ours.get("rounds", ()), strict=True)]
    spread = f" ({min(ratios):.1f}–{max(ratios):.1f})" if ratios else ""
    return theirs["milliseconds"] / ours["milliseconds"], spread


def _ratios(task: Mapping[str, Any], kind: str, way: str, batch_sizes: Sequence[int] | None = None) -> list[float]:
    """Return how many times as fast as plain transformers a way is, at every batch size or at some."""
    timings = [timing for timing in task["timings"] if (timing["runtime"], timing["way"]) == (kind, way)]
    chosen = [timing for timing in timings if batch_sizes is None or timing["batch_size"] in batch_sizes]
    return [timing["against_plain"] for timing in chosen]


def _depth(task: Mapping[str, Any], kind: str) -> float:
    """Return the mean depth at which the timed texts leave."""
    ways = [timing for timing in task["timings"] if (timing["runtime"], timing["way"]) == (kind, "engine")]
    return ways[0]["depth"]


def clock_in_words(tasks: Mapping[str, Any]) -> str:
    """Describe the wall-clock time of short texts, one at a time, with and without exits."""
    task = tasks["trec"]
    timings = {(timing["runtime"], timing["way"]): timing for timing in task["short_texts"]["timings"]}
    parts = []
    for kind in KINDS:
        ours, full = (timings[key]["against_plain"] for key in ((kind, "engine"), FULL_DEPTH[kind]))
        without = "" if kind == "torch" else f" (without exits {full:.1f} ×)"
        parts.append(f"{ours:.1f} × with {kind}{without}")
    return (
        f"TREC's questions, one at a time, on two cores, against plain transformers at full depth: {parts[0]},\n"
        f"{', '.join(parts[1:])}."
    )


def scale_in_words(scale: Mapping[str, Any]) -> str:
    """Describe how time and memory grow with the rows of a file."""
    first, last = scale["files"][0], scale["files"][-1]
    return (
        f"From {first['rows']:,} to {last['rows']:,} rows in one file, time grows with the power "
        f"{scale['exponent']:.2f} of the rows\n(1 is linear), to {last['seconds']:.0f} s; peak memory grows from "
        f"{first['mebibytes']:.0f} to {last['mebibytes']:.0f} MiB."
    )


def limits_table(tasks: Mapping[str, Any]) -> str:
    """Write how close the engine comes to a static graph of its mean depth, and what it gains, with ranges."""
    rows = [
        "| task | threads | runtime | batch size | mean depth | share of a static graph's speed "
        "| at each text's own depth | never exits: share of a full static graph's | never exits, × full graph "
        "| × full graph | × plain transformers |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    names = (
        "share of static",
        "share of static at own depths",
        "never exits, share of full static",
        "never exits, against the full graph",
        "against the full graph",
        "against plain transformers",
    )
    for task, by_threads in tasks.items():
        for threads, measured in by_threads.items():
            for row in measured.values():
                cells = [_with_range(row["wall"][name]) if name in row["wall"] else "" for name in names]
                start = f"| {task} | {threads} | {row['kind']} | {row['batch_size']} | {row['depth']:.2f} | "
                rows.append(start + " | ".join(cells) + " |")
    return "\n".join(rows)


@dataclass(frozen=True)
class Bar:
    """What a ratio of benchmarks/limits.py should reach."""

    what: str
    ratio: str  # its name in the results
    least: Mapping[str, float]  # by runtime
    tasks: Sequence[str]
    batch_sizes: Sequence[int] = (1,)


STATIC, NEVER, FULL, PLAIN = (
    "share of static",
    "never exits, against the full graph",
    "against the full graph",
    "against plain transformers",
)
LIMITS_BARS = (
    Bar("share of a static graph's speed", STATIC, {"onnx": 0.92, "onnx-int8": 0.85}, ("trec",)),
    Bar("share of a static graph's speed", STATIC, {"onnx": 0.95, "onnx-int8": 0.95}, ("sst2", "mrpc")),
    Bar(
        "share of a static graph's speed",
        STATIC,
        {"onnx": 0.95, "onnx-int8": 0.95},
        ("trec", "sst2", "mrpc"),
        (8, 32, 128),
    ),
    Bar(
        "never exits, × full graph", NEVER, {"onnx": 0.97, "onnx-int8": 0.97}, ("trec", "sst2", "mrpc"), (1, 8, 32, 128)
    ),
    Bar("× plain transformers, at most 32 tokens", PLAIN, {"onnx": 8.0, "onnx-int8": 12.0}, ("trec", "sst2")),
    Bar("× full graph", FULL, {"onnx-int8": 2.0}, ("trec", "sst2", "mrpc")),
    Bar("× full graph, with exit 0", FULL, {"onnx-int8": 4.0}, ("trec-zero",)),
)


def limits_bars_table(tasks: Mapping[str, Any]) -> str:
    """Write which of the bars are reached, and which are missed.

    Args:
        tasks: Of benchmarks/results/limits.json.

    Returns:
        A table.
    """
    rows = [
        "| what | task | batch size | to reach: float32, int8 | 1 thread: float32 | int8 | 2 threads: float32 | int8 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for bar in LIMITS_BARS:
        to_reach = ", ".join(f"{bar.least[kind]:g}" if kind in bar.least else "–" for kind in ("onnx", "onnx-int8"))
        for task in bar.tasks:
            cells = [
                _reached(bar, kind, tasks.get(task, {}).get(threads, {}))
                for threads in ("1", "2")
                for kind in ("onnx", "onnx-int8")
            ]
            sizes = " / ".join(map(str, bar.batch_sizes))
            rows.append("| " + " | ".join([bar.what, task, sizes, to_reach, *cells]) + " |")
    return "\n".join(rows)


def _reached(bar: Bar, kind: str, measured: Mapping[str, Any]) -> str:
    """Write the medians of a ratio at every batch size of a bar, and which of them miss it."""
    if kind not in bar.least:
        return ""
    cells = []
    for size in bar.batch_sizes:
        ratio = measured.get(f"{kind} {size}", {}).get("wall", {}).get(bar.ratio)
        missed = " missed" if ratio is not None and ratio[0] < bar.least[kind] else ""
        cells.append("–" if ratio is None else f"{ratio[0]:.2f}{missed}")
    return " / ".join(cells)


def one_text_table(found: Mapping[str, Any]) -> str:
    """Write where the time of one short text goes.

    Args:
        found: The content of benchmarks/results/one_text.json.

    Returns:
        A table, and a sentence on Python.
    """
    rows = [
        "| runtime | a text leaves after layer | static graph, µs | heads on the way | deciding | exiting graph, µs |",
        "|---|---|---|---|---|---|",
    ]
    sentences = []
    for kind, precision in {"onnx": "float32", "onnx-int8": "int8"}.items():
        for row in found[precision]["leaving"]:
            heads, deciding = row["with_heads"] - row["static"], row["exiting"] - row["with_heads"]
            cells = (f"{row['static']:.0f}", f"{heads:+.0f}", f"{deciding:+.0f}", f"{row['exiting']:.0f}")
            rows.append(f"| {TITLES[kind]} | {row['layer']} | {' | '.join(cells)} |")
        python = found[precision]["python"]
        takes = [f"{one['engine']:.0f} ({one['static']:.0f}) µs if {layer} run" for layer, one in python.items()]
        sentences.append(f"in {precision} {' and '.join(takes)}")
    asked = ", ".join(map(str, found["asked"]))
    about = (
        f"Exits {asked} are asked; {found['tokens']} tokens. Python takes, beside the graph (beside a static graph),"
    )
    why = "more where more layers have pushed it out of the caches."
    return "\n".join([*rows, "", f"{about} {'; '.join(sentences)}: {why}"])


def start_table(found: Mapping[str, Any]) -> str:
    """Write what a process pays before its first answer.

    Args:
        found: The content of benchmarks/results/start.json.

    Returns:
        A table, and a sentence on importing.
    """
    rows = [
        "| model | what is loaded | weights, MB | seconds to import and load | to reach | memory, MB | to reach "
        "| seconds for a text of 5 MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model, measured in found["models"].items():
        for name, row in measured.items():
            is_export = "most_megabytes" in row
            cells = [
                f"{row['file_megabytes']:.0f}",
                f"{row['load_seconds']:.2f}",
                f"≤ {MOST_SECONDS}" if is_export else "",
                f"{row['megabytes']:.0f}",
                f"≤ {row['most_megabytes']:.0f}" if is_export else "",
                f"{row['long_text_seconds']:.2f}" if "long_text_seconds" in row else "",
            ]
            rows.append(f"| {model} | {name} | " + " | ".join(cells) + " |")
    return "\n".join([*rows, "", f"`import exitpoll` alone takes {1000 * found['import_seconds']:.0f} ms."])


def _with_range(ratio: Sequence[float]) -> str:
    """Write a ratio with its range over the rounds."""
    median, low, high = ratio
    return f"{median:.2f} ({low:.2f} to {high:.2f})"
