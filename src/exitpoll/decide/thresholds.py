"""Grids of thresholds that are fixed before any text is seen: what the guarantee of a single strategy rests on.

A grid is a function of a strategy's settings, the number of exits and the number of classes; it returns thresholds in
natural units, the most cautious first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.settings import Settings

GRID_SIZE = 150

Grid = Callable[[Settings, int, int], NDArray]  # (settings, exits, classes) -> (thresholds,)


def _small() -> NDArray:
    """Return shares of a range, denser towards its sure end; testing more thresholds costs no confidence."""
    return np.unique(np.concatenate([np.geomspace(1e-6, 1, GRID_SIZE), np.linspace(0.005, 1, GRID_SIZE + 50)]))


def entropies(settings: Settings, exits: int, classes: int) -> NDArray:
    """Return entropies from 0 to that of a uniform distribution."""
    return _small() * (1.0 if settings.get("normalized") else np.log(classes))


def probabilities(settings: Settings, exits: int, classes: int) -> NDArray:
    """Return probabilities from 1 to that of a uniform distribution."""
    return 1 - _small() * (1 - 1 / max(classes, 2))


def shares(settings: Settings, exits: int, classes: int) -> NDArray:
    """Return numbers from 1 to 0."""
    return 1 - _small()


def run_lengths(settings: Settings, exits: int, classes: int) -> NDArray:
    """Return counts of exits in a row, midway between the integers."""
    return np.arange(exits, -1, -1) - 0.5


def exit_numbers(settings: Settings, exits: int, classes: int) -> NDArray:
    """Return the numbers of the exits, midway between the integers."""
    return np.arange(exits, 0, -1) - 0.5


def vote_values(settings: Settings, exits: int, classes: int) -> NDArray:
    """Return levels midway between the values that V_l can take."""
    k = settings.get("k", 0.5)
    possible = np.unique([most / depth**k for depth in range(1, exits + 1) for most in range(1, depth + 1)])
    return (possible + np.concatenate([[0.0], possible[:-1]]))[::-1] / 2


def summed_probabilities(settings: Settings, exits: int, classes: int) -> NDArray:
    """Return sums of probabilities over l^k, from the highest that can occur to 0."""
    return np.linspace(exits ** (1 - settings.get("k", 0.5)), 0.0, 2 * GRID_SIZE)
