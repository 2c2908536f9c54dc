"""Decisions: at which exit texts left and what they were answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, SINGLE_LABEL, metric_named
from exitpoll.decide.numerics import make_finite, sigmoid, softmax
from exitpoll.errors import InputError


@dataclass(frozen=True)
class Decisions:
    """At which exit texts left and what they were answered."""

    exit: NDArray  # (texts,) exit numbers from 0
    answer: NDArray  # (texts,) class numbers, or values; (texts, classes) of 0 and 1 for multi-label
    probability: (
        NDArray  # (texts,) of the answer, by the head at that exit; NaN for a value; (texts, classes) for labels
    )
    exit_layers: Sequence[int]
    labels: NDArray | None = None  # in the form of the answers

    @cached_property
    def depth(self) -> NDArray:
        """Layers that were run for the texts, (texts,)."""
        return np.asarray(self.exit_layers)[self.exit]

    @property
    def speedup(self) -> float:
        """L ÷ mean depth, as `speedup_at` computes it."""
        return float(speedup_at(self.depth, self.exit_layers)) if len(self.depth) else 1.0

    @property
    def histogram(self) -> dict[int, int]:
        """Number of texts that left, by layer with an exit."""
        counts = np.bincount(self.exit, minlength=len(self.exit_layers))
        return {int(layer): int(count) for layer, count in zip(self.exit_layers, counts, strict=True)}

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.score("accuracy")

    def score(self, metric: str) -> float:
        """Score the answers.

        Args:
            metric: The metric's name.

        Returns:
            The score.
        """
        if self.labels is None:
            raise InputError("these texts have no labels, so their answers cannot be scored")
        is_value = self.answer.dtype.kind == "f"
        problem_type = MULTI_LABEL if self.answer.ndim == 2 else REGRESSION if is_value else SINGLE_LABEL
        gold = np.asarray(self.labels, dtype=np.float64 if is_value else np.int64)
        classes = 2 if is_value else 1 + int(max(1, gold.max(initial=0), self.answer.max(initial=0)))
        return metric_named(metric, problem_type, classes)(gold, self.answer)


def speedup_at(depths: NDArray, exit_layers: Sequence[float]) -> NDArray:
    """Compute the speed-up in layers, L ÷ mean depth.

    If all texts leave before the first layer, that would be infinite. One of them then counts as if it had run to the
    next exit, which is the least that so many texts can be told from zero by: the speed-up stays finite, and no other
    is higher.

    Args:
        depths: The layers that were run for texts, (…, texts).
        exit_layers: The layers of the exits, or what else it costs to get there, the last of them the most.

    Returns:
        Speed-ups, (…).
    """
    return exit_layers[-1] / np.maximum(depths.mean(axis=-1), least_cost(exit_layers) / depths.shape[-1])


def least_cost(exit_layers: Sequence[float]) -> float:
    """Return the cost of the first exit that costs anything."""
    return next(cost for cost in exit_layers if cost > 0)


def probability_of(logits: NDArray, answer: NDArray, problem_type: str) -> NDArray:
    """Return the probability that a head gives to an answer.

    Args:
        logits: Of one exit per text, (texts, classes).
        answer: The answers.
        problem_type: As in transformers.

    Returns:
        Probabilities of the answers, (texts,); of every label, (texts, classes), for multi-label; NaN for values.
    """
    if problem_type == MULTI_LABEL:
        return sigmoid(make_finite(logits))
    if problem_type == REGRESSION:
        return np.full(len(logits), np.nan)
    return softmax(logits)[np.arange(len(logits)), answer]
