"""Early exit in full batches: texts that need more layers wait for others at the same depth, where that pays.

A text that exits makes its batch smaller, and small batches run at a fraction of the throughput. So the rest of a batch
runs on at once only if it is large enough. Otherwise it waits until the rest of later batches, of similar length, joins
it. At the end of the input the shallowest groups run first, because deeper ones may still be joined by them, and groups
of any length are joined if the call saved is worth more than the padding added. Texts at different depths run in one
call where the layers of the encoder share their weights.

How a layer is run is left to the `Runtime`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Tokens, lengths_of
from exitpoll.decide.decisions import probability_of
from exitpoll.decide.incremental import Stepper, join, replaced, select
from exitpoll.decide.metrics import predictions
from exitpoll.decide.policy import Policy
from exitpoll.decide.steps import Memory
from exitpoll.engine.runtime import Runtime, State

FULL_TOKENS = 512  # tokens in a call beyond which larger calls are hardly faster
CALL_TOKENS = 48  # overhead of a call, in tokens
SIMILAR_LENGTH = 1.3  # texts wait for others that are at most this many times as long
LONGEST_WAIT = 8192  # texts that may start while others wait

Key = tuple[int, int]  # texts that may wait together: depth (0 where layers share their weights), class of length


@dataclass(frozen=True)
class Batch:
    """Tokenized texts that start together."""

    numbers: NDArray  # (texts,) their numbers in the input
    tokens: Tokens


@dataclass(frozen=True)
class Departure:
    """Texts that leave together."""

    numbers: NDArray  # (texts,) their numbers in the input
    exit_number: int
    answer: NDArray  # (texts,), or (texts, classes)
    probability: NDArray
    is_finite: NDArray  # (texts,) whether the head's logits are finite
    logits: NDArray  # (texts, classes) of the head at that exit
    lengths: NDArray  # (texts,) tokens


@dataclass
class _Group:
    """Texts that run together."""

    numbers: NDArray  # (texts,) their numbers in the input
    lengths: NDArray  # (texts,) tokens
    depth: NDArray  # (texts,) layers run so far; different ones only where layers share their weights
    memory: Memory  # of the policy's strategy: what the exits so far left
    state: State  # holds these texts, and maybe others that have left
    rows: NDArray | None = None  # (texts,) their rows in the state; None for all of it

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.numbers)

    @property
    def tokens(self) -> int:
        """Tokens of the longest text."""
        return int(self.lengths.max())

    def select(self, texts: NDArray) -> _Group:
        """Pick some texts; the state stays as it is until they run again."""
        rows = texts if self.rows is None else self.rows[texts]
        memory = select(self.memory, texts)
        return _Group(self.numbers[texts], self.lengths[texts], self.depth[texts], memory, self.state, rows)


class Scheduler:
    """The texts of one job on their way through a model."""

    def __init__(self, runtime: Runtime, policy: Policy, batch_size: int, *, refill: bool = True) -> None:
        """Prepare a job.

        Args:
            runtime: Runs layers and heads.
            policy: Decides when to exit.
            batch_size: Most texts in a call.
            refill: Whether texts may wait for others.
        """
        self.runtime, self.policy, self.batch_size, self.refill = runtime, policy, batch_size, refill
        self.levels = policy.levels(len(runtime.exit_layers)).tolist()
        self.ends = policy.ends(runtime.exit_layers).tolist()
        self.stepper = Stepper(policy, len(runtime.exit_layers))
        # A policy that never exits early asks one head.
        asked = [self.ends.index(True)] if policy.threshold is None else range(len(runtime.exit_layers))
        self.exits = {runtime.exit_layers[number]: number for number in asked}  # by depth, rising
        self.layers_to_exit = [  # by depth
            next(layer - depth for layer in self.exits if layer > depth) for depth in range(max(self.exits))
        ]
        self.waiting: dict[Key, list[_Group]] = {}
        self.since: dict[Key, int] = {}  # how many texts had started when the first began to wait
        self.started = 0

    def run(self, batches: Iterable[Batch]) -> Iterator[Departure]:
        """Run batches until all their texts have left.

        Args:
            batches: Tokenized texts, sorted by length as far as possible.

        Yields:
            Texts, as they leave.
        """
        for batch in batches:
            self.started += len(batch.numbers)
            yield from self._run(self._start(batch))
            while (key := self._overdue()) is not None:
                yield from self._run(self._join_up_to_batch_size(key, self._end_wait(key)))
        while self.waiting:
            yield from self._run(self._shallowest())

    def _start(self, batch: Batch) -> _Group:
        """Embed a batch."""
        depth = np.zeros(len(batch.numbers), dtype=np.int64)
        return _Group(batch.numbers, lengths_of(batch.tokens), depth, {}, self.runtime.embed(batch.tokens))

    def _run(self, group: _Group | None) -> Iterator[Departure]:
        """Run a group from exit to exit until all its texts have left or too few remain for a call of their own."""
        while group is not None:
            self._advance(group)
            departures, stays = self._ask_heads(group)
            yield from departures
            group = self._refill(group if stays is None else group.select(stays.nonzero()[0]))

    def _advance(self, group: _Group) -> None:
        """Run a group until the first of its texts reaches an exit."""
        depths = self._depths_of(group)
        steps = min(self.layers_to_exit[depth] for depth in depths)
        first = min(depths) + 1  # where depths differ, all layers have the same weights
        group.state = self.runtime.advance(group.state, range(first, first + steps))
        group.depth = group.depth + steps

    def _depths_of(self, group: _Group) -> set[int]:
        """Return the depths of the texts of a group: one, unless the layers share their weights."""
        return set(group.depth.tolist()) if self.runtime.shares_layers else {int(group.depth[0])}

    # ---- heads and decisions ----------------------------------------------------------------------------------------

    def _ask_heads(self, group: _Group) -> tuple[list[Departure], NDArray | None]:
        """Ask the heads at this depth: the texts that leave, and flags of those that stay, (texts,); None for all."""
        departures: list[Departure] = []
        stays = None
        for number, rows in self._exits_of(group):
            logits = self.runtime.logits_at(group.state, number, rows)
            leaving, answer = self._decide(group, number, rows, logits)
            if not len(leaving):
                continue
            logits = logits[leaving]
            leaving = leaving if rows is None else rows[leaving]
            stays = np.ones(len(group), dtype=bool) if stays is None else stays
            stays[leaving] = False
            probability = probability_of(logits, answer, self.policy.problem_type)
            is_finite = np.isfinite(logits).all(axis=1)
            numbers, lengths = group.numbers[leaving], group.lengths[leaving]
            departures.append(Departure(numbers, number, answer, probability, is_finite, logits, lengths))
        return departures, stays

    def _exits_of(self, group: _Group) -> list[tuple[int, NDArray | None]]:
        """List the exits that texts of a group have reached, with the rows of these texts; None for all."""
        depths = self._depths_of(group)
        if len(depths) == 1:
            return [(self.exits[depths.pop()], None)]
        reached = sorted(depths & self.exits.keys())
        return [(self.exits[depth], (group.depth == depth).nonzero()[0]) for depth in reached]

    def _decide(self, group: _Group, number: int, rows: NDArray | None, logits: NDArray) -> tuple[NDArray, NDArray]:
        """Return which of the texts at an exit leave, and their answers; the others remember what was said."""
        if self.policy.threshold is None:  # one exit is asked, and its head answers
            return np.arange(len(logits)), predictions(logits, self.policy.problem_type)
        memory = {} if number == 0 else group.memory if rows is None else select(group.memory, rows)
        step = self.stepper.step(logits, memory, number)
        group.memory = step.memory if rows is None else replaced(group.memory, step.memory, rows, len(group))
        fired = step.score >= self.levels[number]
        leaving = np.arange(len(logits)) if self.ends[number] else fired.nonzero()[0]
        if not len(leaving):
            return leaving, leaving
        return leaving, self.policy.answers(fired[leaving], step.answer[leaving], logits[leaving])

    # ---- full batches -----------------------------------------------------------------------------------------------

    def _refill(self, group: _Group) -> _Group | None:
        """Return the group to run next, after those too small for a call of their own have been put to wait."""
        if not len(group):
            return None
        if not self.refill or len(group) == self.batch_size:
            return self._joined([group])
        enough = min(self.batch_size, -(-FULL_TOKENS // group.tokens))
        if len(group) >= enough:
            return self._joined([group])
        depth = 0 if self.runtime.shares_layers else int(group.depth[0])
        key = depth, int(math.log(group.tokens, SIMILAR_LENGTH))
        self._wait(key, group)
        if sum(map(len, self.waiting[key])) < enough:
            return None
        return self._join_up_to_batch_size(key, self._end_wait(key))

    def _wait(self, key: Key, group: _Group) -> None:
        """Let a group wait for others."""
        self.waiting.setdefault(key, []).append(group)
        self.since.setdefault(key, self.started)

    def _overdue(self) -> Key | None:
        """Return the key of groups that have waited too long, if any; running them may make others wait."""
        return next((key for key, since in self.since.items() if self.started - since > LONGEST_WAIT), None)

    def _end_wait(self, key: Key) -> list[_Group]:
        """Remove and return the groups that wait together."""
        del self.since[key]
        return self.waiting.pop(key)

    def _shallowest(self) -> _Group:
        """Return the group to run next at the end of the input: the longest of the shallowest, joined by others.

        Shorter groups of the same depth join it where their padding costs less than a call.
        """
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
        return self._join_up_to_batch_size(keys[0], together)

    def _join_up_to_batch_size(self, key: Key, groups: Sequence[_Group]) -> _Group:
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
        """Return one group, with a state that holds its texts alone."""
        first = groups[0]
        if len(groups) == 1 and first.rows is None:
            return first
        state = self.runtime.gather([(group.state, group.rows) for group in groups])
        if len(groups) == 1:
            first.state, first.rows = state, None
            return first
        return _Group(
            np.concatenate([group.numbers for group in groups]),
            np.concatenate([group.lengths for group in groups]),
            np.concatenate([group.depth for group in groups]),
            join([group.memory for group in groups], [len(group) for group in groups]),
            state,
        )
