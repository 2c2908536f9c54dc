"""Keep batches full across depths: texts that go on wait for others of their depth, if and only if that pays.

A text that leaves makes its batch smaller, and a small batch runs at a fraction of the speed. So texts that go on are
run at once where enough of them are left, and otherwise wait until survivors of the next batches, of like length, join
them. At the end of the input the shallowest go first, for the deeper ones wait for them, and groups of any length are
joined if the call that is saved is worth more than the padding that is added. Encoders whose layers share their
weights run texts of any depth together.

Nothing here knows how a layer is run: a `Runtime` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Tokens, lengths_of
from exitpoll.decide.decisions import probability_of
from exitpoll.decide.metrics import predictions
from exitpoll.decide.policy import Policy
from exitpoll.engine.runtime import Runtime

FULL_TOKENS = 512  # tokens in a call beyond which larger calls are hardly faster
CALL_TOKENS = 48  # what a call costs beside its tokens, in tokens
LIKE_LENGTH = 1.3  # texts wait for others that are at most so much longer
LONGEST_WAIT = 8192  # texts that may start while others wait

Key = tuple[int, int]  # who may wait together: depth, 0 where layers share their weights, and about how long


@dataclass(frozen=True)
class Batch:
    """Tokenized texts that start together."""

    numbers: NDArray  # (texts,) the number of each text
    tokens: Tokens


@dataclass(frozen=True)
class Departure:
    """Texts that leave together."""

    numbers: NDArray  # (texts,) the number of each text
    exit_number: int
    answer: NDArray  # (texts,), or (texts, classes)
    probability: NDArray
    is_finite: NDArray  # (texts,) whether the head said numbers


@dataclass
class _Group:
    """Texts on their way together."""

    numbers: NDArray  # (texts,) the number of each text
    lengths: NDArray  # (texts,) tokens of each
    depth: int | NDArray  # layers run so far; (texts,) where layers share their weights and texts of any depth mix
    history: NDArray  # (texts, exits, classes) what every exit has said
    state: Any  # holds them, and maybe others who have left
    rows: NDArray | None = None  # (texts,) where in the state they are; None for all of it

    def __len__(self) -> int:
        """Count the texts."""
        return len(self.numbers)

    @property
    def tokens(self) -> int:
        """Tokens of the longest."""
        return int(self.lengths.max())

    def select(self, texts: NDArray) -> _Group:
        """Pick some texts; the state stays as it is until it is run again."""
        depth = self.depth if isinstance(self.depth, int) else self.depth[texts]
        rows = texts if self.rows is None else self.rows[texts]
        return _Group(self.numbers[texts], self.lengths[texts], depth, self.history[texts], self.state, rows)


class Scheduler:
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
        self.levels, self.ends = (
            policy.levels(len(runtime.exit_layers)).tolist(),
            policy.ends(runtime.exit_layers).tolist(),
        )
        asked = [self.ends.index(True)] if policy.threshold is None else range(len(runtime.exit_layers))
        self.exits = {runtime.exit_layers[number]: number for number in asked}  # whoever never leaves asks one head
        depths = np.arange(max(self.exits))
        following = np.array(sorted(self.exits))[np.searchsorted(sorted(self.exits), depths, side="right")]
        self.next_exit = following if runtime.shares_layers else following.tolist()  # after each depth
        self.waiting: dict[Key, list[_Group]] = {}
        self.since: dict[Key, int] = {}  # how many texts had started when the first began to wait
        self.started = 0

    def run(self, batches: Iterable[Batch]) -> Iterator[Departure]:
        """Send batches through.

        Args:
            batches: Tokenized texts, those of like length next to each other.

        Yields:
            Texts, as they leave.
        """
        for batch in batches:
            self.started += len(batch.numbers)
            yield from self._go_on(self._start(batch))
            while (key := self._overdue()) is not None:
                yield from self._go_on(self._call(key, self._end_wait(key)))
        while self.waiting:
            yield from self._go_on(self._shallowest())

    def _start(self, batch: Batch) -> _Group:
        """Embed a batch."""
        texts, runtime = len(batch.numbers), self.runtime
        history = np.zeros((texts, len(runtime.exit_layers), runtime.classes), dtype=np.float32)
        depth = np.zeros(texts, dtype=np.int64) if runtime.shares_layers else 0
        return _Group(batch.numbers, lengths_of(batch.tokens), depth, history, runtime.embed(batch.tokens))

    def _go_on(self, group: _Group | None) -> Iterator[Departure]:
        """Run a group layer by layer until it has left or too few are left of it to go on alone."""
        while group is not None:
            self._advance(group)
            left, stay = self._ask(group)
            yield from left
            group = self._fill_up(group if stay is None else group.select(stay))

    def _advance(self, group: _Group) -> None:
        """Run a group to the next exit, or to where the first of its texts reaches one."""
        if isinstance(group.depth, int):
            exit_layer = self.next_exit[group.depth]
            group.state = self.runtime.advance(group.state, range(group.depth + 1, exit_layer + 1))
            group.depth = exit_layer
        else:
            steps = int((self.next_exit[group.depth] - group.depth).min())
            group.state = self.runtime.advance(group.state, [1] * steps)  # any layer: the weights are the same
            group.depth = group.depth + steps

    # ---- heads and decisions ----------------------------------------------------------------------------------------

    def _ask(self, group: _Group) -> tuple[list[Departure], NDArray | None]:
        """Ask the heads at this depth: who leaves, and which texts stay; None for all."""
        left, stays = [], None
        for number, here in self._exits_of(group):
            history = group.history if here is None else group.history[here]
            history[:, number] = self.runtime.logits_at(group.state, number, here)
            leaving, answer = self._decide(history, number)
            if here is not None:
                group.history[here] = history
                leaving = here[leaving]
            if len(leaving):
                stays = np.ones(len(group), dtype=bool) if stays is None else stays
                stays[leaving] = False
                heads = group.history[leaving, number]
                probability = probability_of(heads, answer, self.policy.problem_type)
                left.append(
                    Departure(group.numbers[leaving], number, answer, probability, np.isfinite(heads).all(axis=1))
                )
        return left, None if stays is None else np.flatnonzero(stays)

    def _exits_of(self, group: _Group) -> list[tuple[int, NDArray | None]]:
        """List the exits at which texts of a group are, and which texts; None for all."""
        if isinstance(group.depth, int):
            return [(self.exits[group.depth], None)]
        depths = [depth for depth in np.unique(group.depth).tolist() if depth in self.exits]
        return [(self.exits[depth], np.flatnonzero(group.depth == depth)) for depth in depths]

    def _decide(self, history: NDArray, number: int) -> tuple[NDArray, NDArray]:
        """Say which texts leave at an exit and what they are answered, by all that was said so far."""
        heads = history[:, number]
        if self.policy.threshold is None:  # one exit is asked, and its head answers
            return np.arange(len(heads)), predictions(heads, self.policy.problem_type)
        opinion = self.policy.opinion(history[:, : number + 1])
        fired = opinion.score[:, -1] >= self.levels[number]
        leaving = np.arange(len(heads)) if self.ends[number] else fired.nonzero()[0]
        if not len(leaving):
            return leaving, leaving
        return leaving, self.policy.answers(fired[leaving], opinion.answer[leaving, -1], heads[leaving])

    # ---- full batches -----------------------------------------------------------------------------------------------

    def _fill_up(self, group: _Group) -> _Group | None:
        """Let a group wait that is too small for a call of its own, and give what is to be run next, if anything."""
        if not len(group):
            return None
        if not self.refill or len(group) == self.batch_size:
            return self._joined([group])
        enough = min(self.batch_size, -(-FULL_TOKENS // group.tokens))
        if len(group) >= enough:
            return self._joined([group])
        key = group.depth if isinstance(group.depth, int) else 0, int(math.log(group.tokens, LIKE_LENGTH))
        self._wait(key, group)
        if sum(map(len, self.waiting[key])) < enough:
            return None
        return self._call(key, self._end_wait(key))

    def _wait(self, key: Key, group: _Group) -> None:
        """Let a group wait for others."""
        self.waiting.setdefault(key, []).append(group)
        self.since.setdefault(key, self.started)

    def _overdue(self) -> Key | None:
        """Find some who have waited for too long; asked anew each time, for those who are called may call others."""
        return next((key for key, since in self.since.items() if self.started - since > LONGEST_WAIT), None)

    def _end_wait(self, key: Key) -> list[_Group]:
        """Call those who wait together."""
        del self.since[key]
        return self.waiting.pop(key)

    def _shallowest(self) -> _Group:
        """Give what is to be run next when no more texts come: of the least depth, what is worth its padding."""
        depth = min(self.waiting)[0]
        keys = sorted((key for key in self.waiting if key[0] == depth), reverse=True)
        longest = max(group.tokens for group in self.waiting[keys[0]])
        together = []
        for key in keys:
            for group in self._end_wait(key):
                if key == keys[0] or len(group) * (longest - group.tokens) <= CALL_TOKENS:
                    together.append(group)
                else:
                    self._wait(key, group)
        return self._call(keys[0], together)

    def _call(self, key: Key, groups: Sequence[_Group]) -> _Group:
        """Join groups up to the size of a call; the rest waits."""
        together, room = [], self.batch_size
        for group in groups:
            fits = min(room, len(group))
            if fits:
                together.append(group if fits == len(group) else group.select(np.arange(fits)))
            if fits < len(group):
                self._wait(key, group.select(np.arange(fits, len(group))))
            room -= fits
        return self._joined(together)

    def _joined(self, groups: Sequence[_Group]) -> _Group:
        """Make one group, with a state that holds its texts alone."""
        first = groups[0]
        if len(groups) == 1 and first.rows is None:
            return first
        state = self.runtime.gather([(group.state, group.rows) for group in groups])
        if len(groups) == 1:
            first.state, first.rows = state, None
            return first
        depths = [np.atleast_1d(group.depth) for group in groups]
        return _Group(
            np.concatenate([group.numbers for group in groups]),
            np.concatenate([group.lengths for group in groups]),
            first.depth if isinstance(first.depth, int) else np.concatenate(depths),
            np.concatenate([group.history for group in groups]),
            state,
        )
