"""What thresholds and settings may be: checked once, when a policy is made, so that deciding need not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from textwrap import shorten
from typing import Any

import numpy as np

from exitpoll.decide.strategies import FEATURES, strategy_named
from exitpoll.errors import InputError


def check_settings(strategy: Any, settings: Any) -> None:
    """Refuse settings that a strategy does not have, or values that make no sense.

    Args:
        strategy: The strategy's name.
        settings: Names with values.
    """
    if not isinstance(strategy, str):
        raise InputError(f"strategy {strategy!r} must be a name")
    row = strategy_named(strategy)
    if not isinstance(settings, Mapping):
        raise InputError(f"settings {shorten(repr(settings), 60)} must be names with values")
    known = _keywords(row.function) | (_keywords(row.regression) if row.regression else frozenset())
    for name, value in settings.items():
        if name not in known:
            has = ", ".join(sorted(known)) or "none"
            raise InputError(f"strategy '{strategy}' has no setting '{name}'; it has: {has}")
        wanted, is_right = _CHECKS[name]
        if not is_right(value):
            raise InputError(f"setting {name} {shorten(repr(value), 60)} of strategy '{strategy}' must be {wanted}")


def check_threshold(threshold: Any) -> None:
    """Refuse a threshold that is no number, nor one number for each exit, nor None.

    Args:
        threshold: What a policy is given.
    """
    if isinstance(threshold, bool):
        raise InputError(f"threshold {threshold} must be a number, or one for each exit")
    try:
        numbers = np.asarray(0.0 if threshold is None else threshold, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"threshold {shorten(repr(threshold), 60)} must be a number, or one for each exit") from error
    if numbers.ndim > 1 or not np.isfinite(numbers).all():
        raise InputError(f"threshold {threshold!r} must be a finite number, or one for each exit")


@cache
def _keywords(function: Callable[..., Any]) -> frozenset[str]:
    """List the settings that a strategy's function takes."""
    given = inspect.signature(function).parameters.values()
    return frozenset(each.name for each in given if each.kind is inspect.Parameter.KEYWORD_ONLY) - {"problem_type"}


def _is_number(value: Any) -> bool:
    """Whether a value is a finite number of sensible size."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating):
        return False
    return bool(-1e12 < value < 1e12)


def _are_numbers(values: Any) -> bool:
    """Whether values are a list of numbers."""
    return isinstance(values, list | tuple | np.ndarray) and len(values) > 0 and all(map(_is_number, values))


def _are_temperatures(values: Any) -> bool:
    """Whether values are numbers to divide by."""
    return _are_numbers(values) and all(each > 1e-6 for each in values)


def _are_weights(values: Any) -> bool:
    """Whether values are rows with a weight for each feature."""
    if not isinstance(values, list | tuple | np.ndarray) or not len(values):
        return False
    return all(_are_numbers(row) and len(row) == len(FEATURES) for row in values)


def _are_policies(values: Any) -> bool:
    """Whether values are policies to make a hybrid of; what is wrong with one of them is said of it."""
    if not isinstance(values, list | tuple) or not values:
        return False
    return all(_is_policy(each) for each in values)


def _is_policy(value: Any) -> bool:
    """Whether a value is a strategy with a threshold, itself no hybrid."""
    if not isinstance(value, Mapping) or not set(value) <= {"strategy", "threshold", "settings"}:
        return False
    if "strategy" not in value or value["strategy"] == "hybrid":
        return False
    check_settings(value["strategy"], value.get("settings", {}))
    return value.get("threshold") is None or _is_number(value["threshold"])


_NUMBER = ("a number", _is_number)
_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "normalized": ("true or false", lambda value: isinstance(value, bool)),
    "temperatures": ("a list of numbers above 0, one for each exit", _are_temperatures),
    "towards": ("right or agreement", lambda value: value in ("right", "agreement", None)),
    "confidence": _NUMBER,
    "divergence": _NUMBER,
    "within": _NUMBER,
    "k": ("a number between 0 and 1", lambda value: _is_number(value) and 0 <= value <= 1),
    "policies": ("a list of policies, each with strategy, threshold and settings, none a hybrid", _are_policies),
    "weights": (f"a list with {len(FEATURES)} numbers for each exit", _are_weights),
    "biases": ("a list of numbers, one for each exit", _are_numbers),
}
