"""The parts of the engine's wall-clock time: tokenizing, embedding, layers, heads, decisions, gathering."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from exitpoll.data.batching import Text
from exitpoll.decide.incremental import Stepper
from exitpoll.decide.policy import Policy
from exitpoll.engine.engine import Engine
from exitpoll.engine.runtime import LoadedModel, Runtime
from exitpoll.engine.walks import ExitByExit, Walk

PARTS = {  # method -> the part of the work that it does
    "tokenize": "tokenizing",
    "embed": "embedding",
    "advance": "layers",
    "pass_exits": "layers with exits",
    "logits_at": "heads",
    "step": "decision",
    "answers": "decision",
    "gather": "gathering",
}


@dataclass(frozen=True)
class Breakdown:
    """The engine's wall-clock time by parts."""

    runtime: str
    batch_size: int
    milliseconds: Mapping[str, float]  # a text, by part; "other" is scheduling


def break_down(kind: str, model: LoadedModel, policy: Policy, texts: Sequence[Text], batch_size: int) -> Breakdown:
    """Measure the parts of the engine's time.

    Args:
        kind: The name of the runtime: "torch", "onnx" or "onnx-int8".
        model: The model in this runtime.
        policy: When to exit.
        texts: Texts to predict.
        batch_size: The bound on memory, as for an engine.

    Returns:
        The time of every part.
    """
    clock = dict.fromkeys(PARTS.values(), 0.0)
    timed = cast(LoadedModel, _Timed(model, clock))
    runtime = cast(Runtime, _Timed(model.runtime, clock))
    engine = Engine(replace(model, runtime=runtime, tokenize=timed.tokenize), policy)
    engine.walk = _timed_walk(engine.walk, clock)
    engine(texts[: 2 * batch_size], batch_size)
    clock.update(dict.fromkeys(clock, 0.0))
    started = time.perf_counter()
    engine(texts, batch_size)
    total = time.perf_counter() - started
    clock["other"] = total - sum(clock.values())
    parts = {part: round(1000 * seconds / len(texts), 4) for part, seconds in clock.items()}
    return Breakdown(kind, batch_size, parts)


def _timed_walk(walk: Walk, clock: dict[str, float]) -> Walk:
    """Put clocks around what decides."""
    if isinstance(walk, ExitByExit):
        walk.stepper = cast(Stepper, _Timed(walk.stepper, clock))
        walk.policy = cast(Policy, _Timed(walk.policy, clock))
    return walk


class _Timed:
    """An object whose methods are timed."""

    def __init__(self, inner: object, clock: dict[str, float]) -> None:
        """Wrap an object; `clock` counts the seconds of every part."""
        self._inner, self._clock = inner, clock

    def __getattr__(self, name: str) -> object:
        """Return the attribute of the object itself; methods that are parts of the work with a clock around them."""
        attribute = getattr(self._inner, name)
        if name not in PARTS:
            return attribute

        def timed(*arguments: object) -> object:
            started = time.perf_counter()
            result = attribute(*arguments)
            self._clock[PARTS[name]] += time.perf_counter() - started
            return result

        return timed
