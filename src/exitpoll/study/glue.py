"""Answers to the test splits whose labels GLUE keeps to itself, in the files that its server takes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from numpy.typing import NDArray

from exitpoll.data.tasks import plain_name
from exitpoll.decide.analysis import static_exit
from exitpoll.files import write_text
from exitpoll.study.paper import RANGES, Row
from exitpoll.study.plan import Plan, group_of
from exitpoll.study.run import Outcome
from exitpoll.study.tables import chosen

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


def write_submissions(plan: Plan, outcomes: Iterable[Outcome], folder: Path) -> None:
    """Answer every unlabelled test split by every row, with the threshold that the table's figure was chosen by.

    Args:
        plan: What was reproduced; the first seed's runs answer.
        outcomes: What its runs left behind; some may be missing.
        folder: Where to write a folder for each row.
    """
    known = {outcome.run.name: outcome for outcome in outcomes}
    for task in plan.tasks:
        for row in plan.rows:
            outcome = known.get(plan.run(task, row, plan.seeds[0]).name)
            if outcome is None or not outcome.has_unlabelled or plain_name(task) not in FILES:
                continue
            answers = _answers(task, row, outcome)
            if answers is not None:
                path = folder / row.file_name / FILES[plain_name(task)]
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, "index\tprediction\n" + "\n".join(_lines(task, outcome, answers)) + "\n")


def _answers(task: str, row: Row, outcome: Outcome) -> NDArray | None:
    """Answer every text of an unlabelled split; None where the table has no figure, as no threshold is in its range."""
    texts = outcome.trace("unlabelled")
    if row.share is not None:
        return static_exit(texts, -1).answer
    policy = chosen(outcome, "calibration", row, RANGES[group_of(task)])
    return None if policy is None else policy.decide(texts).answer


def _lines(task: str, outcome: Outcome, answers: NDArray) -> list[str]:
    """Write answers as GLUE's server wants them."""
    names = outcome.trace("unlabelled").about["label_names"]
    said = [names[answer] if plain_name(task) in BY_NAME else str(answer) for answer in answers]
    return [f"{number}\t{answer}" for number, answer in enumerate(said)]
