"""The exit strategies one exit at a time: what the formulas say of all exits so far, from sums kept in memory.

A step takes the logits of the current exit and what the exits before left in memory (counts, sums, run lengths), so it
costs the same at every exit. `formulas` holds the definitions, on whole traces; a test holds every step to its formula.
Steps are written in `Operations`: the engine runs them on NumPy arrays, the single-file export turns them into ONNX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from exitpoll.decide.fits import LARGEST
from exitpoll.decide.operations import Array, Operations

Memory = Mapping[str, Array]  # by name, texts first; empty at the first exit
SMALLEST = 1e-37  # of a probability inside a logarithm: it times its logarithm is 0 in any precision


@dataclass(frozen=True)
class Step:
    """The result of a strategy at one exit."""

    score: Array  # (texts,), or (texts, labels)
    answer: Array  # class numbers or values, in the shape of the score
    memory: Memory


StepFunction = Callable[..., Step]  # (operations, logits of this exit, memory, exit number from 0, **settings)


# ---- no head --------------------------------------------------------------------------------------------------------


def static(ops: Operations, logits: Array, memory: Memory, number: int) -> Step:
    """Number of the exit; see `formulas.static`."""
    answer = ops.argmax(logits)
    return Step(ops.zeros(answer) + (number + 1.0), answer, {})


def static_values(ops: Operations, logits: Array, memory: Memory, number: int) -> Step:
    """Number of the exit, for regression; see `formulas.static_values`."""
    value = ops.value(logits)
    return Step(ops.zeros(value) + (number + 1.0), value, {})


# ---- the current head -----------------------------------------------------------------------------------------------


def entropy(ops: Operations, logits: Array, memory: Memory, number: int, *, normalized: bool = False) -> Step:
    """Entropy of the current head; see `formulas.entropy`."""
    log_p = ops.log_softmax(logits)
    scale = math.log(ops.classes(logits)) if normalized else 1.0
    return Step(ops.sum(ops.exp(log_p) * log_p) / scale, ops.argmax(log_p), {})


def max_prob(
    ops: Operations,
    logits: Array,
    memory: Memory,
    number: int,
    *,
    temperatures: Sequence[float] | None = None,
    towards: str | None = None,
) -> Step:
    """Highest probability of the current head; see `formulas.max_prob`."""
    p = ops.exp(ops.log_softmax(logits, 1.0 if temperatures is None else float(temperatures[number])))
    return Step(ops.max(p), ops.argmax(logits), {})


def margin(ops: Operations, logits: Array, memory: Memory, number: int) -> Step:
    """Difference between the two highest probabilities of the current head; see `formulas.margin`."""
    p = ops.exp(ops.log_softmax(logits))
    answer = ops.argmax(p)
    return Step(_margin(ops, p, ops.one_hot(answer, ops.classes(p))), answer, {})


def _margin(ops: Operations, p: Array, chosen: Array) -> Array:
    """Compute the difference between the probability of the answer and the highest of the others."""
    return ops.max(p) - ops.max(p - chosen * 2.0)  # the answer's own falls below all others


# ---- patience -------------------------------------------------------------------------------------------------------


def patience(ops: Operations, logits: Array, memory: Memory, number: int) -> Step:
    """Number of exits for which the prediction has stood unchanged; see `formulas.patience`."""
    answer = ops.argmax(logits)
    run = _unchanged(ops, answer, memory)
    return Step(run, answer, {"last": answer, "run": run})


def _unchanged(ops: Operations, answer: Array, memory: Memory) -> Array:
    """Count for how many exits the answer is the same, 0 at the first."""
    if "last" not in memory:
        return ops.zeros(answer)
    return _run(ops, answer == memory["last"], memory)


def _run(ops: Operations, holds: Array, memory: Memory) -> Array:
    """Count for how many exits in a row a condition has held."""
    flags = ops.to_number(holds)
    return flags if "run" not in memory else (memory["run"] + 1.0) * flags


def stable(ops: Operations, logits: Array, memory: Memory, number: int, *, within: float = 0.1) -> Step:
    """Number of exits for which the value has moved by at most `within`; see `formulas.stable`."""
    value = ops.value(logits)
    run = ops.zeros(value)
    if "last" in memory:
        run = _run(ops, ops.absolute(value - memory["last"]) <= within, memory)
    return Step(run, value, {"last": value, "run": run})


def confident_patience(ops: Operations, logits: Array, memory: Memory, number: int, *, confidence: float = 0.9) -> Step:
    """Number of exits in a row whose highest probability reached `confidence`; see `formulas.confident_patience`."""
    log_p = ops.log_softmax(logits)
    run = _run(ops, ops.exp(ops.max(log_p)) >= confidence, memory)
    return Step(run, ops.argmax(log_p), {"run": run})


def js_patience(ops: Operations, logits: Array, memory: Memory, number: int, *, divergence: float = 0.05) -> Step:
    """Number of exits in a row with a small divergence from the exit before; see `formulas.js_patience`."""
    p = ops.exp(ops.log_softmax(logits))
    own = _nats(ops, p)
    run = ops.zeros(own)
    if "p" in memory:
        between = _nats(ops, (p + memory["p"]) / 2.0) - (own + memory["nats"]) / 2.0
        run = _run(ops, ops.at_least(between, 0.0) < divergence, memory)
    return Step(run, ops.argmax(p), {"p": p, "nats": own, "run": run})


def _nats(ops: Operations, p: Array) -> Array:
    """Compute the entropy in nats; 0 · log 0 is 0."""
    return -ops.sum(p * ops.log(ops.at_least(p, SMALLEST)))


# ---- votes and ensembles --------------------------------------------------------------------------------------------


def votes(ops: Operations, logits: Array, memory: Memory, number: int, *, k: float = 0.5) -> Step:
    """Vote of all exits so far; see `formulas.votes`."""
    ballots = ops.one_hot(ops.argmax(logits), ops.classes(logits))
    counts = ballots + memory["counts"] if "counts" in memory else ballots
    # In a tie the current head's class wins; if it is not among the tied classes, the first of them.
    answer = ops.argmax(counts * 2.0 + ballots)
    return Step(ops.max(counts) / (number + 1.0) ** k, answer, {"counts": counts})


def soft_votes(ops: Operations, logits: Array, memory: Memory, number: int, *, k: float = 0.5) -> Step:
    """Sum of probabilities in place of votes; see `formulas.soft_votes`."""
    p = ops.exp(ops.log_softmax(logits))
    summed = memory["summed"] + p if "summed" in memory else p
    return Step(ops.max(summed) / (number + 1.0) ** k, ops.argmax(summed), {"summed": summed})


def mean(ops: Operations, logits: Array, memory: Memory, number: int) -> Step:
    """Highest probability of the mean distribution: soft votes with k = 1."""
    return soft_votes(ops, logits, memory, number, k=1.0)


def geometric(ops: Operations, logits: Array, memory: Memory, number: int) -> Step:
    """Highest probability of the geometric mean of the distributions; see `formulas.geometric`."""
    log_p = ops.log_softmax(logits)
    summed = memory["summed"] + log_p if "summed" in memory else log_p
    averaged = ops.log_softmax(summed / (number + 1.0))
    return Step(ops.exp(ops.max(averaged)), ops.argmax(averaged), {"summed": summed})


# ---- combined and learned -------------------------------------------------------------------------------------------


def combine(ops: Operations, steps: Sequence[Step], levels: Sequence[float]) -> Step:
    """Combine strategies into one, whose score counts those that fire; see `formulas.combine`.

    Args:
        ops: The operations.
        steps: The steps to combine.
        levels: What their scores must reach for them to fire.

    Returns:
        The step; its answer is that of the first that fires, else of the first.
    """
    fires = [step.score >= level for step, level in zip(steps, levels, strict=True)]
    answer = steps[0].answer
    for fired, step in zip(reversed(fires), reversed(steps), strict=True):
        answer = ops.where(fired, step.answer, answer)
    score = ops.to_number(fires[0])
    for fired in fires[1:]:
        score = score + ops.to_number(fired)
    memory = {f"{place}.{name}": array for place, step in enumerate(steps) for name, array in step.memory.items()}
    return Step(score, answer, memory)


def memory_of(memory: Memory, place: int) -> Memory:
    """Return what one of several combined strategies left in memory."""
    prefix = f"{place}."
    return {name.removeprefix(prefix): array for name, array in memory.items() if name.startswith(prefix)}


def learned(
    ops: Operations,
    logits: Array,
    memory: Memory,
    number: int,
    *,
    coefficients: Sequence[Sequence[float]],
    intercepts: Sequence[float],
    towards: str = "agreement",
) -> Step:
    """Learned chance that the head answers as the last one will, or is right; see `formulas.learned`."""
    log_p = ops.log_softmax(logits)
    p = ops.exp(log_p)
    answer = ops.argmax(p)
    chosen = ops.one_hot(answer, ops.classes(p))
    run = _unchanged(ops, answer, memory)
    counts = chosen + memory["counts"] if "counts" in memory else chosen
    of_margin, of_entropy, of_run, of_votes = (float(value) for value in coefficients[number])
    log_odds = (
        _margin(ops, p, chosen) * of_margin
        - ops.sum(p * log_p) * of_entropy
        + run * of_run
        + ops.sum(counts * chosen) * of_votes
        + float(intercepts[number])
    )
    return Step(ops.sigmoid(log_odds), answer, {"last": answer, "run": run, "counts": counts})


def learned_distance(
    ops: Operations,
    logits: Array,
    memory: Memory,
    number: int,
    *,
    coefficients: Sequence[Sequence[float]],
    intercepts: Sequence[float],
    towards: str = "agreement",
) -> Step:
    """Learned distance of the value from the last head's; see `formulas.learned_distance`."""
    answer = ops.value(logits)
    value = ops.at_least(-ops.at_least(-answer, -LARGEST), -LARGEST)
    first = memory.get("first", value)
    away = value - first  # small, so that the variance is exact enough where numbers have 32 bits
    moved = ops.absolute(value - memory["last"]) if "last" in memory else away
    summed = memory["summed"] + away if "summed" in memory else away
    squares = memory["squares"] + away * away if "squares" in memory else away * away
    mean = summed / (number + 1.0)
    variance = ops.at_least(squares / (number + 1.0) - mean * mean, SMALLEST)
    of_value, of_square, of_step, of_spread = (float(row) for row in coefficients[number])
    distance = (
        value * of_value
        + value * value * of_square
        + moved * of_step
        + ops.exp(ops.log(variance) / 2.0) * of_spread
        + float(intercepts[number])
    )
    return Step(-distance, answer, {"first": first, "last": value, "summed": summed, "squares": squares})
