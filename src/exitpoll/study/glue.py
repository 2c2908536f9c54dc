"""Submissions to GLUE: answers to its unlabelled test splits, in the files that its server expects."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from numpy.typing import NDArray

from exitpoll.data.tasks import plain_name
from exitpoll.decide.analysis import static_exit
from exitpoll.files import write_text
from exitpoll.study.outcomes import Outcomes
from exitpoll.study.paper import RANGES, TableRow
from exitpoll.study.plan import Plan, group_of
from exitpoll.study.run import Outcome
from exitpoll.study.tables import choose_policy

FILES = {
    "cola": "CoLA.tsv",
    "mnli": "MNLI-m.tsv",
    "mrpc": "MRPC.tsv",
    "qnli": "QNLI.tsv",
    "qqp": "QQP.tsv",
    "rte": "RTE.tsv",
    "sst2": "SST-2.tsv",
}
ANSWERED_BY_NAME = ("mnli", "qnli", "rte")  # with names of classes, not numbers


def write_submissions(plan: Plan, outcomes: Iterable[Outcome], folder: Path) -> None:
    """Answer every unlabelled test split by every row, with the threshold of its cell in the table.

    Args:
        plan: What to reproduce; the runs of the first seed are used.
        outcomes: Completed runs; some of the plan's may be missing.
        folder: Where to write a folder for every row.
    """
    known = Outcomes(plan, outcomes)
    for task in plan.tasks:
        for row in plan.rows:
            outcome = known.find(task, row, plan.seeds[0])
            if outcome is None or not outcome.has_unlabelled or plain_name(task) not in FILES:
                continue
            answers = _answers(task, row, outcome)
            if answers is not None:
                path = folder / row.file_name / FILES[plain_name(task)]
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, "index\tprediction\n" + "\n".join(_lines(task, outcome, answers)) + "\n")


def _answers(task: str, row: TableRow, outcome: Outcome) -> NDArray | None:
    """Answer every text of an unlabelled split, (texts,); None where the table has no cell for lack of a threshold."""
    texts = outcome.trace("unlabelled")
    if row.share is not None:
        return static_exit(texts, -1).answer
    policy = choose_policy(outcome, "calibration", row, RANGES[group_of(task)])
    return None if policy is None else policy.decide(texts).answer


def _lines(task: str, outcome: Outcome, answers: NDArray) -> list[str]:
    """Format answers as GLUE's server expects them."""
    names = outcome.trace("unlabelled").about["label_names"]
    labels = [names[answer] if plain_name(task) in ANSWERED_BY_NAME else str(answer) for answer in answers]
    return [f"{number}\t{label}" for number, label in enumerate(labels)]
