"""The table of benchmarks/results/soak.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOT_YET = "Not measured yet: `make soak` writes this table."
WAYS = {"at most": "≤", "at least": "≥"}


def reliability_table(results: Mapping[str, Any] | None) -> str:
    """Write what came of every reliability test, with its figures beside what they were to reach.

    Args:
        results: The content of the file; None if there is none.

    Returns:
        A table, and a sentence on limits that are looser than the bars.
    """
    if results is None:
        return NOT_YET
    rows = ["| test | checks that hold | figures, with what is to be reached | |", "|---|---|---|---|"]
    for number, test in results["tests"].items():
        held = f"{sum(test['checks'].values())} of {len(test['checks'])}" if test["checks"] else "–"
        figures = "; ".join(_in_words(name, bar) for name, bar in test.get("bars", {}).items()) or "–"
        rows.append(f"| {number}: {test['about']} | {held} | {figures} | {test['verdict']} |")
    looser = (
        f"On {results['cores']} cores {results['bars_reached']} of {results['bars']} figures reach their bar. Those "
        "with another limit in brackets are\nheld to that one: clients, front and model processes share these cores."
    )
    return "\n".join([*rows, "", looser])


def _in_words(name: str, bar: Mapping[str, Any]) -> str:
    """Describe a figure."""
    way = next(way for way in WAYS if way in bar)
    looser = f" [{bar['held_to']:g}]" if "held_to" in bar else ""
    return f"{name}: {bar['value']:g} ({WAYS[way]} {bar[way]:g}{looser})"
