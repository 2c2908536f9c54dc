"""Early exit in full batches: texts that need more layers wait for others at the same depth, where that pays.

A text that exits makes its batch smaller, and small batches run at a fraction of the throughput. So the rest of a batch
runs on at once only if it is large enough. Otherwise it waits until the rest of later batches, of similar length, joins
it. At the end of the input the shallowest groups run first, because deeper ones may still be joined by them, and groups
of any length are joined if the call saved is worth more than the padding added. Texts at different depths run in one
call where the layers of the encoder share their weights.

How texts run from exit to exit is left to a `Walk`; what a call costs, and so what pays, is measured: `CallCosts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import batches, calls
from exitpoll.engine.costs import CallCosts
from exitpoll.engine.runtime import Runtime
from exitpoll.engine.walks import Batch, Departure, Group, Walk, first_group, joined

SIMILAR_LENGTH = 1.3  # texts wait for others that are at most this many times as long
LONGEST_WAIT = 8192  # texts that may start while others wait

Key = tuple[int, int]  # texts that may wait together: depth (0 where layers share their weights), class of length


class Scheduler:
    """The texts of one job on their way through a model."""

    def __init__(self, runtime: Runtime, walk: Walk, costs: CallCosts, *, refill: bool = True) -> None:
        """Prepare a job.

        Args:
            runtime: Runs layers and heads.
            walk: Runs groups from exit to exit.
            costs: What calls cost.
            refill: Whether texts may wait for others.
        """
        self.runtime, self.walk, self.costs, self.refill = runtime, walk, costs, refill
        self.most_tokens = 1  # in a call, with padding: the bound on memory
        self.waiting: dict[Key, list[Group]] = {}
        self.since: dict[Key, int] = {}  # how many texts had started when the first began to wait
        self.started, self.ended = 0, False

    def calls(self, lengths: NDArray, batch_size: int) -> Iterator[NDArray]:
        """Decide which texts start together.

        Args:
            lengths: Tokens of the texts, (texts,).
            batch_size: A call has at most as many tokens as so many of the longest texts; 1 is one text at a time.

        Yields:
            The rows of a call.
        """
        self.most_tokens = max(self.most_tokens, batch_size * int(lengths.max()))
        if batch_size == 1:
            yield from batches(lengths, 1)
        else:
            yield from calls(lengths, min(self.most_tokens, self.costs.best_tokens), self.costs.call_tokens)

    def run(self, started: Iterable[Batch]) -> Iterator[Departure]:
        """Run batches until all their texts have left.

        Args:
            started: Tokenized texts, sorted by length as far as possible.

        Yields:
            Texts, as they leave.
        """
        for batch in started:
            self.started += len(batch.numbers)
            yield from self._run(first_group(self.runtime, batch))
            while (key := self._overdue()) is not None:
                yield from self._run(self._join_up_to_a_call(key, self._end_wait(key)))
        self.ended = True
        while self.waiting:
            yield from self._run(self._shallowest())

    def _run(self, group: Group | None) -> Iterator[Departure]:
        """Run a group from exit to exit until all its texts have left or too few remain for a call of their own."""
        while group is not None:
            departures, stay = self.walk.run(group, self._enough(group))
            yield from departures
            group = None if stay is None else self._refill(stay)

    def _enough(self, group: Group) -> int:
        """Return how many texts of a group must stay for a call of their own."""
        if not self.refill or (self.ended and not self.waiting):
            return 1
        return min(len(group), -(-self.costs.enough_tokens // group.tokens))

    # ---- full batches -----------------------------------------------------------------------------------------------

    def _refill(self, group: Group) -> Group | None:
        """Return the group to run next, after those too small for a call of their own have been put to wait."""
        if not self.refill or len(group) * group.tokens >= self.costs.enough_tokens:
            return joined(self.runtime, [group])
        depth = 0 if self.runtime.shares_layers else int(group.depth[0])
        key = depth, int(math.log(group.tokens, SIMILAR_LENGTH))
        self._wait(key, group)
        together = sum(map(len, self.waiting[key])) * max(group.tokens for group in self.waiting[key])
        if together < min(self.costs.enough_tokens, self.most_tokens):
            return None
        return self._join_up_to_a_call(key, self._end_wait(key))

    def _wait(self, key: Key, group: Group) -> None:
        """Let a group wait for others."""
        self.waiting.setdefault(key, []).append(group)
        self.since.setdefault(key, self.started)

    def _overdue(self) -> Key | None:
        """Return the key of groups that have waited too long, if any; running them may make others wait."""
        return next((key for key, since in self.since.items() if self.started - since > LONGEST_WAIT), None)

    def _end_wait(self, key: Key) -> list[Group]:
        """Remove and return the groups that wait together."""
        del self.since[key]
        return self.waiting.pop(key)

    def _shallowest(self) -> Group:
        """Return the group to run next at the end of the input: the longest of the shallowest, joined by others.

        Shorter groups of the same depth join it where their padding costs less than a call.
        """
        depth = min(self.waiting)[0]
        keys = sorted((key for key in self.waiting if key[0] == depth), reverse=True)
        longest = max(group.tokens for group in self.waiting[keys[0]])
        together = []
        for key in keys:
            for group in self._end_wait(key):
                if key == keys[0] or len(group) * (longest - group.tokens) <= self.costs.call_tokens:
                    together.append(group)
                else:
                    self._wait(key, group)
        return self._join_up_to_a_call(keys[0], together)

    def _join_up_to_a_call(self, key: Key, groups: Sequence[Group]) -> Group:
        """Join groups up to the size of a call; the rest waits."""
        longest = max(group.tokens for group in groups)
        together, room = [], max(1, self.most_tokens // longest)  # texts
        for group in groups:
            fits = min(room, len(group))
            if fits:
                together.append(group if fits == len(group) else group.select(np.arange(fits)))
            if fits < len(group):
                self._wait(key, group.select(np.arange(fits, len(group))))
            room -= fits
        return joined(self.runtime, together)
