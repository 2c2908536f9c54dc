"""A server in virtual time: calls of a runtime made of numbers move a clock by what they cost, texts arrive on it.

The scheduler is the real one; only layers and heads are replaced by their costs. So capacity and latency do not depend
on the machine, and a change of the scheduler that costs some of either shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exitpoll import Policy
from exitpoll.engine.costs import CallCosts
from exitpoll.engine.live import LiveScheduler
from tests.numbers_runtime import Numbers

LAYERS = 12
TOKEN = 4e-5  # seconds that a token takes in a layer
HEAD = 1.0  # tokens that a head and its decision take beside those of a text
EXITS, NEVER = Policy("max_prob", 0.9), Policy()
PATIENCE = 10  # times a text at full depth


class Costed(Numbers):
    """A runtime that moves a clock; the state of a text is its depth and its length in one number."""

    exit_layers = tuple(range(1, LAYERS + 1))  # type: ignore[assignment]

    def __init__(self, call_tokens: float) -> None:
        super().__init__()
        self.call_tokens, self.now = call_tokens, 0.0

    def clock(self) -> float:
        return self.now

    def embed(self, tokens):
        return np.array([1000 * ids[0] + len(ids) for ids in tokens["input_ids"]])

    def advance(self, state, layers):
        self.now += TOKEN * len(layers) * (self.call_tokens + len(state) * int((state % 1000).max()))
        return state

    def logits_at(self, state, exit_number, rows=None):
        texts = state if rows is None else state[rows]
        self.now += TOKEN * (HEAD + 0.1 * len(texts))
        clear = np.where(self.exit_layers[exit_number] >= texts // 1000, 4.0, 0.0)
        return np.stack([clear, -clear], axis=-1).astype(np.float32)


@dataclass(frozen=True)
class Traffic:
    """Texts that arrive, at a rate of 1 a second."""

    depths: NDArray  # (texts,) at which each would leave
    lengths: NDArray  # (texts,) tokens
    times: NDArray  # (texts,) rising

    @classmethod
    def drawn(cls, texts: int, tokens: int, seed: int) -> Traffic:
        """Draw texts that leave after a mean of about 4 layers."""
        chance = np.random.default_rng(seed)
        depths = np.minimum(chance.geometric(0.225, texts), LAYERS)
        lengths = np.clip(chance.normal(tokens, tokens / 4, texts).round().astype(int), 3, 2 * tokens)
        return cls(depths, lengths, np.cumsum(chance.exponential(1.0, texts)))

    @property
    def speedup(self) -> float:
        """All layers by those that are run."""
        return LAYERS * self.lengths.sum() / (self.depths * self.lengths).sum()

    def tokens(self, rows: list[int]) -> dict[str, list[list[int]]]:
        """Return some texts as token ids."""
        return {"input_ids": [[int(self.depths[row])] * int(self.lengths[row]) for row in rows]}


def latencies(traffic: Traffic, rate: float, policy: Policy, call_tokens: float, *, refill: bool = True) -> NDArray:
    """Serve the texts at a rate.

    Args:
        traffic: The texts.
        rate: Texts a second.
        policy: When they exit.
        call_tokens: Overhead of a call, in tokens.
        refill: Whether texts may start while others are half-way.

    Returns:
        Seconds from arrival to departure, (texts,).
    """
    runtime, arrived = Costed(call_tokens), traffic.times / rate
    costs = CallCosts(call_tokens=call_tokens, best_tokens=512)
    scheduler = LiveScheduler(runtime, costs, clock=runtime.clock)
    left, rows, waiting = np.zeros(len(arrived)), {}, 0
    while waiting < len(arrived) or scheduler.texts:
        if not scheduler.texts:
            runtime.now = max(runtime.now, arrived[waiting])
        if refill or not scheduler.texts:
            ready = list(range(waiting, int(np.searchsorted(arrived, runtime.now, side="right"))))
            rows |= dict(zip(scheduler.submit(traffic.tokens(ready), policy), ready, strict=True)) if ready else {}
            waiting += len(ready)
        for departure in scheduler.step().departures:
            left[[rows[number] for number in departure.numbers.tolist()]] = runtime.now
    return left - arrived


def capacity(run: Callable[[float], NDArray], limit: float, first: float) -> float:
    """Find the largest rate at which 99 % of the texts leave within a limit, to 3 %."""
    low, high = 0.0, math.inf
    rate = first
    while not low or high / low > 1.03:
        if np.quantile(run(rate), 0.99) <= limit:
            low = rate
        else:
            high = rate
        rate = rate * 1.3 if high == math.inf else rate / 1.3 if not low else math.sqrt(low * high)
    return low


def full_depth_seconds(traffic: Traffic, call_tokens: float) -> float:
    """Return the mean time of a text alone through all layers."""
    return float(TOKEN * (LAYERS * (call_tokens + traffic.lengths.mean()) + HEAD))
