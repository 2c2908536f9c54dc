"""The tasks known by name: where the hub keeps them, which columns and splits they have, how they are scored."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Task:
    """One known task."""

    hub: str  # the hub's dataset
    subset: str | None = None  # and its configuration
    columns: tuple[str, ...] = ("text",)  # one text column, or two for pairs
    label: str = "label"
    metric: str = "accuracy"
    splits: dict[str, str] = field(default_factory=lambda: {"train": "train", "test": "test"})  # ours -> the hub's


# GLUE keeps the labels of its test splits to itself: its development split is our test split.
_GLUE_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
_MNLI_SPLITS = {"train": "train", "dev": "validation_matched", "test": "test_matched"}
_GLUE = "nyu-mll/glue"

TASKS: dict[str, Task] = {
    "ag_news": Task("fancyzhx/ag_news"),
    "cola": Task(_GLUE, "cola", ("sentence",), metric="matthews", splits=_GLUE_SPLITS),
    "mnli": Task(_GLUE, "mnli", ("premise", "hypothesis"), splits=_MNLI_SPLITS),
    "mrpc": Task(_GLUE, "mrpc", ("sentence1", "sentence2"), metric="accuracy_and_f1", splits=_GLUE_SPLITS),
    "qnli": Task(_GLUE, "qnli", ("question", "sentence"), splits=_GLUE_SPLITS),
    "qqp": Task(_GLUE, "qqp", ("question1", "question2"), metric="accuracy_and_f1", splits=_GLUE_SPLITS),
    "rte": Task(_GLUE, "rte", ("sentence1", "sentence2"), splits=_GLUE_SPLITS),
    "sst2": Task(_GLUE, "sst2", ("sentence",), splits=_GLUE_SPLITS),
    "sst5": Task("SetFit/sst5", splits={"train": "train", "dev": "validation", "test": "test"}),
    "trec": Task("SetFit/TREC-QC", label="label_coarse_original"),
}


def task_named(name: str) -> Task | None:
    """Find a task by its name or the name of a folder that stands in for it (`agnews`, `SST-2`)."""
    plain = {plain_name(known): task for known, task in TASKS.items()}
    return plain.get(plain_name(name))


def plain_name(name: str) -> str:
    """Drop what spellings of a task's name differ in.

    Args:
        name: A task's name, or a folder's that stands in for it.

    Returns:
        Its letters and digits, in lower case.
    """
    return "".join(letter for letter in name.lower() if letter.isalnum())
