"""Texts that arrive while others are half-way: which of them share the next call.

A job knows all its texts, and `Scheduler` lets some of them wait for better calls. A server does not know what will
come. Here the text that is due first always runs next: `max_wait` after its arrival, or at its deadline if that is
sooner. So newer texts go first for `max_wait` at most, as long as their deadlines are nearer: a text that comes later
is due later, and one whose deadline has passed is dropped. Other texts at its depth share its call where the call saved
is worth more than the padding added. Texts of different policies share a call if the policies decide exit by exit:
layers run once for all, then each policy asks its heads. No text waits for company while the model is idle.

Texts that are never due run in the background: when no other text is under way, and one by one, so that a text that
arrives waits for one of them at most.

A text is answered as it would be alone, whatever it shared calls with. If a call fails, its texts run again one by one,
and only those fail that fail alone.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import TypeVar

import numpy as np

from exitpoll.data.batching import Tokens
from exitpoll.decide.policy import Policy
from exitpoll.engine.arrivals import (
    Arrival,
    Failure,
    Member,
    Step,
    by_walk,
    kind_of,
    part_of,
    run_side_by_side,
    shape_of,
    with_depth_cap,
)
from exitpoll.engine.costs import USUAL, CallCosts
from exitpoll.engine.runtime import Runtime, State
from exitpoll.engine.walks import Batch, Explained, Group, Walk, first_group, joined, walk_for

MAX_WAIT = 0.02  # seconds after its arrival that a text is due, and goes before all that are newer
NEVER = math.inf  # when texts in the background are due
LOOK_AHEAD = 128  # texts or groups that are considered for sharing a call

Lane = tuple[int, int]  # groups that may share a call: what `kind_of` returns, depth
Item = TypeVar("Item", bound=Arrival | Member)


@dataclass
class LiveScheduler:
    """Texts on their way through a model, each with its policy; all methods are for one thread.

    Args:
        runtime: The model.
        costs: What calls cost.
        most_tokens: Most tokens in a call, with padding; a longer text is alone.
        clock: Seconds, for deadlines.
        on_call: Told the numbers of the texts of every call before it begins.
        max_wait: Seconds after its arrival that a text is due, unless its deadline is sooner.
    """

    runtime: Runtime
    costs: CallCosts = USUAL
    most_tokens: int | None = None
    clock: Callable[[], float] = time.monotonic
    on_call: Callable[[Sequence[int]], None] = lambda numbers: None
    max_wait: float = MAX_WAIT
    texts: dict[int, Arrival] = field(default_factory=dict, init=False)  # under way
    queue: list[tuple[float, int]] = field(default_factory=list, init=False)  # not started: (due, number), rising
    pools: dict[Lane, list[Member]] = field(default_factory=dict, init=False)
    _deadlines: list[tuple[float, int]] = field(default_factory=list, init=False)  # a heap
    _walks: dict[tuple[int, int | None, bool], tuple[Policy, Walk]] = field(default_factory=dict, init=False)
    _alone: set[int] = field(default_factory=set, init=False)  # texts of a call that failed
    _next_number: int = field(default=0, init=False)
    _has_gone: bool = field(default=False, init=False)  # whether texts were cancelled since the last step

    def submit(
        self,
        tokens: Tokens,
        policy: Policy,
        max_depth: int | None = None,
        deadline: float | None = None,
        *,
        explain: bool = False,
        due: float | None = None,
        alone: bool = False,
    ) -> list[int]:
        """Add texts, which are scheduled one by one.

        Args:
            tokens: Tokenized texts.
            policy: When they exit.
            max_depth: Most layers to run, if fewer than by the policy.
            deadline: When their answers are of no use any more, on the scheduler's clock.
            explain: Whether their departures hold the logits of all exits asked.
            due: When they are due; by default `max_wait` from now, but at the deadline at the latest. Those that are
                never due (infinity) run in the background.
            alone: Whether they may share calls with no others, not even with each other.

        Returns:
            The number of every text, which its departure names.
        """
        walk = self.walk(policy, max_depth, explain=explain)
        if due is None:
            usual = self.clock() + self.max_wait
            due = usual if deadline is None else min(usual, deadline)
        numbers = list(range(self._next_number, self._next_number + len(tokens["input_ids"])))
        self._next_number += len(numbers)
        self._alone.update(numbers if alone or due == NEVER else ())
        for row, number in enumerate(numbers):
            own = {name: column[row] for name, column in tokens.items()}
            self.texts[number] = Arrival(number, own, walk, due, deadline)
            insort(self.queue, (due, number))
            if deadline is not None:
                heappush(self._deadlines, (deadline, number))
        return numbers

    def cancel(self, numbers: Iterable[int]) -> list[int]:
        """Drop texts; those that share a call with others leave it before its next layer.

        Args:
            numbers: Of the texts; any that have left already are ignored.

        Returns:
            The numbers of those that were under way.
        """
        gone = [number for number in numbers if self.texts.pop(number, None) is not None]
        self._has_gone |= bool(gone)
        return gone

    def expire(self) -> list[int]:
        """Drop the texts whose deadline has passed, and return their numbers."""
        late, now = [], self.clock()
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][1] not in self.texts):
            late.append(heappop(self._deadlines)[1])  # or has left: what is kept must not grow with the timeout
        return self.cancel(late)

    def step(self) -> Step:
        """Run one call: that of the text which is due first.

        Returns:
            The texts that left; nothing if there are no texts.
        """
        self._drop_cancelled()
        lane = min(self.pools, key=self._due_of, default=None)
        if self.queue and (lane is None or self.queue[0][0] < self._due_of(lane)):
            return self._start(self._take_new())
        return Step() if lane is None else self._continue(self._take_waiting(lane))

    def walk(self, policy: Policy, max_depth: int | None = None, *, explain: bool = False) -> Walk:
        """Return how texts of a policy run, which is prepared once.

        Args:
            policy: When they exit.
            max_depth: Most layers to run, if fewer than by the policy.
            explain: Whether to keep the logits of all exits asked.

        Returns:
            The walk.
        """
        if max_depth is not None and max_depth >= self.runtime.exit_layers[-1]:
            max_depth = None  # no cap; so there are no more walks than layers
        key = id(policy), max_depth, explain
        if key not in self._walks:
            capped = policy if max_depth is None else with_depth_cap(policy, max_depth)
            walk = Explained(self.runtime, capped) if explain else walk_for(self.runtime, capped)
            self._walks[key] = policy, walk  # the policy is kept, so that its id stays its own
        return self._walks[key][1]

    def forget(self, policy: Policy) -> None:
        """Let go of a policy that no further text will have; texts under way keep it."""
        self._walks = {key: kept for key, kept in self._walks.items() if kept[0] is not policy}

    def pool_texts(self) -> dict[int, int]:
        """Return how many texts wait half-way, by the layers that they have run."""
        depths = (depth for members in self.pools.values() for member in members for depth in member.group.depth)
        return {int(depth): count for depth, count in Counter(depths).items()}

    # ---- which texts share a call -----------------------------------------------------------------------------------

    def _due_of(self, lane: Lane) -> float:
        """Return when the first text of a lane is due."""
        return min(member.due for member in self.pools[lane])

    def _take_new(self) -> list[Arrival]:
        """Take the new text that is due first, and others that may start with it."""
        considered = [self.texts[number] for _, number in self.queue[:LOOK_AHEAD]]
        chosen = self._companions(considered)
        taken = {text.number for text in chosen}
        self.queue[:LOOK_AHEAD] = [entry for entry in self.queue[:LOOK_AHEAD] if entry[1] not in taken]
        return chosen

    def _take_waiting(self, lane: Lane) -> list[Member]:
        """Take the group of a lane that is due first, and others that may share its call."""
        members = sorted(self.pools.pop(lane), key=lambda member: member.due)
        chosen = self._companions(members[:LOOK_AHEAD])
        rest = [member for member in members if not any(member is taken for taken in chosen)]
        if rest:
            self.pools[lane] = rest
        return chosen

    def _companions(self, considered: Sequence[Item]) -> list[Item]:
        """Choose the first, and others whose padding costs less than a call of their own."""
        first, *others = considered
        texts, longest, kind = len(first.numbers), first.longest, kind_of(first.walk)
        chosen, most = [first], self.most_tokens or self.costs.best_tokens
        if self._alone.intersection(first.numbers):
            return chosen
        for item in others:
            if kind_of(item.walk) != kind or self._alone.intersection(item.numbers):
                continue
            count, longer = len(item.numbers), max(longest, item.longest)
            padding = texts * (longer - longest) + count * (longer - item.longest)
            if padding <= self.costs.call_tokens and (texts + count) * longer <= most:
                chosen.append(item)
                texts, longest = texts + count, longer
        return chosen

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _start(self, arrivals: Sequence[Arrival]) -> Step:
        """Run new texts to their first exit."""
        lengths = np.array([text.longest for text in arrivals])
        step = shape_of([text.number for text in arrivals], lengths, depth=0)
        self.on_call(step.numbers)
        try:
            tokens = {name: [text.tokens[name] for text in arrivals] for name in arrivals[0].tokens}
            batch = Batch(np.array(step.numbers), tokens)
            group = first_group(self.runtime, batch)
            members = [
                Member(group if len(rows) == len(arrivals) else part_of(group, rows), walk)
                for walk, rows in by_walk(arrivals)
            ]
            return self._run(step, members, group.state)
        except Exception as error:  # whatever a runtime may raise: the other texts go on
            if len(arrivals) == 1:
                return self._fail(step, error)
        for text in arrivals:
            self._alone.add(text.number)
            insort(self.queue, (text.due, text.number))
        return Step()

    def _continue(self, members: Sequence[Member]) -> Step:
        """Run groups that waited to their next exit."""
        numbers = [number for member in members for number in member.group.numbers.tolist()]
        lengths = np.concatenate([member.group.lengths for member in members])
        step = shape_of(numbers, lengths, depth=min(int(member.group.depth.min()) for member in members))
        self.on_call(numbers)
        before = [replace(member, group=copy(member.group)) for member in members]
        try:
            together = [self._join(walk, [members[row].group for row in rows]) for walk, rows in by_walk(members)]
            if len(together) == 1:
                [member] = together
                member.group = joined(self.runtime, [member.group])
                return self._run(step, together, member.group.state)
            return self._run(step, together, self._gather(together))
        except Exception as error:  # whatever a runtime may raise: the other texts go on
            if len(numbers) == 1:
                return self._fail(step, error)
        for member in before:
            for row, number in enumerate(member.group.numbers.tolist()):
                self._alone.add(number)
                self._wait(member.group.select(np.array([row])), member.walk)
        return Step()

    def _join(self, walk: Walk, groups: Sequence[Group]) -> Member:
        """Join the groups of one policy."""
        return Member(groups[0] if len(groups) == 1 else joined(self.runtime, groups), walk)

    def _gather(self, members: Sequence[Member]) -> State:
        """Gather the texts of several policies in one state, in which each group knows its rows."""
        state = self.runtime.gather([(member.group.state, member.group.rows) for member in members])
        start = 0
        for member in members:
            member.group.rows = np.arange(start, start + len(member.group))
            start += len(member.group)
        return state

    def _run(self, step: Step, members: Sequence[Member], state: State) -> Step:
        """Run groups that share a state to the next exit, or past several, and let those that stay wait."""
        if len(members) == 1:
            [member] = members
            departures, stay = member.walk.run(member.group, self._enough(member.group))
            stays = [] if stay is None else [(stay, member.walk)]
        else:
            departures, stays = run_side_by_side(self.runtime, members, state)
        for departure in departures:
            for number in departure.numbers.tolist():
                self.texts.pop(number, None)
                self._alone.discard(number)
        for group, walk in stays:
            self._wait(group, walk)
        return replace(step, departures=departures)

    def _enough(self, group: Group) -> int:
        """Return how many texts of a group must stay to run on in the same call: any, if no others are due."""
        is_first = not self.queue or self.queue[0][0] == NEVER
        if is_first and all(self._due_of(lane) == NEVER for lane in self.pools):
            return 1
        return min(len(group), -(-self.costs.enough_tokens // group.tokens))

    def _wait(self, group: Group, walk: Walk) -> None:
        """Let a group wait until it is due."""
        depth = 0 if self.runtime.shares_layers else int(group.depth[0])
        due = min(self.texts[number].due for number in group.numbers.tolist())
        self.pools.setdefault((kind_of(walk), depth), []).append(Member(group, walk, due))

    def _fail(self, step: Step, error: Exception) -> Step:
        """Give up a text that fails alone."""
        [number] = step.numbers
        self.texts.pop(number, None)
        self._alone.discard(number)
        return replace(step, failures=[Failure(number, error)])

    def _drop_cancelled(self) -> None:
        """Take texts that were cancelled out of queue and groups."""
        if not self._has_gone:
            return
        self._has_gone = False
        self._alone &= self.texts.keys()
        self.queue = [entry for entry in self.queue if entry[1] in self.texts]
        waiting = [member for members in self.pools.values() for member in members]
        self.pools = {}
        for member in waiting:
            alive = np.array([number in self.texts for number in member.group.numbers.tolist()])
            if alive.any():
                group = member.group if alive.all() else member.group.select(alive.nonzero()[0])
                self._wait(group, member.walk)
