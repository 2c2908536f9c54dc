"""What `reproduce.py` found, as docs/results.md.

    python experiments/reproduce_page.py

fills the marked blocks of that page and draws its pictures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean

from exitpoll.decide.evaluate import Estimate
from exitpoll.files import write_text
from exitpoll.study.comparisons import SPEEDUPS, Gain
from exitpoll.study.figures import draw_all
from exitpoll.study.paper import CONTESTS, FULL, KEPT, ROWS
from exitpoll.study.tables import tables
from reproduce_claims import claims
from reproduce_results import Results, answer, in_points, in_words, read_results, span

DOCS = Path(__file__).parent.parent / "docs"
PAGE, PICTURES = DOCS / "results.md", DOCS / "figures" / "paper"
RUNS = Path(__file__).parent / "results" / "runs"
LINK = "https://github.com/exitpoll/exitpoll/blob/main/experiments/results/runs/{run}.json"

OVERTAKES = "Does entropy overtake votes?"
ASKED = {  # what the paper's readers want to know, by the contest that answers it
    "Does the diversity term help under patience?": "diversity, by patience",
    "And under votes?": "diversity, by votes",
    "Do votes beat patience?": "votes against patience",
    OVERTAKES: "entropy against votes",
    "Do soft votes beat votes?": "soft votes against votes",
    "Is hybrid better than the best of the three?": "hybrid against the best of votes, patience and entropy",
    "Is learned?": "learned against the best of votes, patience and entropy",
}


def _table(header: list[str], rows: list[list[str]]) -> str:
    """Write a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def answers_block(results: Results) -> str:
    """Answer the questions, each in a line."""
    lines = [f"- *{words}* {answer(results, question)}" for words, question in ASKED.items()]
    lines.insert(list(ASKED).index(OVERTAKES) + 1, f"- *And patience?* {_added_up(results)}")
    return "\n".join([*lines, f"- *How near is the oracle?* {_oracle_in_words(results)}"])


def _added_up(results: Results) -> str:
    """Say how far entropy is above patience: what it is above votes, and votes are above patience."""
    found = []
    for speedup in SPEEDUPS:
        both = [results.gain(ASKED[asked], speedup) for asked in (OVERTAKES, "Do votes beat patience?")]
        values = [(each.gain.value, each.gain.low, each.gain.high) for each in both if each is not None]
        gain = Estimate(*(sum(ends) for ends in zip(*values, strict=True)))
        found.append(f"{in_points(gain)} at {speedup:g}×")
    return f"The two lines above add up, with intervals at their widest: {', '.join(found)}."


def _oracle_in_words(results: Results) -> str:
    """Say how near the oracles are."""
    found = {task: each["oracle"] for task, each in results.tasks.items()}
    perfect, ours, label = (
        span((each[name]["speedup"] for each in found.values()), "×", 1)
        for name in ("agrees_for_good", "keeps_score", "first_right")
    )
    lost = {task: 100 * (each["last_exit"] - each["keeps_score"]["score"]) for task, each in found.items()}
    most = ", ".join(f"{task} {points:.1f}" for task, points in lost.items() if points > 0.5)
    better = span((100 * (each["first_right"]["score"] - each["last_exit"]) for each in found.values()), "", 1)
    return (
        f"Not near. With the last exit's very answers a perfect judge would run {perfect} faster. Ours, with "
        f"thresholds that keep calibration texts within half a point of the last exit, came to {ours}; on test texts "
        f"that lost more than the half point on {most}. The paper's oracle, which knows the label, would run {label} "
        f"faster and be {better} points better."
    )


def joint_block(results: Results) -> str:
    """Write how far the last exit of ours is above the full model, which was trained without other heads."""
    above = {
        task: 100 * each["oracle"]["last_exit"] - results.scores(task, FULL)[0] for task, each in results.tasks.items()
    }
    figures = ", ".join(f"{task} {above[task]:+.1f}" for task in sorted(above, key=lambda task: above[task]))
    return (
        "- *Heads that are trained with the encoder move its last exit, up or down*. With ours and the first seed, "
        f"points above the full model: {figures}. That has no clear link with the number of training texts. Where it "
        "is far below, methods with heads on the frozen full model, DeeBERT and FastBERT, are best."
    )


def points_block(results: Results) -> str:
    """Hold the paper's claims against the findings, one by one."""
    return _table(["the paper", "held?", "here"], [list(each) for each in claims(results)])


def sizes_block(results: Results) -> str:
    """Write how much was trained, chosen and reported on."""
    rows = []
    for task in results.tasks:
        runs = {each.seed: each.run for each in results.cells if (each.task, each.row) == (task, FULL)}
        about = json.loads((RUNS / f"{runs[min(runs)]}.json").read_text())
        train, *held_out = (f"{about['texts'][split]:,}" for split in ("train", "calibration", "test"))
        rows.append([task, about["encoder"], train, str(about["settings"]["epochs"]), *held_out, str(len(runs))])
    return _table(["", "encoder", "training texts", "epochs", "calibration texts", "test texts", "seeds"], rows)


def tables_block(results: Results) -> str:
    """Write the paper's tables."""
    written = tables(list(results.tasks), [row.name for row in ROWS], results.cells, link=LINK)
    return written.replace("## ", "### ").strip()


def contests_block(results: Results) -> str:
    """Write every question's answer on average over the tasks."""
    rows = [[question, *(_on_average(results, question, speedup) for speedup in SPEEDUPS)] for question in CONTESTS]
    return _table(["", *(f"{speedup:g}×" for speedup in SPEEDUPS)], rows)


def _on_average(results: Results, question: str, speedup: float) -> str:
    """Write a gain over several tasks; where some are never that fast, over how many."""
    each = results.gain(question, speedup)
    if each is None:
        return ""
    return in_words(each) + ("" if each.tasks == len(results.tasks) else f", {each.tasks} tasks")


def by_task_block(results: Results) -> str:
    """Write the paper's own questions task by task."""
    shown = list(CONTESTS)[:6]
    parts = []
    for speedup in (1.5, 2.0):
        gains = {task: [results.gain(question, speedup, task) for question in shown] for task in results.tasks}
        rows = [[task, *("" if gain is None else in_words(gain) for gain in here)] for task, here in gains.items()]
        parts.append(_table([f"at {speedup:g}×", *shown], rows))
    return "\n\n".join(parts)


def kept_block(results: Results) -> str:
    """Write what the best of ours loses against the full model, and how fast it was on test texts."""
    rows = []
    for task in results.tasks:
        kept = [_kept(results.gain(KEPT, speedup, task)) for speedup in (2.0, 2.5)]
        rows.append([task, f"{mean(results.scores(task, FULL)):.1f}", *kept])
    rows += [[f"{each.task}, {each.seeds} new seeds", "", _kept(each), ""] for each in results.afresh]
    return _table(["", "full model", "best of ours above it, for 2×", "for 2.5×"], rows)


def _kept(each: Gain | None) -> str:
    """Write a gain with the speed-up that the first way came to on test texts."""
    return "" if each is None else f"{in_words(each)} at {each.speedups[0]:.2f}×"


def oracle_block(results: Results) -> str:
    """Write how near the oracles are."""
    header = ["", "last exit", "oracle: first right", "oracle: agrees for good"]
    header += ["best of ours, on calibration texts within 0.5 of the last exit"]
    rows = []
    for task, found in results.tasks.items():
        parts = [found["oracle"][name] for name in ("first_right", "agrees_for_good", "keeps_score")]
        texts = [f"{100 * part['score']:.1f} at {part['speedup']:.2f}×" for part in parts]
        rows.append([task, f"{100 * found['oracle']['last_exit']:.1f}", *texts])
    return _table(header, rows)


def variants_block(results: Results) -> str:
    """Write what other readings of the loss, other weights and other heads do."""
    header = ["", "exit 1", "exit 3", "exit 6", "last exit", "mean of all exits, above ours"]
    header += [f"{name} at 2×, above ours" for name in ("patience", "votes", "entropy")]
    rows = []
    for each in results.variants:
        exits = [f"{100 * each['exits'][number]:.1f}" for number in (0, 2, 5, -1)]
        gains = ["" if gain is None else in_points(Estimate(**gain)) for gain in each["above_ours"].values()]
        rows.append([each["name"], *exits, *(["–"] * len(gains) if "(ours)" in each["name"] else gains)])
    return _table(header, rows)


BLOCKS: dict[str, Callable[[Results], str]] = {
    "answers": answers_block,
    "joint": joint_block,
    "points": points_block,
    "sizes": sizes_block,
    "tables": tables_block,
    "contests": contests_block,
    "by-task": by_task_block,
    "kept": kept_block,
    "oracle": oracle_block,
    "variants": variants_block,
}


def fill(page: str, blocks: Mapping[str, str]) -> str:
    """Put blocks into their marked places."""
    for name, text in blocks.items():
        before, _, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        assert end, f"the page has no place for {name}"
        page = f"{before}<!-- {name} -->\n{text}\n<!-- /{name} -->{after}"
    return page


def main() -> None:
    """Fill the page, and draw its pictures."""
    results = read_results()
    blocks = {name: write(results) for name, write in BLOCKS.items()}
    write_text(PAGE, fill(PAGE.read_text(encoding="utf-8"), blocks))
    draw_all(vars(results), PICTURES)


if __name__ == "__main__":
    main()
