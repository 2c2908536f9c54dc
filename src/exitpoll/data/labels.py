"""Turn labels as they were read into numbers: one class, several classes, or a value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import SupportsFloat

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.metrics import MULTI_LABEL, PROBLEM_TYPES, REGRESSION, SINGLE_LABEL
from exitpoll.errors import InputError

INTEGER = re.compile(r"-?[0-9]{1,18}")
MANY_CLASSES = 10
LARGEST_VALUE = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class RawLabels:
    """Labels as they were read, with their places for error messages."""

    values: Sequence[object]
    places: Sequence[str]

    def __iter__(self) -> Iterator[tuple[object, str]]:
        """Iterate over labels and their places."""
        return zip(self.values, self.places, strict=True)


@dataclass(frozen=True)
class LabelScheme:
    """How the labels of a dataset are numbered."""

    problem_type: str
    names: Sequence[str]  # of the classes, in the order of their numbers
    accept_numbers: bool = False  # whether a class may be given by its number instead of its name

    @classmethod
    def of(
        cls, labels: RawLabels, problem_type: str | None = None, class_names: Sequence[str] | None = None
    ) -> LabelScheme:
        """Infer from the labels of the train split what is not given.

        Args:
            labels: The labels of the train split.
            problem_type: As in transformers; inferred by default.
            class_names: The classes in the order in which to number them; sorted by default.

        Returns:
            The scheme.
        """
        if problem_type is None:
            problem_type = infer_problem_type(labels)
        if problem_type not in PROBLEM_TYPES:
            raise InputError(f"problem type '{problem_type}' is unknown; choose one of: {', '.join(PROBLEM_TYPES)}")
        if class_names:
            return cls(problem_type, class_names, accept_numbers=True)
        return cls(problem_type, sorted_class_names(labels, problem_type))

    def encode(self, labels: RawLabels) -> NDArray:
        """Turn labels into numbers.

        Args:
            labels: The labels of a split.

        Returns:
            Class numbers (texts,), 0 and 1 for every class (texts, classes), or values (texts,).
        """
        if self.problem_type == REGRESSION:
            return np.array([_value_of(label, place) for label, place in labels], dtype=np.float32)
        numbers = {name: number for number, name in enumerate(self.names)}
        if self.accept_numbers:
            numbers = {str(number): number for number in range(len(self.names))} | numbers
        rows = [
            [_class_number(name, numbers, self.names, place) for name in _names_in(label, self.problem_type, place)]
            for label, place in labels
        ]
        if self.problem_type == SINGLE_LABEL:
            return np.array([row[0] for row in rows], dtype=np.int64)
        one_hot = np.zeros((len(rows), len(self.names)), dtype=np.float32)
        for index, row in enumerate(rows):
            one_hot[index, row] = 1
        return one_hot


def infer_problem_type(labels: RawLabels) -> str:
    """Infer the problem type from labels: lists are multi-label, numbers with fractions are regression.

    Args:
        labels: The labels of the train split.

    Returns:
        The problem type, as in transformers.
    """
    if any(isinstance(label, list) for label in labels.values):
        return MULTI_LABEL
    values = [value for label in labels.values if (value := _to_float(label)) is not None]
    if len(values) == len(labels.values) and not all(value.is_integer() for value in values):
        return REGRESSION
    return SINGLE_LABEL


def sorted_class_names(labels: RawLabels, problem_type: str) -> list[str]:
    """List the classes: integers in numerical order, names in alphabetical order.

    Args:
        labels: The labels of the train split.
        problem_type: As in transformers.

    Returns:
        The names; a single one for regression.
    """
    if problem_type == REGRESSION:
        return ["score"]
    names = {name for label, place in labels for name in _names_in(label, problem_type, place)}
    first, texts = labels.places[0], len(labels.places)
    if len(names) < 2:
        raise InputError(f"{first}: every label is '{''.join(names)}'; two classes are needed")
    if len(names) > MANY_CLASSES and len(names) > texts / 2:
        raise InputError(f"{first}: {len(names)} classes for {texts} texts; is it the label column?")
    return sorted(names, key=int) if all(INTEGER.fullmatch(name) for name in names) else sorted(names)


def _names_in(label: object, problem_type: str, place: str) -> list[str]:
    """List the class names of a label."""
    if problem_type == MULTI_LABEL:
        return _several_names(label, place)
    if not isinstance(label, str | int | float):
        raise InputError(f"{place}: label {label!r} must be one name or number, as the other labels are")
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    return [str(label).strip()]


def _several_names(label: object, place: str) -> list[str]:
    """List the class names of a multi-label label: a list or, in text files, names separated by `|`."""
    if not isinstance(label, list | str):
        raise InputError(f"{place}: label {label!r} must be a list of names, as the other labels are")
    parts = label if isinstance(label, list) else label.split("|")
    names = [str(part).strip() for part in parts if str(part).strip()]
    if len(set(names)) < len(names):
        raise InputError(f"{place}: label {label!r} names a class twice; list the names of a text's classes")
    return names


def _class_number(name: str, numbers: Mapping[str, int], names: Sequence[str], place: str) -> int:
    """Return the number of a known class."""
    if name not in numbers:
        known = shorten(", ".join(names), 200)
        raise InputError(f"{place}: label '{name}' is not among the known labels: {known}")
    return numbers[name]


def _value_of(label: object, place: str) -> float:
    """Return the value of a regression label."""
    value = _to_float(label)
    if value is None:
        raise InputError(f"{place}: label '{label}' is not a number, as regression needs")
    return value


def _to_float(label: object) -> float | None:
    """Convert a label to a finite number that float32 can hold; None if it is not one."""
    if not isinstance(label, str | SupportsFloat):
        return None
    try:
        value = float(label)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if abs(value) <= LARGEST_VALUE else None
