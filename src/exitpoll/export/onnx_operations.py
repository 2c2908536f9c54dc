"""The operations of strategies as ONNX nodes: the steps of `exitpoll.decide.steps` become part of a graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exitpoll.export.builder import GraphBuilder

LAST = -1  # axis


@dataclass(frozen=True, eq=False)
class Value:
    """An output of a node, with the operators of Python; numbers are float32."""

    builder: GraphBuilder
    name: str
    width: int = 0  # size of the last axis; 0 where there is none beside the texts

    def _with(self, operator: str, other: Value | float) -> Value:
        """Add a node on this value and another, or a number."""
        name = other.name if isinstance(other, Value) else self.builder.constant(other, np.float32)
        return Value(self.builder, self.builder.node(operator, self.name, name), self.width)

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
        """Divide; by 1 is left out."""
        return self if isinstance(other, float) and other == 1.0 else self._with("Div", other)

    def __neg__(self) -> Value:
        """Negate."""
        return Value(self.builder, self.builder.node("Neg", self.name), self.width)

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

    def _node(self, operator: str, value: Value, *more: str, width: int = 0, **attributes: int) -> Value:
        """Add a node."""
        return Value(self.builder, self.builder.node(operator, value.name, *more, domain="", **attributes), width)

    def _reduce(self, operator: str, value: Value) -> Value:
        """Reduce the last axis."""
        return self._node(operator, value, self.builder.constant([LAST], np.int64), keepdims=0)

    def classes(self, logits: Value) -> int:
        """Return the size of the last axis."""
        return logits.width

    def log_softmax(self, logits: Value, temperature: float = 1.0) -> Value:
        """Compute log-probabilities over the last axis, of logits divided by a temperature."""
        return self._node("LogSoftmax", logits / float(temperature), axis=LAST, width=logits.width)

    def binary(self, logits: Value) -> Value:
        """Turn the logits of labels, (texts, labels), into those of no and yes, (texts, labels, 2)."""
        column = self._node("Unsqueeze", logits, self.builder.constant([LAST], np.int64))
        before = self.builder.constant([0, 0, 1, 0, 0, 0], np.int64)
        return self._node("Pad", column, before, self.builder.constant(0.0, np.float32), width=2)

    def value(self, logits: Value) -> Value:
        """Return the value of a regression, its only logit, without the last axis."""
        return self._node("Squeeze", logits, self.builder.constant([LAST], np.int64))

    def exp(self, values: Value) -> Value:
        """Compute e^x."""
        return self._node("Exp", values, width=values.width)

    def log(self, values: Value) -> Value:
        """Compute the natural logarithm."""
        return self._node("Log", values, width=values.width)

    def absolute(self, values: Value) -> Value:
        """Compute |x|."""
        return self._node("Abs", values)

    def sigmoid(self, values: Value) -> Value:
        """Turn log-odds into probabilities."""
        return self._node("Sigmoid", values)

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
        """Return the position of the first highest value of the last axis, as a float: ONNX has few int64 kernels."""
        number = self._node("ArgMax", values, axis=LAST, keepdims=0)
        return self._node("Cast", number, to=_FLOAT)

    def one_hot(self, answer: Value, classes: int) -> Value:
        """Return 1 at the class of an answer and 0 elsewhere, with a new last axis."""
        column = self._node("Unsqueeze", answer, self.builder.constant([LAST], np.int64))
        numbers = Value(self.builder, self.builder.constant(np.arange(classes), np.float32))
        return self._node("Cast", column == numbers, to=_FLOAT, width=classes)

    def where(self, condition: Value, chosen: Value, otherwise: Value) -> Value:
        """Choose between two arrays, row by row."""
        return self._node("Where", condition, chosen.name, otherwise.name)

    def at_least(self, values: Value, lowest: float) -> Value:
        """Raise values to a lowest value."""
        return self._node("Max", values, self.builder.constant(lowest, np.float32), width=values.width)

    def to_number(self, flags: Value) -> Value:
        """Turn true and false into 1 and 0."""
        return self._node("Cast", flags, to=_FLOAT)

    def zeros(self, like: Value) -> Value:
        """Return zeros of the shape of an array."""
        return like - like


_FLOAT = 1  # TensorProto.FLOAT
