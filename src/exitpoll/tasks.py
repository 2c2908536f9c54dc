"""The tasks known by name: where the hub keeps them, which columns and splits they have, how they are scored.

scikit-learn is imported where a metric needs it: deciding, unlike scoring, runs on NumPy alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from exitpoll.numerics import finite_values, predicted

Metric = Callable[[NDArray, NDArray], float]  # (gold, predicted) -> a score, higher is better


def accuracy(gold: NDArray, predicted: NDArray) -> float:
    """Share of right answers; of texts with every label right, for multi-label tasks."""
    right = gold == predicted
    return float((right if right.ndim == 1 else right.all(axis=1)).mean())


def matthews(gold: NDArray, predicted: NDArray) -> float:
    """Matthews correlation (CoLA)."""
    from sklearn import metrics

    return float(metrics.matthews_corrcoef(gold, predicted))


def accuracy_and_f1(gold: NDArray, predicted: NDArray) -> float:
    """Mean of accuracy and the F1 of class 1 (MRPC, QQP)."""
    from sklearn import metrics

    return (accuracy(gold, predicted) + float(metrics.f1_score(gold, predicted))) / 2


def micro_f1(gold: NDArray, predicted: NDArray) -> float:
    """F1 over all labels of all texts: the default for multi-label tasks."""
    from sklearn import metrics

    return float(metrics.f1_score(gold, predicted, average="micro", zero_division=0))


def r2(gold: NDArray, predicted: NDArray) -> float:
    """Share of the variance explained: the default for regression."""
    from sklearn import metrics

    return float(metrics.r2_score(gold, predicted)) if len(gold) > 1 else 0.0


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "accuracy_and_f1": accuracy_and_f1,
    "matthews": matthews,
    "micro_f1": micro_f1,
    "r2": r2,
}

SINGLE_LABEL = "single_label_classification"
MULTI_LABEL = "multi_label_classification"
REGRESSION = "regression"

DEFAULT_METRICS = {
    SINGLE_LABEL: "accuracy",
    MULTI_LABEL: "micro_f1",
    REGRESSION: "r2",
}


def predictions(logits: NDArray, problem_type: str) -> NDArray:
    """Turn logits into answers in the form the metrics take.

    Args:
        logits: (…, classes), finite or not: metrics refuse what is no number.
        problem_type: As in transformers.

    Returns:
        Class numbers (…), 0 and 1 for every label (…, classes), or values (…).
    """
    if problem_type == SINGLE_LABEL:
        return predicted(logits)
    if problem_type == MULTI_LABEL:
        return (logits > 0).astype(np.int64)
    return finite_values(logits[..., 0])


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
