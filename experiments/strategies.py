"""Do learned and hybrid strategies pay: chosen on calibration texts, against the best published one of the test texts.

The published strategies get the advantage: of all of them, at all thresholds, the best is picked on the test split
itself. Learned and hybrid are fitted and chosen on the calibration split, as a user would.

    python experiments/strategies.py trec=trec.calibration.safetensors,trec.test.safetensors mrpc=…

Traces come from `exitpoll record`. Writes experiments/results/strategies.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from exitpoll.decide.calibrate import calibrate
from exitpoll.decide.evaluate import evaluate, measure
from exitpoll.decide.policy import Policy
from exitpoll.decide.sweep import best_of, sweep
from exitpoll.decide.trace import Trace
from exitpoll.files import read_json, write_json

RESULTS = Path(__file__).parent / "results" / "strategies.json"
SPEEDUPS = (1.5, 2.0, 3.0)
PUBLISHED = [
    *(Policy(name) for name in ("entropy", "max_prob", "patience", "geometric")),
    *(Policy("confident_patience", None, {"confidence": share}) for share in (0.8, 0.9, 0.95, 0.99)),
    *(Policy("js_patience", None, {"divergence": nats}) for nats in (0.001, 0.01, 0.05, 0.1)),
    *(Policy("votes", None, {"k": k}) for k in (0.0, 0.25, 0.5, 0.75)),
]
OURS = ("learned", "hybrid")


def compare(calibration: Trace, test: Trace) -> dict[str, Any]:
    """Measure one task."""
    metric = test.about["metric"]
    published = sweep(test, PUBLISHED, metric=metric)
    chosen = {name: sweep(calibration, [name], metric=metric) for name in OURS}
    rows = []
    for speedup in SPEEDUPS:
        best = best_of(published, speedup)
        assert best is not None
        theirs = best.decide(test)
        row: dict[str, Any] = {"speedup": speedup, "published": {"name": best.name, **_point(theirs, metric)}}
        for name in OURS:
            policy = best_of(chosen[name], speedup)
            assert policy is not None
            decisions = policy.decide(test)
            _, behind = measure(test, decisions, theirs, metric=metric)
            row[name] = {**_point(decisions, metric), "behind": [behind.value, behind.low, behind.high]}
        rows.append(row)
    return {
        "metric": metric,
        "texts": [len(calibration), len(test)],
        "full_score": Policy().decide(test).score(metric),
        "rows": rows,
        "guarantee": guarantee(calibration, test),
    }


def guarantee(calibration: Trace, test: Trace) -> dict[str, Any]:
    """Guarantee at most 2 % of differing answers, and measure it on the test split."""
    policy = calibrate(calibration, max_disagreement=0.02)
    evaluation, certificate = evaluate(test, policy), policy.certificate
    assert certificate is not None
    return {
        "name": policy.name,
        "met": certificate.met,
        "speedup": certificate.speedup,
        "test_score": evaluation.rows[0].score.value,
        "test_speedup": evaluation.rows[0].speedup,
        "test_disagreement": None if evaluation.guarantee is None else evaluation.guarantee.measured.value,
    }


def _point(decisions: Any, metric: str) -> dict[str, float]:
    """Note score and speed-up."""
    return {"score": round(decisions.score(metric), 5), "speedup": round(decisions.speedup, 3)}


def table(results: dict[str, Any]) -> str:
    """Write the results as the table of docs/how-to/choose-a-strategy.md."""
    lines = [
        "| task (full model) | at least | best published, picked on test | learned | behind | hybrid | behind |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, result in results.items():
        for row in result["rows"]:
            cells = [f"{task} ({100 * result['full_score']:.1f})", f"{row['speedup']:g}×"]
            cells.append(f"{_cell(row['published'])} {row['published']['name']}")
            for name in OURS:
                value, low, high = (100 * figure for figure in row[name]["behind"])
                cells += [_cell(row[name]), f"{value:.1f} ({low:.1f} … {high:.1f})"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(point: dict[str, float]) -> str:
    """Write a score with its speed-up."""
    return f"{100 * point['score']:.1f} at {point['speedup']:.2f}×"


def main() -> None:
    """Measure every task that is named and keep what is known of the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", metavar="NAME=CALIBRATION,TEST")
    results = read_json(RESULTS) or {}
    for task in parser.parse_args().tasks:
        name, paths = task.split("=")
        results[name] = compare(*(Trace.load(path) for path in paths.split(",")))
        write_json(RESULTS, results)
    print(table(results))


if __name__ == "__main__":
    main()
