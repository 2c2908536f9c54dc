"""Scores of every exit on a split, by the task's metric."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from exitpoll.decide.metrics import METRICS, REGRESSION, predictions
from exitpoll.models.folder import SplitScores
from exitpoll.models.losses import exit_losses


def score_exits(logits: NDArray, labels: NDArray, metric: str, problem_type: str) -> SplitScores:
    """Score every exit.

    Args:
        logits: (texts, exits, classes)
        labels: As in Texts.
        metric: The task's metric.
        problem_type: As in transformers.

    Returns:
        The scores.
    """
    answers = [predictions(logits[:, number], problem_type) for number in range(logits.shape[1])]
    scores = [METRICS[metric](labels, answer) for answer in answers]
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
