"""What engine.py measured, as the documents show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KINDS = ("torch", "onnx", "onnx-int8")


def kept_table(tasks: Mapping[str, Any]) -> str:
    """Write what the clock keeps of the speed-up in layers."""
    rows = [
        "| task | runtime | speed-up in layers | way | 1 at a time | 8 | 32 | 128 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, task in tasks.items():
        for kind in KINDS:
            for way in ("engine", "engine, no refill", "whole batch waits"):
                found = [each for each in task["timings"] if (each["runtime"], each["way"]) == (kind, way)]
                cells = " | ".join(f"{each['of_layers']:.2f}" for each in found)
                rows.append(f"| {name} | {kind} | {task['layers'] / found[0]['depth']:.2f} | {way} | {cells} |")
    return "\n".join(rows)


def limit_table(tasks: Mapping[str, Any]) -> str:
    """Write which share of the engine's time its layers alone take: the rest is what leaving early costs."""
    rows = ["| task | tokens | runtime | 1 at a time | 8 | 32 | 128 |", "|---|---|---|---|---|---|---|"]
    for name, task in tasks.items():
        for kind in KINDS:
            parts = [each["milliseconds"] for each in task["breakdowns"] if each["runtime"] == kind]
            cells = " | ".join(f"{each['layers'] / sum(each.values()):.2f}" for each in parts)
            rows.append(f"| {name} | {task['mean_tokens']:.0f} | {kind} | {cells} |")
    return "\n".join(rows)


def plain_table(tasks: Mapping[str, Any]) -> str:
    """Write how many times as fast as plain transformers every way is, at the same batch size."""
    rows = ["| task | way | runtime | 1 at a time | 8 | 32 | 128 |", "|---|---|---|---|---|---|---|"]
    for name, task in tasks.items():
        for kind, way in dict.fromkeys((each["runtime"], each["way"]) for each in task["timings"]):
            if way not in ("plain transformers", "engine, no refill"):
                found = [each for each in task["timings"] if (each["runtime"], each["way"]) == (kind, way)]
                cells = " | ".join(f"{each['against_plain']:.2f}" for each in found)
                rows.append(f"| {name} | {way} | {kind} | {cells} |")
    return "\n".join(rows)


def short_table(tasks: Mapping[str, Any]) -> str:
    """Write how fast short texts are, one at a time, and what leaving early and int8 cost."""
    rows = [
        "| task | runtime | all layers, × plain | with exits, × plain | score, all layers | with exits | static |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, task in tasks.items():
        for kind in KINDS if task["short_texts"] else ():
            ways = {each["way"]: each for each in task["short_texts"]["timings"] if each["runtime"] == kind}
            full, exits = (f"{ways[way]['against_plain']:.2f}" for way in ("engine, all layers", "engine"))
            score = task["scores"][kind]
            scores = " | ".join(f"{100 * score[way]:.1f}" for way in ("all_layers", "with_exits", "static"))
            rows.append(f"| {name} | {kind} | {full} | {exits} | {scores} |")
    return "\n".join(rows)


def clock_in_words(tasks: Mapping[str, Any]) -> str:
    """Say what short texts come to, one at a time, for the first screen."""
    task = tasks["trec"]
    found = {each["runtime"]: each for each in task["short_texts"]["timings"] if each["way"] == "engine"}
    scores = task["scores"]
    parts = [
        f"{found[kind]['against_plain']:.1f} × with {kind} ({100 * scores[kind]['with_exits']:.1f} %)" for kind in KINDS
    ]
    return (
        f"TREC's questions, one at a time, on two cores, against plain transformers with all layers\n"
        f"({100 * scores['torch']['all_layers']:.1f} %): {', '.join(parts)}."
    )


def scale_in_words(scale: Mapping[str, Any]) -> str:
    """Say how seconds and memory grow with the rows of a file."""
    first, last = scale["files"][0], scale["files"][-1]
    return (
        f"From {first['rows']:,} to {last['rows']:,} rows in one file, seconds grow with the power "
        f"{scale['exponent']:.2f} of the rows\n(1 is linear), to {last['seconds']:.0f} s; the highest memory goes from "
        f"{first['mebibytes']:.0f} to {last['mebibytes']:.0f} MiB."
    )
