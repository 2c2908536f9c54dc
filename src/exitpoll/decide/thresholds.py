"""Thresholds to test, fixed before any text is seen: what the guarantee of one strategy rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.metrics import MULTI_LABEL
from exitpoll.decide.policy import Policy
from exitpoll.decide.trace import Trace

GRID_SIZE = 150


def on_grid(policy: Policy, trace: Trace) -> list[Policy]:
    """Set one policy's threshold to every value of a grid that does not depend on the texts.

    Args:
        policy: Strategy and settings.
        trace: Tells how many exits and classes there are.

    Returns:
        Policies, the most cautious first.
    """
    classes = 2 if trace.problem_type == MULTI_LABEL else trace.logits.shape[-1]  # each label is no or yes
    grid = GRIDS[policy.strategy](policy.settings, len(trace.exit_layers), classes)
    return [replace(policy, threshold=float(threshold)) for threshold in grid]


def _small() -> NDArray:
    """Shares of a range, finer and finer towards its sure end, and never coarse: each test is free."""
    return np.unique(np.concatenate([np.geomspace(1e-6, 1, GRID_SIZE), np.linspace(0.005, 1, GRID_SIZE + 50)]))


def _entropies(settings: Mapping[str, Any], exits: int, classes: int) -> NDArray:
    return _small() * (1.0 if settings.get("normalized") else np.log(classes))


def _probabilities(settings: Mapping[str, Any], exits: int, classes: int) -> NDArray:
    return 1 - _small() * (1 - 1 / max(classes, 2))


def _shares(settings: Mapping[str, Any], exits: int, classes: int) -> NDArray:
    return 1 - _small()


def _runs(settings: Mapping[str, Any], exits: int, classes: int) -> NDArray:
    return np.arange(exits, -1, -1) - 0.5


def _vote_counts(settings: Mapping[str, Any], exits: int, classes: int) -> NDArray:
    k = settings.get("k", 0.5)
    possible = np.unique([most / depth**k for depth in range(1, exits + 1) for most in range(1, depth + 1)])
    return (possible + np.concatenate([[0.0], possible[:-1]]))[::-1] / 2


def _summed_probabilities(settings: Mapping[str, Any], exits: int, classes: int) -> NDArray:
    return np.linspace(exits ** (1 - settings.get("k", 0.5)), 0.0, 2 * GRID_SIZE)


# Thresholds in natural units, the most cautious first: (settings, exits, classes) -> (points,)
GRIDS: dict[str, Callable[[Mapping[str, Any], int, int], NDArray]] = {
    "entropy": _entropies,
    "max_prob": _probabilities,
    "margin": _shares,
    "patience": _runs,
    "confident_patience": _runs,
    "js_patience": _runs,
    "votes": _vote_counts,
    "soft_votes": _summed_probabilities,
    "mean": _probabilities,
    "geometric": _probabilities,
    "learned": _shares,
}
