"""What `reproduce.py` found, as the tables of docs/results.md.

    python experiments/reproduce_words.py

fills the marked blocks of that page from experiments/results/reproduce/.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from exitpoll.folders import write_text
from exitpoll.study.cells import Cell, tables
from exitpoll.study.contests import ALL, SPEEDUPS
from exitpoll.study.paper import CONTESTS, FULL, KEPT, ROWS

RESULTS = Path(__file__).parent / "results" / "reproduce"
PAGE = Path(__file__).parent.parent / "docs" / "results.md"
LINK = "results/runs/{run}.json"
Gains = Sequence[Mapping[str, Any]]
Findings = Mapping[str, Any]


ASKED = {  # what the paper's readers want to know, by the contest that answers it
    "Does the diversity term help under patience?": "diversity, by patience",
    "And under votes?": "diversity, by votes",
    "Do votes beat patience?": "votes against patience",
    "Does entropy overtake votes?": "entropy against votes",
    "Do soft votes beat votes?": "soft votes against votes",
    "Is hybrid better than the best of votes, patience and entropy?": "hybrid against the best published",
    "Is learned?": "learned against the best published",
}


def answers_block(cells: Sequence[Mapping[str, Any]], findings: Findings) -> str:
    """Answer the questions, each in a line."""
    lines = [f"- *{words}* {_answer(findings, question)}" for words, question in ASKED.items()]
    found = [each["oracle"] for each in findings["tasks"].values() if "oracle" in each]
    saved = [
        sorted(100 * (1 - 1 / oracle[name]["speedup"]) for oracle in found)
        for name in ("keeps_score", "agrees_for_good")
    ]
    ours, oracle = (f"{each[0]:.0f} to {each[-1]:.0f} %" for each in saved)
    lost = sorted(100 * (each["last_exit"] - each["keeps_score"]["score"]) for each in found)
    lines.append(
        "- *How near is the oracle?* With thresholds that keep calibration texts within half a point of the last exit, "
        f"ours saves {ours} of the layers and is {lost[0]:.1f} to {lost[-1]:.1f} points below the last exit on test "
        f"texts; an oracle that knows when nothing will change any more saves {oracle}."
    )
    return "\n".join(lines)


def _answer(findings: Findings, question: str) -> str:
    """Say where the first way is surely above the second, where below, and how far at each speed-up."""
    here = {each["speedup"]: each for each in _gains(findings, question) if each["task"] == ALL}
    above = [f"{speed:g}×" for speed, each in here.items() if each["gain"]["low"] > 0]
    below = [f"{speed:g}×" for speed, each in here.items() if each["gain"]["high"] < 0]
    verdict = [f"yes at {', '.join(above)}"] * bool(above) + [f"on the contrary at {', '.join(below)}"] * bool(below)
    said = " and ".join(verdict) or "not that it could be told from nought"
    shown = ", ".join(f"{_gain(each)} at {speed:g}×" for speed, each in here.items() if speed in (1.5, 2.0, 3.0))
    return f"{said[0].upper()}{said[1:]}: {shown}."


def sizes_block(cells: Sequence[Mapping[str, Any]], findings: Findings) -> str:
    """Write how much was trained, chosen and reported on."""
    lines = ["| | encoder | training texts | epochs | calibration texts | test texts | seeds |", "|---" * 7 + "|"]
    for task in findings["tasks"]:
        runs = {cell["seed"]: cell["run"] for cell in cells if (cell["task"], cell["row"]) == (task, FULL)}
        if runs:
            about = json.loads((PAGE.parent / LINK.format(run=runs[min(runs)])).read_text())
            texts = [f"{about['texts'][split]:,}" for split in ("train", "calibration", "test")]
            columns = [about["encoder"], texts[0], about["settings"]["epochs"], texts[1], texts[2], len(runs)]
            lines.append(f"| {task} | " + " | ".join(str(column) for column in columns) + " |")
    return "\n".join(lines)


def tables_block(cells: Sequence[Mapping[str, Any]], findings: Findings) -> str:
    """Write the paper's tables."""
    tasks = list(findings["tasks"])
    found = [Cell(**each) for each in cells]
    return tables(tasks, [row.name for row in ROWS], found, link=LINK).replace("## ", "### ").strip()


def contests_block(cells: Sequence[Mapping[str, Any]], findings: Findings) -> str:
    """Write every question's answer on average over the tasks."""
    lines = ["| | " + " | ".join(f"{speedup:g}×" for speedup in SPEEDUPS) + " |", "|---" * (len(SPEEDUPS) + 1) + "|"]
    for question in CONTESTS:
        here = {each["speedup"]: each for each in _gains(findings, question) if each["task"] == ALL}
        most = max((each["tasks"] for each in here.values()), default=0)
        texts = [_on_average(here[speedup], most) if speedup in here else "" for speedup in SPEEDUPS]
        lines.append(f"| {question} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def by_task_block(cells: Sequence[Mapping[str, Any]], findings: Findings) -> str:
    """Write the paper's own questions task by task."""
    parts = []
    for speedup in (1.5, 2.0):
        shown = list(CONTESTS)[:6]
        lines = [f"| at {speedup:g}× | " + " | ".join(shown) + " |", "|---" * (len(shown) + 1) + "|"]
        for task in findings["tasks"]:
            texts = [_one(findings, question, task, speedup) for question in shown]
            lines.append(f"| {task} | " + " | ".join(texts) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def kept_block(cells: Sequence[Mapping[str, Any]], findings: Findings) -> str:
    """Write what the best of ours at 2× loses against the full model."""
    lines = ["| at 2× | full model | best of ours above it | speed-up on test texts |", "|---|---|---|---|"]
    for each in _gains(findings, KEPT):
        if each["speedup"] == 2.0 and each["task"] != ALL:
            full = [100 * cell["score"] for cell in cells if (cell["task"], cell["row"]) == (each["task"], FULL)]
            score = f"{sum(full) / len(full):.1f}"
            lines.append(f"| {each['task']} | {score} | {_gain(each)} | {each['speedups'][0]:.2f}× |")
    for each in findings["kept_afresh"]:
        name = f"{each['task']}, {each['seeds']} new seeds"
        lines.append(f"| {name} | | {_gain(each)} | {each['speedups'][0]:.2f}× |")
    return "\n".join(lines)


def oracle_block(cells: Sequence[Mapping[str, Any]], findings: Findings) -> str:
    """Write how near the oracles are."""
    header = ["last exit", "oracle: first right", "oracle: agrees for good"]
    header += ["best of ours, on calibration texts within 0.5 of the last exit"]
    lines = ["| | " + " | ".join(header) + " |", "|---" * 5 + "|"]
    for task, found in findings["tasks"].items():
        if "oracle" in found:
            oracle = found["oracle"]
            texts = [
                f"{100 * oracle[name]['score']:.1f} at {oracle[name]['speedup']:.2f}×"
                for name in ("first_right", "agrees_for_good", "keeps_score")
            ]
            lines.append(f"| {task} | {100 * oracle['last_exit']:.1f} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def variants_block(cells: Sequence[Mapping[str, Any]], findings: Findings) -> str:
    """Write what other readings of the loss, other weights and other heads do."""
    header = ["exit 1", "exit 3", "exit 6", "last exit", "mean of all exits, above ours"]
    header += [f"{name} at 2×, above ours" for name in ("patience", "votes", "entropy")]
    lines = ["| | " + " | ".join(header) + " |", "|---" * (len(header) + 1) + "|"]
    for each in findings["variants"]:
        exits = [f"{100 * each['exits'][number]:.1f}" for number in (0, 2, 5, -1)]
        gains = ["" if gain is None else _gain({"gain": gain}) for gain in each["above_ours"].values()]
        shown = ["–" for _ in gains] if "(ours)" in each["name"] else gains
        lines.append(f"| {each['name']} | " + " | ".join([*exits, *shown]) + " |")
    return "\n".join(lines)


BLOCKS: dict[str, Callable[[Sequence[Mapping[str, Any]], Findings], str]] = {
    "answers": answers_block,
    "sizes": sizes_block,
    "tables": tables_block,
    "contests": contests_block,
    "by-task": by_task_block,
    "kept": kept_block,
    "oracle": oracle_block,
    "variants": variants_block,
}


def _gains(findings: Findings, question: str) -> Gains:
    """Find the answers to a question."""
    return [each for each in findings["contests"] if each["question"] == question]


def _one(findings: Findings, question: str, task: str, speedup: float) -> str:
    """Write the answer to a question on a task at a speed-up."""
    here = [each for each in _gains(findings, question) if (each["task"], each["speedup"]) == (task, speedup)]
    return _gain(here[0]) if here else ""


def _on_average(each: Mapping[str, Any], most: int) -> str:
    """Write a gain over several tasks; where some are never that fast, over how many."""
    return _gain(each) + ("" if each["tasks"] == most else f", {each['tasks']} tasks")


def _gain(each: Mapping[str, Any]) -> str:
    """Write a gain and its interval in points; bold where the interval leaves out nought."""
    value, low, high = (100 * each["gain"][name] for name in ("value", "low", "high"))
    words = f"{value:+.1f} ({low:+.1f} … {high:+.1f})"
    return f"**{words}**" if low > 0 or high < 0 else words


def fill(page: str, blocks: Mapping[str, str]) -> str:
    """Put blocks into their marked places."""
    for name, text in blocks.items():
        before, _, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        assert end, f"the page has no place for {name}"
        page = f"{before}<!-- {name} -->\n{text}\n<!-- /{name} -->{after}"
    return page


def main() -> None:
    """Fill the page."""
    cells, findings = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("cells", "findings"))
    blocks = {name: write(cells, findings) for name, write in BLOCKS.items()}
    write_text(PAGE, fill(PAGE.read_text(encoding="utf-8"), blocks))


if __name__ == "__main__":
    main()
