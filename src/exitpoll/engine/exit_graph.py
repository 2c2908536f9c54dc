"""The inputs and outputs of a self-exiting graph, by name: between the export that writes it and the engine."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.policy import Policy


class Inputs(StrEnum):
    """Inputs with default values, beside the tokens."""

    LEVELS = "levels"  # (exits,) what scores must reach to exit
    MAX_DEPTH = "max_depth"  # () most layers to run
    WITH_LOGITS = "with_exit_logits"  # () whether to return the logits of all exits passed
    FIRST = "first"  # () the exit to run to first; those before it were passed in an earlier call
    LAST = "last"  # () the exit to stop at
    ENOUGH = "enough"  # () stop where fewer texts stay
    HIDDEN = "hidden"  # (texts, tokens, width) of texts that start behind an exit
    NOTES = "notes"  # (texts, columns) of these texts


class Outputs(StrEnum):
    """Outputs; a text that has not left yet has exit number -1."""

    LABEL = "label"  # (texts,), or (texts, classes)
    PROBABILITY = "probability"  # in the shape of the labels
    VALUE = "value"  # (texts,), for regression
    DEPTH = "depth"  # (texts,)
    LOGITS = "logits"  # (texts, classes) of the exit at which a text left
    EXIT_LOGITS = "exit_logits"  # (texts, exits, classes), NaN for exits that were not passed; on request
    EXIT_NUMBER = "exit_number"  # (texts,)

    @staticmethod
    def hidden_at(number: int) -> str:
        """Return the output with the hidden states at an exit, of the texts that reached it in this call."""
        return f"hidden_{number}"

    @staticmethod
    def notes_at(number: int) -> str:
        """Return the output with the notes on these texts."""
        return f"notes_{number}"


def asked_by(policy: Policy, exit_layers: Sequence[int]) -> list[int]:
    """Return the numbers of the exits whose heads a policy asks: one, if it never exits early.

    Args:
        policy: The policy.
        exit_layers: The layers of all exits of the model.

    Returns:
        Exit numbers of the model, rising.
    """
    layers = policy.asked(exit_layers)
    if policy.threshold is None:
        layers = (layers[int(policy.ends(layers).argmax())],)
    return [list(exit_layers).index(layer) for layer in layers]


def stops_of(policy: Policy, exit_layers: Sequence[int]) -> list[int]:
    """Return the numbers of the exits at which a graph with a policy may stop: those that it asks, and the last.

    Args:
        policy: The policy.
        exit_layers: The layers of all exits of the model.

    Returns:
        Exit numbers of the model, rising.
    """
    return sorted({*asked_by(policy, exit_layers), len(exit_layers) - 1})


def depth_cap(policy: Policy, exit_layers: Sequence[int]) -> int:
    """Return the most layers that a policy runs: all, unless it has a cap.

    Args:
        policy: The policy.
        exit_layers: The layers of all exits of the model.

    Returns:
        A number of layers.
    """
    return exit_layers[-1] if policy.max_depth is None else policy.max_depth


def levels_at(policy: Policy, exit_layers: Sequence[int]) -> NDArray:
    """Return what scores must reach to exit, at every exit of a model.

    Args:
        policy: The policy.
        exit_layers: The layers of all exits of the model.

    Returns:
        Levels, (exits,); ∞ at exits that are not asked.
    """
    levels = np.full(len(exit_layers), np.inf, dtype=np.float32)
    layers = policy.asked(exit_layers)
    levels[[list(exit_layers).index(layer) for layer in layers]] = policy.levels(len(layers))
    return levels
