"""The operations that steps of strategies are written in: here on NumPy arrays, in `exitpoll.export` as ONNX nodes.

A step is written once against `Operations` and the operators of Python (+, -, *, /, comparisons, &). Everything works
along the last axis; leading axes are texts, or texts and labels.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.numerics import finite_values, log_softmax, sigmoid

Array = Any  # an NDArray, or a node of an ONNX graph


class Operations(Protocol):
    """What a step may use beside the operators of Python."""

    def classes(self, logits: Array) -> int:
        """Return the size of the last axis."""

    def log_softmax(self, logits: Array, temperature: float = 1.0) -> Array:
        """Compute log-probabilities over the last axis, of logits divided by a temperature."""

    def binary(self, logits: Array) -> Array:
        """Turn the logits of labels, (texts, labels), into those of no and yes, (texts, labels, 2)."""

    def value(self, logits: Array) -> Array:
        """Return the value of a regression, its only logit, without the last axis."""

    def exp(self, values: Array) -> Array:
        """Compute e^x."""

    def log(self, values: Array) -> Array:
        """Compute the natural logarithm."""

    def absolute(self, values: Array) -> Array:
        """Compute |x|."""

    def sigmoid(self, values: Array) -> Array:
        """Turn log-odds into probabilities."""

    def sum(self, values: Array) -> Array:
        """Sum over the last axis."""

    def max(self, values: Array) -> Array:
        """Return the highest value of the last axis."""

    def min(self, values: Array) -> Array:
        """Return the lowest value of the last axis."""

    def argmax(self, values: Array) -> Array:
        """Return the position of the first highest value of the last axis."""

    def one_hot(self, answer: Array, classes: int) -> Array:
        """Return 1 at the class of an answer and 0 elsewhere, with a new last axis."""

    def where(self, condition: Array, chosen: Array, otherwise: Array) -> Array:
        """Choose between two arrays, element by element, or row by row where the condition has one axis less."""

    def at_least(self, values: Array, lowest: float) -> Array:
        """Raise values to a lowest value."""

    def to_number(self, flags: Array) -> Array:
        """Turn true and false into 1 and 0."""

    def zeros(self, like: Array) -> Array:
        """Return zeros of the shape of an array."""


class NumpyOperations:
    """The operations on NumPy arrays."""

    def classes(self, logits: NDArray) -> int:
        """Return the size of the last axis."""
        return logits.shape[-1]

    def log_softmax(self, logits: NDArray, temperature: float = 1.0) -> NDArray:
        """Compute log-probabilities over the last axis, of logits divided by a temperature, in float64."""
        return log_softmax(logits if temperature == 1.0 else logits.astype(np.float64) / temperature)

    def binary(self, logits: NDArray) -> NDArray:
        """Turn the logits of labels, (texts, labels), into those of no and yes, (texts, labels, 2)."""
        return np.stack([np.zeros_like(logits), logits], axis=-1)

    def value(self, logits: NDArray) -> NDArray:
        """Return the value of a regression, its only logit, without the last axis, in float64."""
        return finite_values(logits[..., 0])

    def exp(self, values: NDArray) -> NDArray:
        """Compute e^x."""
        return np.exp(values)

    def log(self, values: NDArray) -> NDArray:
        """Compute the natural logarithm."""
        return np.log(values)

    def absolute(self, values: NDArray) -> NDArray:
        """Compute |x|."""
        return np.abs(values)

    def sigmoid(self, values: NDArray) -> NDArray:
        """Turn log-odds into probabilities, without overflow."""
        return sigmoid(values)

    def sum(self, values: NDArray) -> NDArray:
        """Sum over the last axis."""
        return values.sum(axis=-1)

    def max(self, values: NDArray) -> NDArray:
        """Return the highest value of the last axis."""
        return values.max(axis=-1)

    def min(self, values: NDArray) -> NDArray:
        """Return the lowest value of the last axis."""
        return values.min(axis=-1)

    def argmax(self, values: NDArray) -> NDArray:
        """Return the position of the first highest value of the last axis."""
        return values.argmax(axis=-1)

    def one_hot(self, answer: NDArray, classes: int) -> NDArray:
        """Return 1 at the class of an answer and 0 elsewhere, with a new last axis."""
        return (answer[..., None] == np.arange(classes)).astype(np.float64)

    def where(self, condition: NDArray, chosen: NDArray, otherwise: NDArray) -> NDArray:
        """Choose between two arrays, element by element, or row by row where the condition has one axis less."""
        return np.where(condition if condition.ndim == chosen.ndim else condition[..., None], chosen, otherwise)

    def at_least(self, values: NDArray, lowest: float) -> NDArray:
        """Raise values to a lowest value."""
        return np.maximum(values, lowest)

    def to_number(self, flags: NDArray) -> NDArray:
        """Turn true and false into 1 and 0."""
        return flags.astype(np.float64)

    def zeros(self, like: NDArray) -> NDArray:
        """Return zeros of the shape of an array."""
        return np.zeros(like.shape)


NUMPY = NumpyOperations()
