"""The kinds of settings that strategies have, and how a value is checked: once, when a policy is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.errors import InputError

Settings = Mapping[str, Any]  # of a strategy, by name

OCCURS = 0.01  # the least share of numbers that a value worth trying has on either side


@dataclass(frozen=True)
class Setting:
    """One setting of a strategy."""

    wanted: str  # what a value must be, for error messages
    is_valid: Callable[[object], bool]
    per_exit: bool = False  # a list with one entry for every exit
    required: bool = False  # the strategy has no default for it
    in_name: bool = True  # whether it is part of a policy's name
    tries: tuple[float, ...] = ()  # values worth trying in a search
    compared_with: Callable[[NDArray], NDArray] | None = None  # logits -> the numbers that a value is compared with

    def trying(self, *values: float, compared_with: Callable[[NDArray], NDArray] | None = None) -> Setting:
        """Return the same setting with values worth trying, and what they are compared with."""
        return replace(self, tries=values, compared_with=compared_with)

    def tries_on(self, logits: NDArray) -> list[float]:
        """Return values worth trying on some texts.

        Values that nearly all or nearly none of the compared numbers reach are replaced by quantiles of these numbers:
        with many classes, for instance, no head may ever be confident.

        Args:
            logits: Finite, (texts, exits, classes).

        Returns:
            The values.
        """
        if self.compared_with is None or not logits.size:
            return list(self.tries)
        numbers = self.compared_with(logits).ravel()
        if not len(numbers):
            return list(self.tries)
        useful = [value for value in self.tries if OCCURS <= (numbers >= value).mean() <= 1 - OCCURS]
        missing = len(self.tries) - len(useful)
        quantiles = np.quantile(numbers, np.linspace(0.2, 0.9, missing)) if missing else []
        return sorted({*useful, *(float(f"{quantile:.3g}") for quantile in quantiles)})


def is_number(value: object) -> bool:
    """Return whether a value is a finite number of sensible size."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating):
        return False
    return bool(-1e12 < value < 1e12)


def _are_numbers(values: object) -> bool:
    """Return whether values are a list of numbers."""
    return isinstance(values, list | tuple | np.ndarray) and len(values) > 0 and all(map(is_number, values))


def _are_temperatures(values: object) -> bool:
    """Return whether values are a list of numbers to divide by."""
    return isinstance(values, list | tuple | np.ndarray) and _are_numbers(values) and min(values) > 1e-6


def per_exit_rows(width: int) -> Setting:
    """Return a required setting that holds a row of numbers for every exit.

    Args:
        width: Numbers in a row.

    Returns:
        The setting.
    """

    def is_valid(rows: object) -> bool:
        if not isinstance(rows, list | tuple | np.ndarray) or not len(rows):
            return False
        return all(_are_numbers(row) and len(row) == width for row in rows)

    return Setting(f"a list with {width} numbers per exit", is_valid, per_exit=True, required=True, in_name=False)


NUMBER = Setting("a number", is_number)
FLAG = Setting("true or false", lambda value: isinstance(value, bool))
EXPONENT = Setting(
    "a number between 0 and 1", lambda value: isinstance(value, int | float) and is_number(value) and 0 <= value <= 1
)
FIT_TARGET = Setting("right or agreement", lambda value: value in ("right", "agreement", None))
TEMPERATURES = Setting("a list of numbers above 0, one per exit", _are_temperatures, per_exit=True)
PER_EXIT = Setting("a list of numbers, one per exit", _are_numbers, per_exit=True, required=True, in_name=False)


def check_threshold(threshold: object) -> None:
    """Check that a threshold is a number, one number per exit, or None.

    Args:
        threshold: What a policy is given.
    """
    if isinstance(threshold, bool):
        raise InputError(f"threshold {threshold} must be a number, or one per exit")
    try:
        numbers = np.asarray(0.0 if threshold is None else threshold, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"threshold {shorten(repr(threshold), 60)} must be a number, or one per exit") from error
    if numbers.ndim > 1 or not np.isfinite(numbers).all():
        raise InputError(f"threshold {threshold!r} must be a finite number, or one per exit")
