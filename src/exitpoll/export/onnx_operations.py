"""The operations of strategies as ONNX nodes: the steps of `exitpoll.decide.steps` become part of a graph.

A number for every text is a column, (texts, 1), so that it stands beside rows of classes without a node in between.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from exitpoll.export.builder import FLOAT, GraphBuilder

LAST = -1  # axis

Shape = tuple[int, ...]  # the axes behind that of the texts; () for a number, whatever its node returns


@dataclass(frozen=True, eq=False)
class Value:
    """An output of a node, with the operators of Python; numbers are float32."""

    builder: GraphBuilder
    name: str
    shape: Shape = ()
    logits: Value | None = None  # what log-probabilities were computed from
    ranked: str | None = None  # what class numbers are the highest places of

    def _with(self, operator: str, other: Value | float) -> Value:
        """Add a node on this value and another, or a number."""
        if not isinstance(other, Value):
            return self._of(operator, self.builder.constant(other, np.float32), self.shape)
        return self._of(operator, other.name, max(self.shape, other.shape, key=len))

    def _of(self, operator: str, other: str, shape: Shape) -> Value:
        return Value(self.builder, self.builder.node(operator, self.name, other), shape)

    def __add__(self, other: Value | float) -> Value:
        """Add."""
        return self._with("Add", other)

    def __sub__(self, other: Value | float) -> Value:
        """Subtract."""
        return self._with("Sub", other)

    def __mul__(self, other: Value | float) -> Value:
        """Multiply."""
        return self._with("Mul", other)

    def __truediv__(self, other: Value | float) -> Value:
        """Divide; a division by 1 is left out."""
        return self if not isinstance(other, Value) and other == 1.0 else self._with("Div", other)

    def __neg__(self) -> Value:
        """Negate."""
        return Value(self.builder, self.builder.node("Neg", self.name), self.shape)

    def __ge__(self, other: Value | float) -> Value:
        """Compare: at least."""
        return self._with("GreaterOrEqual", other)

    def __le__(self, other: Value | float) -> Value:
        """Compare: at most."""
        return self._with("LessOrEqual", other)

    def __lt__(self, other: Value | float) -> Value:
        """Compare: less."""
        return self._with("Less", other)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        """Compare: equal."""
        assert isinstance(other, Value)
        return self._with("Equal", other)


class OnnxOperations:
    """The operations, each a node or a few."""

    def __init__(self, builder: GraphBuilder) -> None:
        """Add nodes to a graph.

        Args:
            builder: The graph.
        """
        self.builder = builder

    def _node(self, operator: str, value: Value, *more: str, shape: Shape, **attributes: int) -> Value:
        """Add a node."""
        name = self.builder.node(operator, value.name, *more, domain="", **attributes)
        return Value(self.builder, name, shape)

    def _map(self, operator: str, value: Value, *more: str) -> Value:
        """Add a node that works element by element."""
        return self._node(operator, value, *more, shape=value.shape)

    def _reduce(self, operator: str, value: Value) -> Value:
        """Reduce the last axis."""
        axes = self.builder.constant([LAST], np.int64)
        return self._node(operator, value, axes, shape=value.shape[:-1], keepdims=_kept(value))

    def _to_float(self, value: Value) -> Value:
        """Convert to float32."""
        return self._node("Cast", value, shape=value.shape, to=FLOAT)

    def classes(self, logits: Value) -> int:
        """Return the size of the last axis."""
        return logits.shape[-1]

    def log_softmax(self, logits: Value, temperature: float = 1.0) -> Value:
        """Compute log-probabilities over the last axis, of logits divided by a temperature."""
        scaled = logits / float(temperature)
        return replace(self._node("LogSoftmax", scaled, shape=logits.shape, axis=LAST), logits=scaled)

    def binary(self, logits: Value) -> Value:
        """Turn the logits of labels, (texts, labels), into those of no and yes, (texts, labels, 2)."""
        column = self._column(logits)
        before = self.builder.constant([0, 0, 1, 0, 0, 0], np.int64)
        return self._node("Pad", column, before, self.builder.constant(0.0, np.float32), shape=(*logits.shape, 2))

    def value(self, logits: Value) -> Value:
        """Return the value of a regression, its only logit."""
        return Value(self.builder, logits.name)

    def exp(self, values: Value) -> Value:
        """Compute e^x; of log-probabilities in one node with their logarithm."""
        if values.logits is not None:
            return self._node("Softmax", values.logits, shape=values.shape, axis=LAST)
        return self._map("Exp", values)

    def log(self, values: Value) -> Value:
        """Compute the natural logarithm."""
        return self._map("Log", values)

    def absolute(self, values: Value) -> Value:
        """Compute |x|."""
        return self._map("Abs", values)

    def sigmoid(self, values: Value) -> Value:
        """Turn log-odds into probabilities."""
        return self._map("Sigmoid", values)

    def sum(self, values: Value) -> Value:
        """Sum over the last axis."""
        return self._reduce("ReduceSum", values)

    def max(self, values: Value) -> Value:
        """Return the highest value of the last axis."""
        return self._reduce("ReduceMax", values)

    def min(self, values: Value) -> Value:
        """Return the lowest value of the last axis."""
        return self._reduce("ReduceMin", values)

    def argmax(self, values: Value) -> Value:
        """Return the position of the first highest value of the last axis, as a float like everything else."""
        place = self._node("ArgMax", values, shape=values.shape[:-1], axis=LAST, keepdims=_kept(values))
        return replace(self._to_float(place), ranked=values.name)

    def one_hot(self, answer: Value, classes: int) -> Value:
        """Return 1 at the class of an answer and 0 elsewhere, with a new last axis."""
        numbers = Value(self.builder, self.builder.constant(np.arange(classes), np.float32))
        equal = self._column(answer) == numbers
        return self._to_float(Value(self.builder, equal.name, (*answer.shape, classes)))

    def where(self, condition: Value, chosen: Value, otherwise: Value) -> Value:
        """Choose between two arrays, element by element, or row by row where the condition has one axis less."""
        flags = condition if len(condition.shape) == len(chosen.shape) else self._column(condition)
        return self._node("Where", flags, chosen.name, otherwise.name, shape=chosen.shape)

    def at_least(self, values: Value, lowest: float) -> Value:
        """Raise values to a lowest value."""
        return self._map("Max", values, self.builder.constant(lowest, np.float32))

    def to_number(self, flags: Value) -> Value:
        """Turn true and false into 1 and 0."""
        return self._to_float(flags)

    def zeros(self, like: Value) -> Value:
        """Return zeros of the shape of an array."""
        return like - like

    def _column(self, value: Value) -> Value:
        """Add a last axis of size 1, which numbers have."""
        if not value.shape:
            return replace(value, shape=(1,))
        return self._node("Unsqueeze", value, self.builder.constant([LAST], np.int64), shape=(*value.shape, 1))

    def number(self, value: float) -> Value:
        """Return a number, the same for all texts."""
        return Value(self.builder, self.builder.constant(value, np.float32))

    def sum_of_zeros(self, values: Value, before: Value | None) -> Value:
        """Sum over the last axis, multiplied by 0, and add the sum before: 0, or NaN where a value is not finite."""
        zeros = self.builder.constant(np.zeros((values.shape[-1], 1)), np.float32)
        if before is None:
            return self._node("MatMul", values, zeros, shape=values.shape[:-1])
        return self._node("Gemm", values, zeros, before.name, shape=values.shape[:-1])

    # ---- several values as one matrix -------------------------------------------------------------------------------

    def columns(self, values: Mapping[str, Value]) -> list[str]:
        """Return every value as a matrix, (texts, its size); `split` takes them apart once they stand side by side."""
        return [
            value.name if len(value.shape) <= 1 else self._reshaped(value.name, (math.prod(value.shape),))
            for value in values.values()
        ]

    def split(self, matrix: str, skipped: int, shapes: Mapping[str, Shape]) -> dict[str, Value]:
        """Read values from the columns of a matrix that follow some other columns."""
        sizes = self.builder.constant([skipped, *(math.prod(shape) for shape in shapes.values())], np.int64)
        _, *columns = self.builder.nodes("Split", matrix, sizes, outputs=1 + len(shapes), axis=1)
        return {
            name: Value(self.builder, column if len(shape) <= 1 else self._reshaped(column, shape), shape)
            for (name, shape), column in zip(shapes.items(), columns, strict=True)
        }

    def _reshaped(self, name: str, shape: Shape) -> str:
        """Give every text another shape."""
        return self.builder.node("Reshape", name, self.builder.constant([-1, *shape], np.int64))


def _kept(value: Value) -> int:
    """Return whether reducing the last axis keeps it, with size 1: where a number for every text is left."""
    return int(len(value.shape) == 1)
