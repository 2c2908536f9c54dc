"""Write docs/results.md and its figures from the results of `reproduce.py`.

python experiments/reproduce_page.py

The script fills the marked blocks of the page; the text around them is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean

from exitpoll.decide.bootstrap import Estimate
from exitpoll.files import write_text
from exitpoll.study.comparisons import SPEEDUPS, Gain
from exitpoll.study.figures import draw_all
from exitpoll.study.findings import Findings
from exitpoll.study.paper import AGAINST_FULL, CONTRASTS, FULL, ROWS
from exitpoll.study.tables import format_tables
from reproduce_claims import claims
from reproduce_results import Results, answer, format_estimate, format_gain, format_range, read_results

DOCS = Path(__file__).parent.parent / "docs"
PAGE, FIGURES = DOCS / "results.md", DOCS / "figures" / "paper"
RUNS = Path(__file__).parent / "results" / "runs"
LINK = "https://github.com/exitpoll/exitpoll/blob/main/experiments/results/runs/{run}.json"

PATIENCE, ENTROPY = "votes against patience", "entropy against votes"
QUESTIONS = {  # that a reader of the paper may have, and the contrasts that answer them
    "Does the diversity term help under patience?": "diversity, by patience",
    "Does it help under votes?": "diversity, by votes",
    "Are votes better than patience?": PATIENCE,
    "Is entropy better than votes?": ENTROPY,
    "Are soft votes better than votes?": "soft votes against votes",
    "Is hybrid better than the best of votes, patience and entropy?": (
        "hybrid against the best of votes, patience and entropy"
    ),
    "Is learned better than the best of the three?": "learned against the best of votes, patience and entropy",
}


def _table(header: list[str], rows: list[list[str]]) -> str:
    """Format a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def answers_block(results: Results) -> str:
    """Answer the questions, in a line each."""
    lines = {contrast: f"- *{question}* {answer(results, contrast)}" for question, contrast in QUESTIONS.items()}
    lines[ENTROPY] += f"\n- *Is entropy better than patience?* {_entropy_against_patience(results)}"
    return "\n".join([*lines.values(), f"- *How close are we to the oracle?* {_oracle_summary(results)}"])


def _entropy_against_patience(results: Results) -> str:
    """Add the gains of entropy over votes and of votes over patience."""
    sums = []
    for speedup in SPEEDUPS:
        gains = [gain.gain for contrast in (ENTROPY, PATIENCE) for gain in results.gains_at(contrast, [speedup])]
        value, low, high = (sum(ends) for ends in zip(*((g.value, g.low, g.high) for g in gains), strict=True))
        sums.append(f"{format_estimate(Estimate(value, low, high))} at {speedup:g}×")
    return f"The two lines above added, with intervals at their widest: {', '.join(sums)}."


def _oracle_summary(results: Results) -> str:
    """Describe how close the best of ours is to the oracles."""
    oracles = {task: findings["oracle"] for task, findings in results.tasks.items()}
    consistent = format_range((oracle["agrees_for_good"]["speedup"] for oracle in oracles.values()), "×", 1)
    ours = format_range((oracle["keeps_score"]["speedup"] for oracle in oracles.values()), "×", 1)
    label = format_range((oracle["first_right"]["speedup"] for oracle in oracles.values()), "×", 1)
    lost = {task: 100 * (oracle["last_exit"] - oracle["keeps_score"]["score"]) for task, oracle in oracles.items()}
    most = ", ".join(f"{task} {points:.1f}" for task, points in lost.items() if points > 0.5)
    better = format_range((100 * (o["first_right"]["score"] - o["last_exit"]) for o in oracles.values()), "", 1)
    return (
        f"Not close. Leaving as soon as the answer no longer changes would be {consistent} faster, with exactly the "
        f"last exit's answers. Ours, with thresholds that keep the score on calibration texts within half a point of "
        f"the last exit's, reached {ours}; on test texts the loss was above half a point on {most}. The paper's "
        f"oracle, which knows the label, would be {label} faster and {better} points better."
    )


def joint_block(results: Results) -> str:
    """Format how far the last exit of ours is above the full model, which was trained without other heads."""
    above = {
        task: 100 * findings["oracle"]["last_exit"] - results.scores(task, FULL)[0]
        for task, findings in results.tasks.items()
    }
    figures = ", ".join(f"{task} {above[task]:+.1f}" for task in sorted(above, key=lambda task: above[task]))
    return (
        "- *Training heads jointly with the encoder changes the score of the last exit, in either direction*. With "
        f"ours and the first seed, points above the full model: {figures}. There is no clear relation to the number "
        "of training texts. Where the last exit is far below, methods with heads on the frozen full model, DeeBERT "
        "and FastBERT, are best."
    )


def points_block(results: Results) -> str:
    """Compare the paper's claims with the results, one by one."""
    return _table(["the paper", "confirmed?", "here"], [list(claim) for claim in claims(results)])


def sizes_block(results: Results) -> str:
    """Format the numbers of texts, epochs and seeds."""
    rows = []
    for task in results.tasks:
        runs = {cell.seed: cell.run for cell in results.cells if (cell.task, cell.row) == (task, FULL)}
        summary = json.loads((RUNS / f"{runs[min(runs)]}.json").read_text(encoding="utf-8"))
        train, *held_out = (f"{summary['texts'][split]:,}" for split in ("train", "calibration", "test"))
        rows.append([task, summary["encoder"], train, str(summary["settings"]["epochs"]), *held_out, str(len(runs))])
    return _table(["", "encoder", "training texts", "epochs", "calibration texts", "test texts", "seeds"], rows)


def tables_block(results: Results) -> str:
    """Format the paper's tables."""
    tables = format_tables(results.cells, list(results.tasks), [row.name for row in ROWS], link=LINK)
    return tables.replace("## ", "### ").strip()


def comparisons_block(results: Results) -> str:
    """Format the gain of every contrast on average over the tasks."""
    rows = [[contrast, *(_average(results, contrast, speedup) for speedup in SPEEDUPS)] for contrast in CONTRASTS]
    return _table(["", *(f"{speedup:g}×" for speedup in SPEEDUPS)], rows)


def _average(results: Results, contrast: str, speedup: float) -> str:
    """Format an average gain, with the number of tasks where some are never that fast."""
    gain = results.gain(contrast, speedup)
    if gain is None:
        return ""
    return format_gain(gain) + ("" if gain.tasks == len(results.tasks) else f", {gain.tasks} tasks")


def by_task_block(results: Results) -> str:
    """Format the gains of the paper's own contrasts task by task."""
    contrasts = list(CONTRASTS)[:6]
    tables = []
    for speedup in (1.5, 2.0):
        gains = {task: [results.gain(contrast, speedup, task) for contrast in contrasts] for task in results.tasks}
        rows = [[task, *("" if gain is None else format_gain(gain) for gain in row)] for task, row in gains.items()]
        tables.append(_table([f"at {speedup:g}×", *contrasts], rows))
    return "\n\n".join(tables)


def against_full_block(results: Results) -> str:
    """Format what the best of ours loses against the full model, and how fast it was on test texts."""
    rows = []
    for task in results.tasks:
        gains = [_with_speedup(results.gain(AGAINST_FULL, speedup, task)) for speedup in (2.0, 2.5)]
        rows.append([task, f"{mean(results.scores(task, FULL)):.1f}", *gains])
    for gain in results.gains_with_new_seeds:
        rows.append([f"{gain.task}, {gain.seeds} new seeds", "", _with_speedup(gain), ""])
    return _table(["", "full model", "best of ours above it, for 2×", "for 2.5×"], rows)


def _with_speedup(gain: Gain | None) -> str:
    """Format a gain with the speed-up that the first way reached on test texts."""
    return "" if gain is None else f"{format_gain(gain)} at {gain.speedups[0]:.2f}×"


def oracle_block(results: Results) -> str:
    """Format scores and speed-ups of the oracles and of ours."""
    header = ["", "last exit", "oracle: first correct exit", "oracle: answer no longer changes"]
    header += ["best of ours, within 0.5 of the last exit on calibration texts"]
    rows = []
    for task, findings in results.tasks.items():
        oracle = findings["oracle"]
        points = (oracle["first_right"], oracle["agrees_for_good"], oracle["keeps_score"])
        texts = [f"{100 * point['score']:.1f} at {point['speedup']:.2f}×" for point in points]
        rows.append([task, f"{100 * oracle['last_exit']:.1f}", *texts])
    return _table(header, rows)


def variants_block(results: Results) -> str:
    """Format the effect of other readings of the loss, other weights and other heads."""
    header = ["", "exit 1", "exit 3", "exit 6", "last exit", "mean of all exits, above ours"]
    header += [f"{strategy} at 2×, above ours" for strategy in ("patience", "votes", "entropy")]
    rows = []
    for number, variant in enumerate(results.variants):
        exits = [f"{100 * variant['exits'][exit_number]:.1f}" for exit_number in (0, 2, 5, -1)]
        gains = ["" if gain is None else format_estimate(Estimate(**gain)) for gain in variant["above_ours"].values()]
        rows.append([variant["name"], *exits, *(gains if number else ["–"] * len(gains))])  # the first is ours
    return _table(header, rows)


BLOCKS: dict[str, Callable[[Results], str]] = {
    "answers": answers_block,
    "joint": joint_block,
    "points": points_block,
    "sizes": sizes_block,
    "tables": tables_block,
    "comparisons": comparisons_block,
    "by-task": by_task_block,
    "against-full": against_full_block,
    "oracle": oracle_block,
    "variants": variants_block,
}


def fill(page: str, blocks: Mapping[str, str]) -> str:
    """Replace the marked blocks of a page."""
    for name, text in blocks.items():
        before, _, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        assert end, f"the page has no block '{name}'"
        page = f"{before}<!-- {name} -->\n{text}\n<!-- /{name} -->{after}"
    return page


def main() -> None:
    """Fill the page and draw its figures."""
    results = read_results()
    blocks = {name: write(results) for name, write in BLOCKS.items()}
    write_text(PAGE, fill(PAGE.read_text(encoding="utf-8"), blocks))
    findings: Findings = {
        "tasks": results.tasks,
        "varied": results.varied,
        "variants": results.variants,
        "states": results.states,
    }
    draw_all(findings, FIGURES)


if __name__ == "__main__":
    main()
