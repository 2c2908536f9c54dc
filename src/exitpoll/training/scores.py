"""Scores of every exit on a split, by the task's metric; without labels, by agreement with the last exit."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from exitpoll.data.splits import AGREEMENT
from exitpoll.decide.metrics import METRICS, REGRESSION, Metric, predictions
from exitpoll.models.folder import SplitScores
from exitpoll.models.losses import exit_losses


def answers_as_labels(last_logits: NDArray, problem_type: str) -> NDArray:
    """Turn the answers of the last exit into labels, for texts that have none.

    Args:
        last_logits: (texts, classes)
        problem_type: As in transformers.

    Returns:
        Labels, as in Texts.
    """
    answers = predictions(last_logits, problem_type)
    return answers.astype(np.float32) if answers.ndim > 1 or problem_type == REGRESSION else answers


def score_exits(logits: NDArray, labels: NDArray | None, metric: str, problem_type: str) -> SplitScores:
    """Score every exit.

    Args:
        logits: (texts, exits, classes)
        labels: As in Texts; the answers of the last exit if there are none.
        metric: The task's metric.
        problem_type: As in transformers.

    Returns:
        The scores.
    """
    if labels is None:
        labels = answers_as_labels(logits[:, -1], problem_type)
    score = _metric_named(metric, problem_type)
    answers = [predictions(logits[:, number], problem_type) for number in range(logits.shape[1])]
    scores = [score(labels, answer) for answer in answers]
    accuracies = None if problem_type == REGRESSION else [METRICS["accuracy"](labels, answer) for answer in answers]
    losses = exit_losses(torch.from_numpy(logits), torch.from_numpy(labels), problem_type=problem_type).mean(dim=0)
    return SplitScores(
        exit_scores=scores,
        exit_accuracies=accuracies,
        exit_losses=losses.tolist(),
        mean_score=float(np.mean(scores)),
        last_score=scores[-1],
        mean_loss=losses.mean().item(),
    )


def _metric_named(metric: str, problem_type: str) -> Metric:
    """Return a metric; agreement is that of answers or, in regression, of how values vary."""
    if metric == AGREEMENT:
        return METRICS["r2" if problem_type == REGRESSION else "accuracy"]
    return METRICS[metric]
