"""Labels as they were read to labels as numbers: one class, several classes, or a value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.errors import InputError

WHOLE = re.compile(r"-?[0-9]{1,18}")
MANY_CLASSES = 10


@dataclass(frozen=True)
class RawLabels:
    """Labels as they were read, each with its place, for error messages."""

    values: Sequence[Any]
    places: Sequence[str]

    def __iter__(self) -> Iterator[tuple[Any, str]]:
        """Go through labels and places."""
        return zip(self.values, self.places, strict=True)


def problem_of(labels: RawLabels) -> str:
    """Tell the kind of problem by its labels: lists are multi-label, numbers with fractions are regression.

    Args:
        labels: The labels of the train split.

    Returns:
        The problem type, as in transformers.
    """
    if any(isinstance(label, list) for label, _ in labels):
        return "multi_label_classification"
    if all(_is_number(label) for label, _ in labels) and not all(float(label).is_integer() for label, _ in labels):
        return "regression"
    return "single_label_classification"


def class_names(labels: RawLabels, problem_type: str) -> list[str]:
    """List the classes in the order in which they are numbered: numbers by their size, names by the alphabet.

    Args:
        labels: The labels of the train split.
        problem_type: As in transformers.

    Returns:
        The names; a single one for regression.
    """
    if problem_type == "regression":
        return ["score"]
    seen = {name for label, place in labels for name in _names_in(label, problem_type, place)}
    first, texts = labels.places[0], len(labels.places)
    if len(seen) < 2:
        raise InputError(f"{first}: every label is '{''.join(seen)}'; two classes are needed")
    if len(seen) > MANY_CLASSES and len(seen) > texts / 2:
        raise InputError(f"{first}: {len(seen)} classes for {texts} texts; is it the label column?")
    return sorted(seen, key=int) if all(WHOLE.fullmatch(name) for name in seen) else sorted(seen)


def label_numbers(
    labels: RawLabels, problem_type: str, names: Sequence[str], *, numbers_will_do: bool = False
) -> NDArray:
    """Turn labels into numbers.

    Args:
        labels: The labels of a split.
        problem_type: As in transformers.
        names: The classes in the order in which they are numbered.
        numbers_will_do: Let a class be given by its number instead of its name.

    Returns:
        Class numbers (texts,), 0 and 1 for every class (texts, classes), or values (texts,).
    """
    if problem_type == "regression":
        return np.array([_value_of(label, place) for label, place in labels], dtype=np.float32)
    numbers = {name: number for number, name in enumerate(names)}
    if numbers_will_do:
        numbers = {str(number): number for number in range(len(names))} | numbers
    rows = [
        [_number_of(name, numbers, names, place) for name in _names_in(label, problem_type, place)]
        for label, place in labels
    ]
    if problem_type == "single_label_classification":
        return np.array([row[0] for row in rows], dtype=np.int64)
    several = np.zeros((len(rows), len(names)), dtype=np.float32)
    for index, row in enumerate(rows):
        several[index, row] = 1
    return several


def _names_in(label: Any, problem_type: str, place: str) -> list[str]:
    """List the class names of one label."""
    if problem_type == "multi_label_classification":
        return _several_names(label, place)
    if not isinstance(label, str | int | float):
        raise InputError(f"{place}: label {label!r} must be one name or number, as the other labels are")
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    return [str(label).strip()]


def _several_names(label: Any, place: str) -> list[str]:
    """List the class names of a multi-label label; in text files they are parted by bars."""
    if not isinstance(label, list | str):
        raise InputError(f"{place}: label {label!r} must be a list of names, as the other labels are")
    parts = label if isinstance(label, list) else label.split("|")
    names = [str(part).strip() for part in parts if str(part).strip()]
    if len(set(names)) < len(names):
        raise InputError(f"{place}: label {label!r} names a class twice; list the names of a text's classes")
    return names


def _number_of(name: str, numbers: dict[str, int], names: Sequence[str], place: str) -> int:
    """Number a class name, which must be known."""
    if name not in numbers:
        known = shorten(", ".join(names), 200)
        raise InputError(f"{place}: label '{name}' is not among the known labels: {known}")
    return numbers[name]


def _value_of(label: Any, place: str) -> float:
    """Read a label as a value."""
    if not _is_number(label):
        raise InputError(f"{place}: label '{label}' is not a number, as regression needs")
    return float(label)


def _is_number(label: Any) -> bool:
    """Whether a label reads as a number that a model can learn."""
    try:
        return abs(float(label)) <= float(np.finfo(np.float32).max)
    except (TypeError, ValueError, OverflowError):
        return False
