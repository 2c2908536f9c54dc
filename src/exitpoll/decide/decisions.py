"""Decisions: where texts left and what they were answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, SINGLE_LABEL, metric_named
from exitpoll.decide.numerics import sigmoid, softmax, tamed
from exitpoll.errors import InputError


@dataclass(frozen=True)
class Decisions:
    """Where texts left and what they were answered."""

    exit: NDArray  # (texts,) exit numbers from 0
    answer: NDArray  # (texts,) class numbers, or values; (texts, classes) of 0 and 1 for multi-label
    probability: NDArray  # (texts,) what the head at that exit gives the answer, NaN for a value; or of every label
    exit_layers: Sequence[int]  # of each exit
    labels: NDArray | None = None  # as the answers

    @cached_property
    def depth(self) -> NDArray:
        """How many layers each text went through, (texts,)."""
        return np.asarray(self.exit_layers)[self.exit]

    @property
    def speedup(self) -> float:
        """L ÷ mean depth."""
        return float(self.exit_layers[-1] / self.depth.mean()) if len(self.depth) else 1.0

    @property
    def histogram(self) -> dict[int, int]:
        """How many texts left after each layer with an exit."""
        counts = np.bincount(self.exit, minlength=len(self.exit_layers))
        return {int(layer): int(count) for layer, count in zip(self.exit_layers, counts, strict=True)}

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.score("accuracy")

    def score(self, metric: str) -> float:
        """Score the answers by a task's metric.

        Args:
            metric: Its name.

        Returns:
            The score.
        """
        if self.labels is None:
            raise InputError("these texts have no labels, so their answers cannot be scored")
        several, values = self.answer.ndim == 2, self.answer.dtype.kind == "f"
        kind = MULTI_LABEL if several else REGRESSION if values else SINGLE_LABEL
        gold = np.asarray(self.labels, dtype=np.float64 if values else np.int64)
        classes = max(2, *(1 + int(each.max(initial=0)) for each in (gold, self.answer)))
        tally = metric_named(metric, kind, classes)
        return float(tally.score(tally.counts(gold, self.answer, classes).sum(axis=0)))


def probability_of(heads: NDArray, answer: NDArray, problem_type: str) -> NDArray:
    """Say how likely a head makes an answer.

    Args:
        heads: Logits of one exit for each text, (texts, classes).
        answer: The answers.
        problem_type: As in transformers.

    Returns:
        Probabilities of the answers, (texts,); of every label, (texts, classes), for multi-label; NaN for values.
    """
    if problem_type == MULTI_LABEL:
        return sigmoid(tamed(heads))
    if problem_type == REGRESSION:
        return np.full(len(heads), np.nan)
    return softmax(heads)[np.arange(len(heads)), answer]
