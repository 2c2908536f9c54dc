"""The inputs and outputs of a self-exiting graph, by name: between the export that writes it and the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.policy import Policy
from exitpoll.errors import InputError

OUTSIDE = ("threshold", "max_depth", "certificate", "version")  # of a policy: what is not part of a graph


class Inputs(StrEnum):
    """Inputs with default values, beside the tokens."""

    LEVELS = "levels"  # (exits,) what scores must reach to exit
    MAX_DEPTH = "max_depth"  # () most layers to run
    WITH_LOGITS = "with_exit_logits"  # () whether to return the logits of all exits passed
    FIRST = "first"  # () the exit to run to first; those before it were passed in an earlier call
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


# ---- which policies a graph can run ---------------------------------------------------------------------------------


def decisions_of(policy: Policy) -> Mapping[str, object]:
    """Return what of a policy is part of a graph: all but levels, depth and certificate.

    Where it never exits early, only the depth at which all texts leave counts.

    Args:
        policy: The policy.

    Returns:
        Fields by name.
    """
    content = json.loads(json.dumps(policy.to_dict()))
    if policy.threshold is None:
        return {name: content[name] for name in ("problem_type", "max_depth")}
    return {name: value for name, value in content.items() if name not in OUTSIDE}


def check_stops(numbers: Sequence[int], stops: Sequence[int], exit_layers: Sequence[int]) -> None:
    """Refuse to stop at exits at which a graph cannot.

    Args:
        numbers: Of the exits.
        stops: Of those at which it can stop.
        exit_layers: The layers of all exits of the model.
    """
    if set(numbers) - set(stops):
        layers = ", ".join(str(exit_layers[number]) for number in stops)
        raise InputError(f"this export can stop after layers {layers} alone: export the model with this policy")


def check_can_run(runtime: Any, policy: Policy) -> None:
    """Refuse a policy that a self-exiting graph neither has inside nor can stop for.

    Args:
        runtime: Any runtime, or what is known of it: with `decisions` and `stops` if it exits by itself.
        policy: The policy.
    """
    if runtime.exits_by_itself and decisions_of(policy) != runtime.decisions:
        check_stops(asked_by(policy, runtime.exit_layers), runtime.stops, runtime.exit_layers)
