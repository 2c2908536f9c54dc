"""For the soak: figures beside the bars that they are to reach, and what the whole test is held to where that is less.

A bar of milliseconds supposes that the front has a core to itself. Where clients, front and model processes share two
cores, a figure may miss its bar because another process had the core: such a figure is held to a looser limit, and the
results say both.
"""

from __future__ import annotations

WHY_LOOSER = "clients, front and model processes share the cores of one machine, and other programs may run on it"

Bar = dict[str, object]


def at_most(value: float, to_reach: float, held_to: float | None = None) -> Bar:
    """Compare a figure with the most that it should be.

    Args:
        value: The figure.
        to_reach: The most that it should be.
        held_to: The most that it may be, if that is more.

    Returns:
        The figure and its limits, whether the bar was reached, and whether the limit was held.
    """
    limit = to_reach if held_to is None else max(to_reach, held_to)
    return _bar(value, to_reach, limit, "at most", reached=value <= to_reach, held=value <= limit)


def at_least(value: float, to_reach: float, held_to: float | None = None) -> Bar:
    """Compare a figure with the least that it should be.

    Args:
        value: The figure.
        to_reach: The least that it should be.
        held_to: The least that it may be, if that is less.

    Returns:
        The figure and its limits, whether the bar was reached, and whether the limit was held.
    """
    limit = to_reach if held_to is None else min(to_reach, held_to)
    return _bar(value, to_reach, limit, "at least", reached=value >= to_reach, held=value >= limit)


def _bar(value: float, to_reach: float, limit: float, way: str, *, reached: bool, held: bool) -> Bar:
    """Describe a comparison."""
    looser = {} if limit == to_reach else {"held_to": round(limit, 3)}
    return {"value": round(value, 3), way: round(to_reach, 3), **looser, "reached": reached, "held": held}
