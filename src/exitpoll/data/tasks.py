"""The tasks that are known by name: their datasets on the hub, columns, splits and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Task:
    """A known task."""

    hub: str  # name of the dataset on the hub
    subset: str | None = None  # configuration of the dataset
    columns: tuple[str, ...] = ("text",)  # one text column, or two for pairs
    label: str = "label"  # the label column
    metric: str = "accuracy"
    splits: dict[str, str] = field(default_factory=lambda: {"train": "train", "test": "test"})  # ours -> the hub's


# The labels of GLUE's test splits are not published: its development split becomes our test split.
_THREE_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
_MNLI_SPLITS = {"train": "train", "dev": "validation_matched", "test": "test_matched"}
_GLUE = "nyu-mll/glue"

# A new task is one row here.
TASKS: dict[str, Task] = {
    "ag_news": Task("fancyzhx/ag_news"),
    "cola": Task(_GLUE, "cola", ("sentence",), metric="matthews", splits=_THREE_SPLITS),
    "mnli": Task(_GLUE, "mnli", ("premise", "hypothesis"), splits=_MNLI_SPLITS),
    "mrpc": Task(_GLUE, "mrpc", ("sentence1", "sentence2"), metric="accuracy_and_f1", splits=_THREE_SPLITS),
    "qnli": Task(_GLUE, "qnli", ("question", "sentence"), splits=_THREE_SPLITS),
    "qqp": Task(_GLUE, "qqp", ("question1", "question2"), metric="accuracy_and_f1", splits=_THREE_SPLITS),
    "rte": Task(_GLUE, "rte", ("sentence1", "sentence2"), splits=_THREE_SPLITS),
    "sst2": Task(_GLUE, "sst2", ("sentence",), splits=_THREE_SPLITS),
    "sst5": Task("SetFit/sst5", splits=_THREE_SPLITS),
    "trec": Task("SetFit/TREC-QC", label="label_coarse_original"),
}


def task_named(name: str) -> Task | None:
    """Find a task by its name, in any spelling (`agnews`, `SST-2`).

    Args:
        name: The name of a task, or of a folder with its data.

    Returns:
        The task; None if there is none of that name.
    """
    tasks = {plain_name(known): task for known, task in TASKS.items()}
    return tasks.get(plain_name(name))


def plain_name(name: str) -> str:
    """Normalize the name of a task.

    Args:
        name: The name of a task, or of a folder with its data.

    Returns:
        Its letters and digits, in lower case.
    """
    return "".join(letter for letter in name.lower() if letter.isalnum())
