"""Answers to the test splits whose labels GLUE keeps to itself, in the files that its server takes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from exitpoll.analysis import static_exit
from exitpoll.folders import write_text
from exitpoll.study.cells import chosen
from exitpoll.study.paper import RANGES, Row
from exitpoll.study.planning import Plan, group_of
from exitpoll.study.runs import Outcome
from exitpoll.tasks import plain_name

FILES = {
    "cola": "CoLA.tsv",
    "mnli": "MNLI-m.tsv",
    "mrpc": "MRPC.tsv",
    "qnli": "QNLI.tsv",
    "qqp": "QQP.tsv",
    "rte": "RTE.tsv",
    "sst2": "SST-2.tsv",
}
BY_NAME = ("mnli", "qnli", "rte")  # whose answers are names of classes, not numbers


def write_submissions(plan: Plan, outcomes: Iterable[Outcome], folder: Path) -> list[Path]:
    """Answer every unlabelled test split by every row, with the threshold that the table's figure was chosen by.

    Args:
        plan: What was reproduced; the first seed's runs answer.
        outcomes: What its runs left behind; some may be missing.
        folder: Where to write a folder for each row.

    Returns:
        The files written.
    """
    known = {outcome.run.name: outcome for outcome in outcomes}
    written = []
    for task in plan.tasks:
        for row in plan.rows:
            outcome = known.get(plan.run(task, row, plan.seeds[0]).name)
            if outcome is not None and outcome.has_unlabelled and plain_name(task) in FILES:
                path = folder / row.name.replace(", ", "-").replace(" ", "-") / FILES[plain_name(task)]
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, "index\tprediction\n" + "\n".join(_lines(task, row, outcome)) + "\n")
                written.append(path)
    return written


def _lines(task: str, row: Row, outcome: Outcome) -> list[str]:
    """Answer every text of an unlabelled split."""
    texts, last = outcome.trace("unlabelled"), len(outcome.trace("unlabelled").layers) - 1
    policy = chosen(outcome.trace("calibration"), row, RANGES[group_of(task)]) if row.share is None else None
    answers = (static_exit(texts, last) if policy is None else policy.decide(texts)).answer
    names = texts.about["label_names"]
    said = [names[answer] if plain_name(task) in BY_NAME else str(answer) for answer in answers]
    return [f"{number}\t{answer}" for number, answer in enumerate(said)]
