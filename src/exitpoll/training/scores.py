"""Scores of every exit on a split, by the task's metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from exitpoll.decide.metrics import METRICS, REGRESSION, predictions
from exitpoll.models.losses import exit_losses


@dataclass(frozen=True)
class ExitScores:
    """Scores of every exit on a split, if all texts left there; logged in training.jsonl and training.json."""

    exit_scores: Sequence[float]  # (exits,) by the task's metric
    exit_accuracies: Sequence[float] | None  # (exits,), None for regression
    exit_losses: Sequence[float]  # (exits,)
    mean_score: float
    last_score: float  # of the last exit
    mean_loss: float


def score_exits(logits: NDArray, labels: NDArray, metric: str, problem_type: str) -> ExitScores:
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
    return ExitScores(
        exit_scores=scores,
        exit_accuracies=accuracies,
        exit_losses=losses.tolist(),
        mean_score=float(np.mean(scores)),
        last_score=scores[-1],
        mean_loss=losses.mean().item(),
    )
