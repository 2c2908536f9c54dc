"""What a live scheduler is made of: texts under way, groups that wait, and what came of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.policy import Policy
from exitpoll.engine.runtime import Runtime, State
from exitpoll.engine.walks import Departure, ExitByExit, Group, PastExits, Walk


@dataclass(frozen=True)
class Arrival:
    """A text under way."""

    number: int
    tokens: Mapping[str, Sequence[int]]
    walk: Walk
    due: float  # on the scheduler's clock
    deadline: float | None = None

    @property
    def numbers(self) -> list[int]:
        """Its number."""
        return [self.number]

    @property
    def longest(self) -> int:
        """Its tokens."""
        return len(self.tokens["input_ids"])


@dataclass
class Member:
    """A group of texts of one policy that waits behind an exit, or shares a call with others."""

    group: Group
    walk: Walk
    due: float = 0.0  # of the text that is due first

    @property
    def numbers(self) -> list[int]:
        """Of its texts."""
        return self.group.numbers.tolist()

    @property
    def longest(self) -> int:
        """Tokens of its longest text."""
        return self.group.tokens


@dataclass(frozen=True)
class Failure:
    """A text that the runtime could not run, even alone."""

    number: int
    error: Exception


@dataclass(frozen=True)
class Step:
    """What came of one call."""

    departures: Sequence[Departure] = ()
    failures: Sequence[Failure] = ()
    numbers: Sequence[int] = ()  # of the texts that shared the call
    tokens: int = 0  # of these texts
    padded: int = 0  # of these texts, padded to the longest
    depth: int = 0  # layers that the least deep of them had run before


def with_depth_cap(policy: Policy, max_depth: int) -> Policy:
    """Return a policy that runs at most so many layers; its certificate does not hold then, and is left out.

    Args:
        policy: The policy.
        max_depth: Most layers.

    Returns:
        The policy, with the lower of its own cap and this one.
    """
    cap = max_depth if policy.max_depth is None else min(max_depth, policy.max_depth)
    return replace(policy, max_depth=cap, certificate=None)


def kind_of(walk: Walk) -> int:
    """Return what tells texts apart that cannot share a call: a graph that decides takes the levels of one policy."""
    return id(walk) if isinstance(walk, PastExits) else 0


def by_walk(items: Sequence[Arrival | Member]) -> list[tuple[Walk, list[int]]]:
    """Return the rows of the items of every walk."""
    rows: dict[int, tuple[Walk, list[int]]] = {}
    for row, item in enumerate(items):
        rows.setdefault(id(item.walk), (item.walk, []))[1].append(row)
    return list(rows.values())


def part_of(group: Group, rows: Sequence[int]) -> Group:
    """Return some texts of a group that is new, in the same state."""
    part = group.select(np.array(rows))
    part.is_new = group.is_new
    return part


def shape_of(numbers: Sequence[int], lengths: NDArray, depth: int) -> Step:
    """Describe a call."""
    return Step((), (), numbers, int(lengths.sum()), int(lengths.max()) * len(lengths), depth)


def run_side_by_side(
    runtime: Runtime, members: Sequence[Member], state: State
) -> tuple[list[Departure], list[tuple[Group, Walk]]]:
    """Run the layers to the next exit once for groups of several policies, then let every policy ask its heads.

    Args:
        runtime: The model.
        members: The groups, whose walks decide exit by exit.
        state: Holds the texts of all of them, at the rows that their groups state.

    Returns:
        The texts that leave, and those that stay with their walks.
    """
    walks = [member.walk for member in members if isinstance(member.walk, ExitByExit)]
    steps = min(walk.layers_ahead(member.group) for walk, member in zip(walks, members, strict=True))
    first = min(int(member.group.depth.min()) for member in members) + 1
    state = runtime.advance(state, range(first, first + steps))
    departures: list[Departure] = []
    stays: list[tuple[Group, Walk]] = []
    for walk, member in zip(walks, members, strict=True):
        member.group.state = state
        left, stay = walk.ask(member.group, steps)
        departures += left
        stays += [] if stay is None else [(stay, walk)]
    return departures, stays
