"""Keep batches full across depths: texts that go on wait for others of their depth, if and only if that pays.

A text that leaves makes its batch smaller, and a small batch runs at a fraction of the speed. So texts that go on are
run at once where enough of them are left, and otherwise wait until survivors of the next batches join them. At the end
of the input the shallowest go first, for the deeper ones wait for them. Encoders whose layers share their weights run
texts of any depth together.

Nothing here knows how a layer is run: a `Runtime` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from exitpoll.decisions import probability_of
from exitpoll.policy import Policy
from exitpoll.tasks import predictions

FULL_TOKENS = 512  # tokens in a call beyond which larger calls are hardly faster
LIKE_LENGTH = 1.3  # texts wait only for others that are at most so much longer: padding costs too

Tokens = Mapping[str, Sequence[Sequence[int]]]  # input_ids, attention_mask, …: (texts, tokens of each), unpadded


class Runtime(Protocol):
    """What runs embeddings, layers and heads on a state of its own kind, which holds the rows of a batch."""

    layers: Sequence[int]  # of each exit
    classes: int
    problem_type: str
    shares_layers: bool  # whether texts of different depths can run in one call

    def embed(self, tokens: Tokens) -> Any:
        """Make the state that enters layer 1."""

    def advance(self, state: Any, layer: int) -> Any:
        """Run layer `layer`, counted from 1."""

    def answer(self, state: Any, exit_number: int) -> NDArray:
        """Ask the head of an exit: logits, (texts, classes)."""

    def take(self, state: Any, rows: NDArray) -> Any:
        """Keep some rows, no longer than the longest of them."""

    def join(self, states: Sequence[Any]) -> Any:
        """Put rows of several states into one."""

    def tokens_in(self, state: Any) -> int:
        """Count the tokens of its longest row."""


@dataclass(frozen=True)
class Batch:
    """Tokenised texts that start together."""

    rows: NDArray  # (texts,) the number of each text
    tokens: Tokens


@dataclass(frozen=True)
class Left:
    """Texts that leave together."""

    rows: NDArray  # (texts,) the number of each text
    exit_number: int
    answer: NDArray  # (texts,), or (texts, classes)
    probability: NDArray


@dataclass
class _Group:
    """Texts on their way."""

    rows: NDArray  # (texts,) the number of each text
    state: Any
    depth: NDArray  # (texts,) layers run so far
    history: NDArray  # (texts, exits, classes) what every exit has said


class Flow:
    """Texts on their way through a model; one for each job."""

    def __init__(self, runtime: Runtime, policy: Policy, batch_size: int, *, refill: bool = True) -> None:
        """Get ready.

        Args:
            runtime: Runs layers and heads.
            policy: Says when to leave.
            batch_size: Most texts in a call.
            refill: Whether texts may wait for others.
        """
        self.runtime, self.policy, self.batch_size, self.refill = runtime, policy, batch_size, refill
        self.levels, self.ends = policy.levels(len(runtime.layers)), policy.ends(runtime.layers)
        asked = np.flatnonzero(self.ends)[:1] if policy.threshold is None else range(len(runtime.layers))
        self.exits = {runtime.layers[number]: int(number) for number in asked}  # whoever never leaves asks one head
        self.waiting: dict[tuple[int, int], list[_Group]] = {}  # by depth, 0 where layers share weights, and length

    def run(self, batches: Iterable[Batch]) -> Iterator[Left]:
        """Send batches through.

        Args:
            batches: Tokenised texts, those of like length next to each other.

        Yields:
            Texts, as they leave.
        """
        for batch in batches:
            yield from self._go_on(self._start(batch))
        while self.waiting:
            yield from self._go_on(self._joined(min(self.waiting)))

    def _start(self, batch: Batch) -> _Group:
        """Embed a batch."""
        texts, runtime = len(batch.rows), self.runtime
        history = np.zeros((texts, len(runtime.layers), runtime.classes), dtype=np.float32)
        return _Group(batch.rows, runtime.embed(batch.tokens), np.zeros(texts, dtype=np.int64), history)

    def _go_on(self, group: _Group) -> Iterator[Left]:
        """Run a group layer by layer until it has left or too few are left of it to go on alone."""
        while len(group.rows):
            layer = int(group.depth[0]) + 1
            group.state = self.runtime.advance(group.state, layer)
            group.depth = group.depth + 1
            left, group = self._ask(group)
            yield from left
            if len(group.rows) and not self._is_enough(group):
                key = self._key(group)
                self.waiting.setdefault(key, []).append(group)
                if not self._is_ready(key):
                    return
                group = self._joined(key)

    def _key(self, group: _Group) -> tuple[int, int]:
        """Say with whom a group may be joined."""
        length = int(math.log(self.runtime.tokens_in(group.state), LIKE_LENGTH))
        return 0 if self.runtime.shares_layers else int(group.depth[0]), length

    def _enough(self, group: _Group) -> int:
        """Count the texts that make a call fast enough."""
        return min(self.batch_size, max(1, FULL_TOKENS // self.runtime.tokens_in(group.state)))

    def _is_enough(self, group: _Group) -> bool:
        """Whether a group should go on by itself."""
        return not self.refill or len(group.rows) >= self._enough(group)

    def _is_ready(self, key: tuple[int, int]) -> bool:
        """Whether those who wait are enough together."""
        groups = self.waiting[key]
        return sum(len(group.rows) for group in groups) >= self._enough(groups[-1])

    def _joined(self, key: tuple[int, int]) -> _Group:
        """Make one group of those who wait."""
        groups = self.waiting.pop(key)
        if len(groups) == 1:
            return groups[0]
        return _Group(
            np.concatenate([group.rows for group in groups]),
            self.runtime.join([group.state for group in groups]),
            np.concatenate([group.depth for group in groups]),
            np.concatenate([group.history for group in groups]),
        )

    def _ask(self, group: _Group) -> tuple[list[Left], _Group]:
        """Ask the heads at this depth and let those leave who may."""
        left, stays = [], np.ones(len(group.rows), dtype=bool)
        for depth in np.unique(group.depth):
            number = self.exits.get(int(depth))
            if number is not None:
                here = np.flatnonzero(group.depth == depth)
                leaving, answer = self._hear(group, here, number)
                if len(leaving):
                    probability = probability_of(group.history[leaving, number], answer, self.policy.problem_type)
                    left.append(Left(group.rows[leaving], number, answer, probability))
                    stays[leaving] = False
        if stays.all():
            return left, group
        kept = np.flatnonzero(stays)
        state = self.runtime.take(group.state, kept) if len(kept) else None
        return left, _Group(group.rows[kept], state, group.depth[kept], group.history[kept])

    def _hear(self, group: _Group, here: NDArray, number: int) -> tuple[NDArray, NDArray]:
        """Hear the head of an exit on some of a group: which of them leave, and what they are answered."""
        whole = len(here) == len(group.rows)
        state = group.state if whole else self.runtime.take(group.state, here)
        group.history[here, number] = self.runtime.answer(state, number)
        heads = group.history[here, number]
        if self.policy.threshold is None:  # one exit is asked, and its head answers
            return here, predictions(heads, self.policy.problem_type)
        opinion = self.policy.opinion(group.history[here, : number + 1])
        fired = opinion.score[:, -1] >= self.levels[number]
        leaves = fired | self.ends[number]
        return here[leaves], self.policy.answers(fired[leaves], opinion.answer[leaves, -1], heads[leaves])
