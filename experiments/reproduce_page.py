"""What `reproduce.py` found, as docs/results.md.

    python experiments/reproduce_page.py

fills the marked blocks of that page and draws its pictures from experiments/results/reproduce/, which has a file for
each task.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from exitpoll.evaluation import Estimate
from exitpoll.folders import write_text
from exitpoll.study.cells import Cell, tables
from exitpoll.study.contests import ALL, SPEEDUPS, Gain, averages
from exitpoll.study.figures import draw_all
from exitpoll.study.paper import CONTESTS, FULL, KEPT, PAPER, ROWS

RESULTS = Path(__file__).parent / "results" / "reproduce"
DOCS = Path(__file__).parent.parent / "docs"
PAGE, PICTURES = DOCS / "results.md", DOCS / "figures" / "paper"
LINK = "results/runs/{run}.json"
Gains = Sequence[Mapping[str, Any]]
Findings = Mapping[str, Any]
LAMBDA = 0.2  # of all runs but the variants

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
    return f"{said[0].upper()}{said[1:]}: {_said_at(findings, question, (1.5, 2.0, 3.0))}."


def _said_at(findings: Findings, question: str, speedups: Sequence[float]) -> str:
    """Say how far the first way is above the second, on average over the tasks, at some speed-ups."""
    here = [each for each in _gains(findings, question) if each["task"] == ALL and each["speedup"] in speedups]
    return ", ".join(f"{_gain(each)} at {each['speedup']:g}×" for each in here)


def points_block(cells: Sequence[Mapping[str, Any]], findings: Findings) -> str:
    """Hold the paper's claims against the findings, one by one."""
    lines = ["| the paper | here |", "|---|---|"]
    return "\n".join([*lines, *(f"| {claim} | {found} |" for claim, found in _points(cells, findings))])


def _points(cells: Sequence[Mapping[str, Any]], findings: Findings) -> Iterator[tuple[str, str]]:
    """Give every claim with what was found of it."""
    tasks = [each for each in findings["tasks"].values() if "oracle" in each]
    yield "ours by votes is the best of all methods on every task (Tables 2, 3)", _wins(cells)
    same = "ours against PABEE, both by patience"
    yield "our loss beats PABEE's by the same strategy (curves)", _answer(findings, same)
    yield "votes improve on patience in most cases (curves)", _answer(findings, "votes against patience")
    yield (
        "votes are above entropy below 1.4×, entropy is surprisingly good above 1.6× (effect of k)",
        f"Entropy is above votes: {_said_at(findings, 'entropy against votes', SPEEDUPS)}.",
    )
    yield "so a hybrid is suggested", _answer(findings, "hybrid against the best published")
    gains = {each["name"]: each["above_ours"] for each in findings["variants"]}
    others = ", ".join(f"{name} {_gain({'gain': gains[name]['votes']})}" for name in ("λ = 0", "λ = 0.1", "λ = 0.3"))
    yield "λ = 0.2 is best, λ = 0 worst (effect of λ, SST-2)", f"On TREC, by votes at 2×, above λ = 0.2: {others}."
    ends = [[100 * each["alpha"]["alpha"][-1][layer] / LAMBDA for layer in (0, -1)] for each in tasks]
    yield (
        "targets of deeper layers are softer: α comes nearer to λ (MRPC)",
        f"At the end α is {_span(first for first, _ in ends)} of λ at the second layer, and "
        f"{_span(last for _, last in ends)} at the last.",
    )
    shares = [[100 * row[at] for at, row in enumerate(each["closest"][1:])] for each in tasks]  # the layer before
    yield (
        "the nearest earlier layer is mostly the one before (MRPC)",
        f"For {_span(sum(each[1:6]) / 5 for each in shares)} of the texts at layers 3 to 7, and for "
        f"{_span(sum(each[6:]) / len(each[6:]) for each in shares)} at deeper ones.",
    )
    early = [_early(each["leaving"]) for each in tasks]
    yield (
        "at 1.3×, by entropy more texts leave early, by patience and votes in the middle (appendix)",
        f"After a third of the layers, {_span(each['entropy'] for each in early)} of all texts have left with the "
        f"right answer by entropy, {_span(each['patience'] for each in early)} by patience and "
        f"{_span(each['votes'] for each in early)} by votes.",
    )
    alike = [[list(steps.values())[at]["alike"] for at in (0, -1)] for steps in findings["states"].values()]
    yield (
        "states of adjacent layers come closer with training (t-SNE, SST-2)",
        "On TREC, the cosine of what neighbouring heads read goes "
        + " and ".join(
            f"from {first:.2f} to {last:.2f} {name}"
            for name, (first, last) in zip(findings["states"], alike, strict=True)
        )
        + ".",
    )
    alone = _gain({"gain": gains["weights alike"]["votes"]})
    yield (
        "on BERT, all heads weighed alike do poorly (appendix)",
        f"On TREC, by votes at 2×, {alone} above weights by depth.",
    )
    last = _gain({"gain": gains["last head not diverse"]["votes"]})
    yield "leaving out the last head's diversity is sometimes better (appendix)", f"On TREC, by votes at 2×: {last}."


def _wins(cells: Sequence[Mapping[str, Any]]) -> str:
    """Say on which tasks ours by votes is the best of the paper's methods, chosen as the paper chose."""
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    for each in cells:
        if each["row"] in PAPER and each["row"] != FULL and each["seed"] == 0 and each["score_on_dev"] is not None:
            scores[each["task"]][each["row"]] = each["score_on_dev"]
    best = {task: [row for row in rows if rows[row] == max(rows.values())] for task, rows in scores.items()}
    won = [task for task, rows in best.items() if "ours, votes" in rows]
    others = "; ".join(f"on {task} {' and '.join(rows)}" for task, rows in best.items() if task not in won)
    ours = f"On {len(won)} of {len(best)} tasks" + (f" ({', '.join(won)})" if won else "")
    return f"{ours}, with the first seed and chosen as in the paper. Best elsewhere: {others}."


def _early(leaving: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Say how many of all texts, in %, have left with the right answer after a third of the layers."""
    return {name: 100 * sum(each["shares"][: len(each["shares"]) // 3]) for name, each in leaving.items()}


def _span(values: Iterable[float]) -> str:
    """Write the least and the largest of some percentages."""
    known = sorted(round(value) for value in values)
    return f"{known[0]} to {known[-1]} %" if known[0] < known[-1] else f"{known[0]} %"


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
    """Write what the best of ours loses against the full model, and how fast it was on test texts."""
    lines = ["| | full model | best of ours above it, for 2× | for 2.5× |", "|---" * 4 + "|"]
    for task in findings["tasks"]:
        full = [100 * cell["score"] for cell in cells if (cell["task"], cell["row"]) == (task, FULL)]
        gains = [each for each in _gains(findings, KEPT) if each["task"] == task and each["speedup"] in (2.0, 2.5)]
        lines.append(f"| {task} | {mean(full):.1f} | " + " | ".join(_kept(each) for each in gains) + " |")
    for each in findings["kept_afresh"]:
        lines.append(f"| {each['task']}, {each['seeds']} new seeds | | {_kept(each)} | |")
    return "\n".join(lines)


def _kept(each: Mapping[str, Any]) -> str:
    """Write a gain with the speed-up that the first way came to on test texts."""
    return f"{_gain(each)} at {each['speedups'][0]:.2f}×"


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
    "points": points_block,
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


def read_results() -> tuple[list[Mapping[str, Any]], Findings]:
    """Bring together what was found task by task: the figures of the tables, and findings."""
    parts = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    [varied] = [part for part in parts if part["varied"] is not None]
    found = [gain for part in parts for gain in part["contests"]]
    gains = averages(Gain(**{**each, "gain": Estimate(**each["gain"])}) for each in found)
    tasks = {task: each for part in parts for task, each in part["tasks"].items()}
    contests = [*found, *map(asdict, gains)]
    return [cell for part in parts for cell in part["cells"]], varied | {"contests": contests, "tasks": tasks}


def main() -> None:
    """Fill the page, and draw its pictures."""
    cells, findings = read_results()
    blocks = {name: write(cells, findings) for name, write in BLOCKS.items()}
    write_text(PAGE, fill(PAGE.read_text(encoding="utf-8"), blocks))
    draw_all(findings, PICTURES)


if __name__ == "__main__":
    main()
