"""Costs of exits: which exits are asked, and what it costs to leave at one of them, in layers or in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.certificate import Metadata
from exitpoll.errors import InputError

MILLISECONDS, HEAD = "milliseconds", "head_milliseconds"  # in the metadata of a trace
MOST_MS = 1e12

Unit = Literal["layers", "milliseconds"]


def check_layers(layers: object) -> None:
    """Check that layers of exits are integers that rise from 0 or more.

    Args:
        layers: What a user gave.
    """
    if not isinstance(layers, list | tuple | np.ndarray) or not len(layers):
        raise InputError(f"exit_layers {layers!r:.60} must be layers that have an exit, such as [2, 4, 12]")
    if not all(isinstance(layer, int | np.integer) and not isinstance(layer, bool) for layer in layers):
        raise InputError(f"exit_layers {list(layers)!r:.60} must be integers")
    if any(later <= earlier for earlier, later in pairwise((-1, *layers))):
        raise InputError(f"exit_layers {list(layers)!r:.60} must rise from 0 or more")


def columns_of(asked: Sequence[int], exit_layers: Sequence[int]) -> list[int]:
    """Return the numbers of the exits that are asked.

    Args:
        asked: Their layers; the last is that of the last exit, which is the full model.
        exit_layers: The layers of all exits.

    Returns:
        Exit numbers, counted from 0.
    """
    check_layers(asked)
    numbers = {int(layer): number for number, layer in enumerate(exit_layers)}
    unknown = [int(layer) for layer in asked if layer not in numbers]
    if unknown:
        raise InputError(f"there is no exit after layer {_listed(unknown)}; exits are after layers {_listed(numbers)}")
    if asked[-1] != exit_layers[-1]:
        raise InputError(
            f"exit_layers {[int(layer) for layer in asked]} must end with {exit_layers[-1]}: the last exit is the full "
            "model, which takes the texts that no other exit is sure of"
        )
    return [numbers[int(layer)] for layer in asked]


def _listed(layers: Sequence[int] | dict[int, int]) -> str:
    """Write layers with commas between them."""
    return ", ".join(map(str, layers))


@dataclass(frozen=True)
class ExitCosts:
    """What it costs to leave at an exit: the layers up to it, and asking it and every exit before that is asked."""

    exit_layers: Sequence[int]
    layers: NDArray  # (exits,) what the layers up to every exit cost
    head: float = 0.0  # what it costs to ask one exit: its head, and the decision
    unit: Unit = "layers"

    @classmethod
    def in_layers(cls, exit_layers: Sequence[int]) -> ExitCosts:
        """Count layers; heads are free.

        Args:
            exit_layers: The layers of the exits.

        Returns:
            The costs.
        """
        return cls(tuple(exit_layers), np.asarray(exit_layers, dtype=np.float64))

    @classmethod
    def measured(cls, exit_layers: Sequence[int], about: Metadata, *, needs_head: bool = False) -> ExitCosts:
        """Read the times that a recording measured.

        Args:
            exit_layers: The layers of the exits.
            about: The metadata of a trace.
            needs_head: Whether to refuse times of which the share of the heads is not known.

        Returns:
            Milliseconds for one text; where the share of the heads is not known, it is part of the layers.
        """
        times, head = about.get(MILLISECONDS), about.get(HEAD)
        if not isinstance(times, list) or len(times) != len(exit_layers):
            raise InputError("this trace has no times; record it with exitpoll record, or choose by speed-up")
        if not all(isinstance(time, int | float) and 1e-9 < time < MOST_MS for time in times):
            raise InputError(f"the times of this trace must be milliseconds above 0, and are {times}")
        if head is None and needs_head:
            raise InputError(
                "this trace does not say what asking an exit takes: record it again in torch, or let exitpoll export "
                "--data calibrate; an export that has a policy cannot be timed without it"
            )
        head = 0.0 if head is None else head
        if not isinstance(head, int | float) or not 0 <= head < MOST_MS:
            raise InputError(f"the time of a head must be milliseconds, 0 or more, and is {head!r:.60}")
        layers = np.asarray(times, dtype=np.float64) - head * np.arange(1, len(times) + 1)
        return cls(tuple(exit_layers), np.maximum.accumulate(layers.clip(1e-9)), float(head), "milliseconds")

    def of(self, asked: Sequence[int]) -> NDArray:
        """Return what it costs to leave at every exit that is asked.

        Args:
            asked: The layers of the exits that are asked.

        Returns:
            Costs, (exits asked,).
        """
        columns = columns_of(asked, self.exit_layers)
        return self.layers[columns] + self.head * np.arange(1, len(columns) + 1)

    @property
    def static(self) -> NDArray:
        """What it costs to leave at every exit where no other is asked, (exits,)."""
        return self.layers + self.head

    @property
    def full(self) -> float:
        """What the full model costs, which asks the last exit alone."""
        return float(self.static[-1])


def reduced_times(about: Metadata, exit_layers: Sequence[int], asked: Sequence[int]) -> Metadata:
    """Reduce the times in the metadata of a trace to some of its exits.

    Args:
        about: The metadata; those without times stay as they are.
        exit_layers: The layers of all exits.
        asked: The layers of the exits that stay.

    Returns:
        The metadata, in which no time is left of the heads that are not asked, where their time is known.
    """
    if MILLISECONDS not in about:
        return about
    costs = ExitCosts.measured(exit_layers, about)
    times = costs.of(asked) if HEAD in about else costs.layers[columns_of(asked, exit_layers)]
    return {**about, MILLISECONDS: [round(float(time), 6) for time in times]}
