"""Decide exit by exit: a policy's step at one exit, for any problem type, and the memory that texts carry along."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION
from exitpoll.decide.numerics import all_finite, make_finite
from exitpoll.decide.operations import NUMPY, Array, Operations
from exitpoll.decide.policy import Policy
from exitpoll.decide.settings import Settings
from exitpoll.decide.steps import Memory, Step, StepFunction, combine, memory_of
from exitpoll.decide.strategies import check_takes_values, members, strategy_named
from exitpoll.errors import InputError

HISTORY = "history"  # in memory: the logits of all exits, for a strategy that has no step; 0 for those to come
BROKEN = "broken"  # in memory: whether an exit's logits were NaN or infinite


def take_step(
    ops: Operations, name: str, logits: Array, memory: Memory, number: int, settings: Settings, problem_type: str
) -> Step:
    """Take a strategy's step at one exit.

    Args:
        ops: The operations to compute it with.
        name: The strategy's name.
        logits: Of this exit, (texts, classes), finite.
        memory: What the step at the exit before left; empty at the first.
        number: The exit, counted from 0.
        settings: The strategy's settings.
        problem_type: As in transformers.

    Returns:
        Score (texts,), answer (texts,) or (texts, labels), and memory.
    """
    if strategy_named(name).combines:
        return _combined(ops, logits, memory, number, settings, problem_type)
    function = _step_function(name, problem_type)
    if function is None:
        raise InputError(f"strategy '{name}' has no step, so it cannot decide one exit at a time")
    if problem_type != MULTI_LABEL:
        return function(ops, logits, memory, number, **settings)
    # Every label is a question of its own, no or yes; a text is as sure as its least sure label.
    step = function(ops, ops.binary(logits), memory, number, **settings)
    return Step(ops.min(step.score), step.answer, step.memory)


def has_steps(name: str, settings: Settings, problem_type: str) -> bool:
    """Return whether a strategy, or every policy that it combines, can decide one exit at a time."""
    names = [member["strategy"] for member in members(settings)] if strategy_named(name).combines else [name]
    return all(_step_function(name, problem_type) is not None for name in names)


def _step_function(name: str, problem_type: str) -> StepFunction | None:
    """Return a strategy's step for a problem type."""
    return check_takes_values(name).step if problem_type == REGRESSION else strategy_named(name).step


def _combined(
    ops: Operations, logits: Array, memory: Memory, number: int, settings: Settings, problem_type: str
) -> Step:
    """Take the steps of several policies, and combine them."""
    steps, levels = [], []
    for place, member in enumerate(members(settings)):
        own = member.get("settings") or {}
        steps.append(take_step(ops, member["strategy"], logits, memory_of(memory, place), number, own, problem_type))
        levels.append(strategy_named(member["strategy"]).sign_for(problem_type) * member["threshold"])
    return combine(ops, steps, levels)


# ---- on NumPy arrays ------------------------------------------------------------------------------------------------


class Stepper:
    """A policy that decides one exit at a time."""

    def __init__(self, policy: Policy, exits: int) -> None:
        """Prepare a policy.

        Args:
            policy: When to exit.
            exits: How many exits there are.
        """
        self.policy, self.exits = policy, exits

    @cached_property
    def by_steps(self) -> bool:
        """Whether the strategy has a step; it is asked about all logits so far otherwise."""
        return has_steps(self.policy.strategy, self.policy.settings, self.policy.problem_type)

    def step(self, logits: NDArray, memory: Memory, number: int) -> Step:
        """Decide at one exit, whatever the logits.

        Args:
            logits: Of this exit, (texts, classes).
            memory: What the step at the exit before left; empty at the first that is asked.
            number: The exit, counted from 0.

        Returns:
            The step; from the first exit with NaN or infinite logits on, a text's score is −∞.
        """
        if not self.by_steps:
            return self._ask_again(logits, memory, number)
        finite = all_finite(logits)
        policy = self.policy
        step = take_step(
            NUMPY,
            policy.strategy,
            logits if finite else make_finite(logits),
            memory,
            number,
            policy.complete_settings,
            policy.problem_type,
        )
        if finite and BROKEN not in memory:
            return step
        broken = ~np.isfinite(logits).all(axis=-1) | memory.get(BROKEN, False)  # (texts,)
        return Step(np.where(broken, -np.inf, step.score), step.answer, {**step.memory, BROKEN: broken})

    def _ask_again(self, logits: NDArray, memory: Memory, number: int) -> Step:
        """Ask a strategy that has no step about all logits so far."""
        shape = (len(logits), self.exits, logits.shape[-1])
        history = memory[HISTORY].copy() if HISTORY in memory else np.zeros(shape, dtype=logits.dtype)
        history[:, number] = logits
        opinion = self.policy.opinion(history[:, : number + 1])
        return Step(opinion.score[:, -1], opinion.answer[:, -1], {HISTORY: history})


def select(memory: Memory, rows: NDArray) -> Memory:
    """Keep the memory of some texts."""
    return {name: array[rows] for name, array in memory.items()}


def join(memories: Sequence[Memory], sizes: Sequence[int]) -> Memory:
    """Join the memories of groups of texts; what some of them have none of yet is 0 there.

    Args:
        memories: By group.
        sizes: Texts in the groups.

    Returns:
        The memory of all texts, in the order of the groups.
    """
    examples = {name: array for memory in memories for name, array in memory.items()}
    return {
        name: np.concatenate(
            [
                memory[name] if name in memory else np.zeros((size, *example.shape[1:]), dtype=example.dtype)
                for memory, size in zip(memories, sizes, strict=True)
            ]
        )
        for name, example in examples.items()
    }


def replaced(memory: Memory, part: Memory, rows: NDArray, texts: int) -> Memory:
    """Replace the memory of some texts.

    Args:
        memory: Of all texts.
        part: The new memory of some.
        rows: Which these are.
        texts: How many there are in all.

    Returns:
        The memory of all texts; what is new to it is 0 for the others.
    """
    result = dict(memory)
    for name, array in part.items():
        known = memory.get(name)
        result[name] = np.zeros((texts, *array.shape[1:]), dtype=array.dtype) if known is None else known.copy()
        result[name][rows] = array
    return result
