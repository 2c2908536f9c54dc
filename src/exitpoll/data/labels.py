"""Turn labels as they were read into numbers: one class, several classes, or a value.

One rule for all formats, because a CSV file has `1.0` where a Parquet file has the number 1: labels that are equal
numbers are one class, however they are written; other labels are names, of which spaces at both ends do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from textwrap import shorten
from typing import SupportsFloat

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Text
from exitpoll.data.normalize import normalized
from exitpoll.decide.metrics import MULTI_LABEL, PROBLEM_TYPES, REGRESSION, SINGLE_LABEL
from exitpoll.errors import InputError

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
LONGEST_NUMBER = 25  # characters; longer ones are names
MISSING = ("nan", "null", "<na>")  # what text files have in place of a label, in any case; and `None`
MANY_CLASSES = 10
MOST_NOTED = 3  # groups of labels in one note
LARGEST_VALUE = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class RawLabels:
    """Labels as they were read, with their places for error messages."""

    values: Sequence[object]
    places: Sequence[str]

    def __iter__(self) -> Iterator[tuple[object, str]]:
        """Iterate over labels and their places."""
        return zip(self.values, self.places, strict=True)


def is_missing(label: object, class_names: Sequence[str] = ()) -> bool:
    """Return whether there is no label: None, NaN, blank, or a word for these; an empty list is a label, of no class.

    Args:
        label: A label as it was read.
        class_names: Names that are classes whatever they mean elsewhere.
    """
    if not isinstance(label, str):
        return label is None or label != label
    word = label.strip()
    return not word or (word not in class_names and (word.lower() in MISSING or word == "None"))


def class_name(label: object) -> str:
    """Return the name of a class: the same for all ways to write a number.

    Args:
        label: A name or a number, as it was read.

    Returns:
        `1` for 1, 1.0, `1.0` and `01`; the text itself, without spaces around it, for what is not a number.
    """
    text = str(label).strip()
    if not NUMBER.fullmatch(text) or len(text) > LONGEST_NUMBER:
        return text
    number = Decimal(text)
    is_moderate = not number or abs(number.adjusted()) < LONGEST_NUMBER
    return format((number + 0).normalize(), "f") if is_moderate else text


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
        if class_names is None:
            return cls(problem_type, sorted_class_names(labels, problem_type))
        check_class_names(class_names, problem_type)
        return cls(problem_type, class_names, accept_numbers=True)

    def encode(self, labels: RawLabels) -> NDArray:
        """Turn labels into numbers.

        Args:
            labels: The labels of a split.

        Returns:
            Class numbers (texts,), 0 and 1 for every class (texts, classes), or values (texts,).
        """
        if self.problem_type == REGRESSION:
            return np.array([_value_of(label, place) for label, place in labels], dtype=np.float32)
        numbers = {class_name(name): number for number, name in enumerate(self.names)}
        if self.accept_numbers and not any(NUMBER.fullmatch(name) for name in numbers):
            numbers |= {str(number): number for number in range(len(self.names))}
        rows = [
            [self._number_of(name, numbers, place) for name in _names_in(label, self.problem_type, place)]
            for label, place in labels
        ]
        if self.problem_type == SINGLE_LABEL:
            return np.array([row[0] for row in rows], dtype=np.int64)
        one_hot = np.zeros((len(rows), len(self.names)), dtype=np.float32)
        for index, row in enumerate(rows):
            one_hot[index, row] = 1
        return one_hot

    def _number_of(self, name: str, numbers: dict[str, int], place: str) -> int:
        """Return the number of a known class."""
        if name in numbers:
            return numbers[name]
        known = shorten(", ".join(self.names), 200)
        alike = next((other for other in self.names if normalized(other) == normalized(name)), None)
        hint = "" if alike is None else f"; '{alike}' differs from it only by case or spaces"
        if NUMBER.fullmatch(name) and "0" in numbers and "0" not in map(class_name, self.names):
            hint = f", and their numbers are 0 to {len(self.names) - 1}"
        raise InputError(f"{place}: label '{name}' is not among the known labels: {known}{hint}")


def check_class_names(names: Sequence[str], problem_type: str) -> None:
    """Refuse names that cannot be those of the classes.

    Args:
        names: The names that a user gave, in the order of the class numbers.
        problem_type: As in transformers.
    """
    if isinstance(names, str) or not all(isinstance(name, str) and name.strip() for name in names):
        raise InputError(f"the label names {names!r:.60} must be a list of names, none of them empty")
    if problem_type == REGRESSION:
        if len(names) != 1:
            raise InputError(f"{len(names)} label names were given, but regression has one value and no classes")
        return
    if len(names) < 2:
        raise InputError(f"the label names are {', '.join(names) or 'none'}; two classes are needed")
    repeated = sorted({name for name in names if [class_name(other) for other in names].count(class_name(name)) > 1})
    if repeated:
        listed = " and ".join(f"'{name}'" for name in repeated)
        raise InputError(f"the label names have a class twice: {listed}; names and numbers must be unique")


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
    """List the classes: numbers in numerical order, names in alphabetical order.

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
    return sorted(names, key=Decimal) if all(NUMBER.fullmatch(name) for name in names) else sorted(names)


def label_notes(splits: Iterable[RawLabels], scheme: LabelScheme) -> list[str]:
    """Return notes on labels that are written in more than one way.

    Args:
        splits: The labels of all splits.
        scheme: How they are numbered.

    Returns:
        A note on spellings that are one class, and one on classes that are nearly one.
    """
    if scheme.problem_type == REGRESSION:
        return []
    spellings: dict[str, dict[str, None]] = {}  # of every class
    for labels in splits:
        for label, place in labels:
            for part in _parts_of(label, scheme.problem_type, place):
                spellings.setdefault(class_name(part), {})[str(part)] = None
    alike: dict[Text, list[str]] = {}  # classes that differ only by case or spaces
    for name in spellings:
        alike.setdefault(normalized(name), []).append(name)
    one_class = [list(written) for written in spellings.values() if len(written) > 1]
    several = [names for names in alike.values() if len(names) > 1]
    notes = []
    if one_class:
        notes.append(f"labels that differ only by spaces or number format are one class: {_listed(one_class)}")
    if several:
        notes.append(f"labels that differ only by case or spaces are different classes: {_listed(several)}")
    return notes


def _listed(groups: Sequence[Sequence[str]]) -> str:
    """List the first groups of labels."""
    listed = "; ".join(" and ".join(f"'{label}'" for label in group) for group in groups[:MOST_NOTED])
    return listed if len(groups) <= MOST_NOTED else f"{listed}; and {len(groups) - MOST_NOTED} more"


def _names_in(label: object, problem_type: str, place: str) -> list[str]:
    """List the class names of a label."""
    names = [class_name(part) for part in _parts_of(label, problem_type, place)]
    if len(set(names)) < len(names):
        raise InputError(f"{place}: label {label!r} names a class twice; list the names of a text's classes")
    return names


def _parts_of(label: object, problem_type: str, place: str) -> list[object]:
    """List the classes of a label as they were written: one or, for multi-label, a list or names separated by `|`."""
    if problem_type != MULTI_LABEL:
        if not isinstance(label, str | SupportsFloat):
            raise InputError(f"{place}: label {label!r} must be one name or number, as the other labels are")
        return [label]
    if not isinstance(label, list | str):
        raise InputError(f"{place}: label {label!r} must be a list of names, as the other labels are")
    parts = label if isinstance(label, list) else [part for part in label.split("|") if part.strip()]
    if any(is_missing(part) for part in parts):
        raise InputError(f"{place}: label {label!r} has a part that is missing; list the names of a text's classes")
    return parts


def _value_of(label: object, place: str) -> float:
    """Return the value of a regression label."""
    value = _to_float(label)
    if value is None:
        raise InputError(f"{place}: label '{label}' is not a number, as regression needs")
    return value


def _to_float(label: object) -> float | None:
    """Convert a label to a finite number that float32 can hold; None if it is not one."""
    if isinstance(label, bool) or not isinstance(label, str | SupportsFloat):
        return None
    if isinstance(label, str) and not NUMBER.fullmatch(label.strip()):
        return None
    try:
        value = float(label)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if abs(value) <= LARGEST_VALUE else None
