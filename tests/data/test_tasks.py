"""The known tasks, and metrics against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from exitpoll.data.tasks import TASKS, task_named
from exitpoll.decide.metrics import METRICS, predictions

GOLD, ANSWER = np.array([1, 1, 1, 0]), np.array([1, 1, 0, 0])


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("accuracy", 0.75),
        ("accuracy_and_f1", (0.75 + 0.8) / 2),  # precision 1, recall 2/3
        ("matthews", (2 * 1 - 0 * 1) / np.sqrt(2 * 3 * 1 * 2)),
    ],
)
def test_metrics_by_hand(metric, expected):
    assert METRICS[metric](GOLD, ANSWER) == pytest.approx(expected)


def test_micro_f1_by_hand():
    gold, answer = np.array([[1, 0], [1, 1]]), np.array([[1, 1], [0, 1]])
    assert METRICS["micro_f1"](gold, answer) == pytest.approx(2 / 3)


def test_r2_of_the_mean_is_zero():
    assert METRICS["r2"](np.array([1.0, 3.0]), np.array([2.0, 2.0])) == 0


def test_predictions():
    logits = np.array([[0.5, -1.0], [-2.0, 3.0]])
    assert predictions(logits, "single_label_classification").tolist() == [0, 1]
    assert predictions(logits, "multi_label_classification").tolist() == [[1, 0], [0, 1]]
    assert predictions(logits, "regression").tolist() == [0.5, -2.0]


def test_every_task_has_a_known_metric():
    assert {task.metric for task in TASKS.values()} <= set(METRICS)


def test_the_tasks_of_the_paper_are_known():
    named = ["cola", "mrpc", "qqp", "rte", "sst2", "qnli", "mnli", "ag_news", "sst5", "trec"]
    assert all(task_named(name) for name in named)
    assert task_named("SST-2") is TASKS["sst2"]
    assert task_named("nonsense") is None
