"""How long it takes to leave at every exit, one text at a time, and how much of it is asking the exits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Tokens, pick
from exitpoll.decide.incremental import Stepper
from exitpoll.decide.metrics import REGRESSION
from exitpoll.decide.policy import Policy
from exitpoll.decide.steps import Memory
from exitpoll.engine.runtime import ExitingRuntime, Runtime, exits_by_itself

ATTEMPTS = 4  # at timing a text; the fastest counts
NEVER = np.inf  # the level of a decision that is timed: no text leaves


@dataclass(frozen=True)
class ExitTimes:
    """How long it takes to leave at the exits, one text at a time."""

    milliseconds: list[float]  # (exits,) from token ids to the decision, where the exits before are asked
    head_milliseconds: float | None  # what asking one exit takes: its head and a decision; None if that is not known

    def to_dict(self) -> dict[str, object]:
        """Return what is known, as the metadata of a trace."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def policy_that_asks_all(problem_type: str) -> Policy:
    """Return a policy with which asking the exits is timed.

    Args:
        problem_type: Of the model.

    Returns:
        A policy of the most usual strategy.
    """
    if problem_type == REGRESSION:
        return Policy("patience", 1.0, problem_type=problem_type)
    return Policy("max_prob", 0.5, problem_type=problem_type)


def time_exits(runtime: Runtime, tokens: Tokens) -> ExitTimes:
    """Measure the latency of every exit and of asking one, one text at a time.

    All exits and the last alone are asked in turn: the difference is what the other heads and decisions take. Each goes
    through all texts, one of them untimed, before the other does: else their weights would not be in the cache.

    Args:
        runtime: Runs the model.
        tokens: Token ids of a sample of texts.

    Returns:
        Means over the texts, of the fastest attempt at each.
    """
    alone = [pick(tokens, np.array([row])) for row in range(len(tokens["input_ids"]))]
    ways = _ways(runtime)
    of_all, of_last = np.zeros((ATTEMPTS, len(alone), len(ways.stops))), np.zeros((ATTEMPTS, len(alone)))
    for attempt in range(ATTEMPTS):
        of_all[attempt] = _time_texts(ways.all_exits, alone)
        if ways.last_alone is not None:
            of_last[attempt] = np.array(_time_texts(ways.last_alone, alone))[:, -1]
    best = np.maximum.accumulate(of_all.min(axis=0), axis=1)  # (texts, stops); other processes only add time
    means = _at_all_exits(1000 * best.mean(axis=0), np.asarray(runtime.exit_layers), ways.stops)
    head = None
    if ways.last_alone is not None:
        others = float(means[-1] - 1000 * of_last.min(axis=0).mean())  # heads and decisions of all exits but the last
        share = others / max(len(means) - 1, 1)
        head = round(max(min(share, float(np.diff(means, prepend=0.0).min())), 0.0), 4)  # an exit comes after layers
    return ExitTimes([round(float(mean), 4) for mean in means], head)


def _time_texts(way: Callable[[Tokens], list[float]], alone: Sequence[Tokens]) -> list[list[float]]:
    """Time one text after another, once the weights are in the cache: seconds, (texts, stops)."""
    way(alone[0])
    return [way(text) for text in alone]


@dataclass(frozen=True)
class _Ways:
    """How to time a runtime: functions of one text that return the seconds until every stop."""

    stops: Sequence[int]  # numbers of the exits at which times are taken
    all_exits: Callable[[Tokens], list[float]]
    last_alone: Callable[[Tokens], list[float]] | None  # None if it cannot be asked alone


def _ways(runtime: Runtime) -> _Ways:
    """Return how to time a runtime.

    A self-exiting graph asks the exits of the policy inside, always. What one of them takes is known only where the
    policy asks all, and there is a graph beside it that asks the last alone.
    """
    last = len(runtime.exit_layers) - 1
    if not exits_by_itself(runtime):
        stops = range(last + 1)
        return _Ways(stops, partial(_time_walk, runtime, stops), partial(_time_walk, runtime, [last]))
    if runtime.asked == [last]:  # it decides nothing: other policies run exit by exit
        asks_all = len(runtime.stops) == last + 1
        alone = partial(_time_walk, runtime, [last]) if asks_all else None
        return _Ways(runtime.stops, partial(_time_walk, runtime, runtime.stops), alone)
    alone = None if runtime.load_last_alone is None else partial(_time_passage, runtime.load_last_alone(), [last])
    return _Ways(runtime.stops, partial(_time_passage, runtime, runtime.stops), alone)


def _at_all_exits(means: NDArray, layers: NDArray, timed: Sequence[int]) -> NDArray:
    """Interpolate between the exits that were timed, since layers take about the same time: (exits,)."""
    if len(timed) == len(layers):
        return means
    start = [] if layers[timed[0]] == 0 else [0.0]
    return np.interp(layers, [*start, *layers[list(timed)]], [*start, *means])


def _time_walk(runtime: Runtime, asked: Sequence[int], text: Tokens) -> list[float]:
    """Run a text through all layers and ask some exits: the seconds until each has decided."""
    stepper = Stepper(policy_that_asks_all(runtime.problem_type), len(asked))
    seconds: list[float] = []
    memory: Memory = {}
    started = time.perf_counter()
    state, depth = runtime.embed(text), 0
    for place, number in enumerate(asked):
        layer = runtime.exit_layers[number]
        state, depth = runtime.advance(state, range(depth + 1, layer + 1)), layer
        step = stepper.step(runtime.logits_at(state, number), memory, place)
        memory, _ = step.memory, (step.score >= NEVER).nonzero()
        seconds.append(time.perf_counter() - started)
    return seconds


def _time_passage(runtime: ExitingRuntime, stops: Sequence[int], text: Tokens) -> list[float]:
    """Run a text to exits, in one call each: the seconds that each takes."""
    seconds: list[float] = []
    for number in stops:
        started = time.perf_counter()
        runtime.run_to(text, number)
        seconds.append(time.perf_counter() - started)
    return seconds
