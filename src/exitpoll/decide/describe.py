"""The settings of a strategy in words, as the name of a policy has them."""

from __future__ import annotations

from typing import Any

from exitpoll.decide.settings import Settings
from exitpoll.decide.strategies import strategy_named


def describe_setting(key: str, value: Any) -> str:
    """Write a setting for people: k=0.5, temperatures, votes k=0.5 ≥ 1.2.

    Args:
        key: Its name.
        value: Its value.

    Returns:
        A few words.
    """
    if key == "policies":
        return ", ".join(_member(**member) for member in value)
    if isinstance(value, int | float):
        return f"{key}={value:g}"
    return f"{key}={value}" if isinstance(value, str) else key


def _member(strategy: str, threshold: float | None = None, settings: Settings | None = None) -> str:
    """Write a member of a hybrid for people."""
    sign = "≤" if strategy_named(strategy).falls else "≥"
    limit = [] if threshold is None else [f"{sign} {threshold:.3g}"]
    return " ".join([strategy, *(describe_setting(key, value) for key, value in (settings or {}).items()), *limit])
