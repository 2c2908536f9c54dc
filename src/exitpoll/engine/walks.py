"""From exit to exit: how a group of texts runs on until some of them leave or too few are left for a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Tokens, lengths_of
from exitpoll.decide.decisions import probability_of
from exitpoll.decide.incremental import Stepper, join, replaced, select
from exitpoll.decide.metrics import predictions
from exitpoll.decide.policy import Policy
from exitpoll.decide.steps import Memory
from exitpoll.engine.exit_graph import asked_by, depth_cap, levels_at
from exitpoll.engine.runtime import ExitingRuntime, Passage, Runtime, State, exits_by_itself

ALONE = np.zeros(1, dtype=np.int64)  # the number of a text that is the only one
SEEN = "seen"  # in memory: the logits of the exits asked so far, NaN for those to come


@dataclass(frozen=True)
class Batch:
    """Tokenized texts that start together."""

    numbers: NDArray  # (texts,) their numbers in the input
    tokens: Tokens


@dataclass(frozen=True)
class Departure:
    """Texts that leave together."""

    numbers: NDArray  # (texts,) their numbers in the input
    exit_numbers: NDArray  # (texts,) of the runtime
    answer: NDArray  # (texts,), or (texts, classes)
    probability: NDArray
    is_finite: NDArray  # (texts,) whether the head's logits are finite
    logits: NDArray  # (texts, classes) of the heads at these exits
    lengths: NDArray  # (texts,) tokens
    seen: NDArray | None = None  # (texts, exits, classes) logits of the exits asked, where they were to be kept


@dataclass
class Group:
    """Texts that run together."""

    numbers: NDArray  # (texts,) their numbers in the input
    lengths: NDArray  # (texts,) tokens
    depth: NDArray  # (texts,) layers run so far; different ones only where layers share their weights
    memory: Memory  # of the policy's strategy: what the exits so far left
    state: State  # holds these texts, and maybe others that have left
    rows: NDArray | None = None  # (texts,) their rows in the state; None for all of it
    is_new: bool = False  # whether no exit has been asked, not even one before the first layer

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.numbers)

    @property
    def tokens(self) -> int:
        """Tokens of the longest text."""
        return int(self.lengths.max())

    def rows_of(self, texts: NDArray | None) -> NDArray | None:
        """Return the rows of some texts in the state; None stands for all, of texts and of rows."""
        if self.rows is None:
            return texts
        return self.rows if texts is None else self.rows[texts]

    def select(self, texts: NDArray) -> Group:
        """Pick some texts; the state stays as it is until they run again."""
        memory, rows = select(self.memory, texts), self.rows_of(texts)
        return Group(self.numbers[texts], self.lengths[texts], self.depth[texts], memory, self.state, rows)


def first_group(runtime: Runtime, batch: Batch) -> Group:
    """Embed texts that start together.

    Args:
        runtime: The runtime.
        batch: The texts.

    Returns:
        The group that they are before the first layer.
    """
    depth = np.zeros(len(batch.numbers), dtype=np.int64)
    return Group(batch.numbers, lengths_of(batch.tokens), depth, {}, runtime.embed(batch.tokens), is_new=True)


def joined(runtime: Runtime, groups: Sequence[Group]) -> Group:
    """Join groups into one, with a state that holds its texts alone.

    Args:
        runtime: The runtime of their states.
        groups: The groups.

    Returns:
        One group.
    """
    first = groups[0]
    if len(groups) == 1 and first.rows is None:
        return first
    state = runtime.gather([(group.state, group.rows) for group in groups])
    if len(groups) == 1:
        first.state, first.rows = state, None
        return first
    return Group(
        np.concatenate([group.numbers for group in groups]),
        np.concatenate([group.lengths for group in groups]),
        np.concatenate([group.depth for group in groups]),
        join([group.memory for group in groups], [len(group) for group in groups]),
        state,
    )


class Walk(Protocol):
    """A way to run a group to its next exit, or past several."""

    def run(self, group: Group, enough: int) -> tuple[list[Departure], Group | None]:
        """Run a group.

        Args:
            group: Texts whose state holds them alone.
            enough: If fewer texts stay, they do not run on.

        Returns:
            The texts that leave, and those that stay, if there are any.
        """

    def run_alone(self, tokens: Tokens) -> Departure:
        """Run one text until it leaves, without what serves to find the best calls for many."""


def walk_for(runtime: Runtime, policy: Policy) -> Walk:
    """Return the fastest way to run a model with a policy.

    Args:
        runtime: The model.
        policy: When to exit.

    Returns:
        Past several exits in one call where the runtime decides by itself; otherwise exit by exit.
    """
    if exits_by_itself(runtime):
        if runtime.decides(policy):
            return PastExits(runtime, policy)
        runtime.check_stops(asked_by(policy, runtime.exit_layers))
    return ExitByExit(runtime, policy)


class PastExits:
    """Run texts past several exits in one call, by a runtime that decides by itself."""

    def __init__(self, runtime: ExitingRuntime, policy: Policy) -> None:
        """Prepare what the calls have in common.

        Args:
            runtime: The model.
            policy: When to exit.
        """
        self.runtime, self.layers = runtime, np.asarray(runtime.exit_layers)
        self.levels = levels_at(policy, runtime.exit_layers)
        policy.ends(policy.asked(runtime.exit_layers))  # refuses a depth below the first exit
        self.max_depth = np.array(depth_cap(policy, runtime.exit_layers))

    def run(self, group: Group, enough: int) -> tuple[list[Departure], Group | None]:
        """Run a group until its texts have left, or fewer than `enough` stay."""
        passage = self.runtime.pass_exits(group.state, self.levels, self.max_depth, enough)
        departures = []
        if len(passage.exit_numbers):
            numbers, lengths = group.numbers, group.lengths
            if passage.left is not None:
                numbers, lengths = numbers[passage.left], lengths[passage.left]
            departures.append(self._departure(numbers, lengths, passage))
        if passage.stay is None:
            return departures, None
        depth = np.full(len(passage.stay), self.layers[passage.passed - 1])
        numbers, lengths = group.numbers[passage.stay], group.lengths[passage.stay]
        return departures, Group(numbers, lengths, depth, {}, passage.state, passage.rows)

    def run_alone(self, tokens: Tokens) -> Departure:
        """Run one text until it leaves, in one call."""
        passage = self.runtime.pass_alone(tokens, self.levels, self.max_depth)
        return self._departure(ALONE, lengths_of(tokens), passage)

    @staticmethod
    def _departure(numbers: NDArray, lengths: NDArray, passage: Passage) -> Departure:
        """Describe the texts that left in a call."""
        answers = passage.exit_numbers, passage.answer, passage.probability
        return Departure(numbers, *answers, np.isfinite(passage.logits).all(axis=1), passage.logits, lengths)


class ExitByExit:
    """Run texts to the next exit, ask its head, and decide in NumPy."""

    def __init__(self, runtime: Runtime, policy: Policy) -> None:
        """Prepare what is the same for all groups.

        Args:
            runtime: Runs layers and heads.
            policy: When to exit.
        """
        self.runtime, self.policy = runtime, policy
        layers = policy.asked(runtime.exit_layers)  # numbers are of these, but for `self.heads`
        self.levels = policy.levels(len(layers)).tolist()
        self.ends = policy.ends(layers).tolist()
        self.stepper = Stepper(policy, len(layers))
        # A policy that never exits early asks one head.
        asked = [self.ends.index(True)] if policy.threshold is None else range(len(layers))
        self.exits = {layers[number]: number for number in asked}  # by depth, rising
        self.heads = [list(runtime.exit_layers).index(layer) for layer in layers]  # numbers of the runtime
        self.layers_to_exit = [  # by depth
            next(layer - depth for layer in self.exits if layer > depth) for depth in range(max(self.exits))
        ]

    def run(self, group: Group, enough: int) -> tuple[list[Departure], Group | None]:
        """Run a group until the first of its texts reaches an exit, and ask the heads there."""
        steps, first = self.layers_ahead(group), int(group.depth.min()) + 1
        group.state = self.runtime.advance(group.state, range(first, first + steps))
        return self.ask(group, steps)

    def run_alone(self, tokens: Tokens) -> Departure:
        """Run one text until it leaves."""
        group = first_group(self.runtime, Batch(ALONE, tokens))
        while True:
            departures, stay = self.run(group, enough=1)
            if stay is None:
                [departure] = departures
                return departure
            group = joined(self.runtime, [stay])

    def layers_ahead(self, group: Group) -> int:
        """Return how many layers the first of a group's texts has to run to its next exit."""
        if group.is_new and 0 in self.exits:
            return 0
        return min(self.layers_to_exit[depth] for depth in self._depths_of(group))

    def ask(self, group: Group, steps: int) -> tuple[list[Departure], Group | None]:
        """Ask the heads at the depth of a group whose state has run on, if the policy asks any there.

        Args:
            group: The texts; their state may hold others as well.
            steps: How many layers the state has run since.

        Returns:
            The texts that leave, and those that stay, if there are any.
        """
        group.depth, group.is_new = group.depth + steps, False
        departures, stays = self._ask_heads(group)
        if stays is None:
            return departures, group
        places = stays.nonzero()[0]
        return departures, group.select(places) if len(places) else None

    def _depths_of(self, group: Group) -> set[int]:
        """Return the depths of the texts of a group: one, unless the layers share their weights."""
        return set(group.depth.tolist()) if self.runtime.shares_layers else {int(group.depth[0])}

    def _ask_heads(self, group: Group) -> tuple[list[Departure], NDArray | None]:
        """Ask the heads at this depth: the texts that leave, and flags of those that stay, (texts,); None for all."""
        departures: list[Departure] = []
        stays = None
        for number, rows in self._exits_of(group):
            logits = self.runtime.logits_at(group.state, self.heads[number], group.rows_of(rows))
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
            exit_numbers = np.full(len(leaving), self.heads[number])
            seen = group.memory[SEEN][leaving] if SEEN in group.memory else None
            departures.append(Departure(numbers, exit_numbers, answer, probability, is_finite, logits, lengths, seen))
        return departures, stays

    def _exits_of(self, group: Group) -> list[tuple[int, NDArray | None]]:
        """List the exits that texts of a group have reached, with the rows of these texts; None for all."""
        depths = self._depths_of(group)
        if len(depths) == 1:
            [depth] = depths
            return [(self.exits[depth], None)] if depth in self.exits else []
        reached = sorted(depths & self.exits.keys())
        return [(self.exits[depth], (group.depth == depth).nonzero()[0]) for depth in reached]

    def _decide(self, group: Group, number: int, rows: NDArray | None, logits: NDArray) -> tuple[NDArray, NDArray]:
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


class Explained(ExitByExit):
    """Exit by exit, keeping the logits of all exits asked, so that a decision can be explained."""

    def _decide(self, group: Group, number: int, rows: NDArray | None, logits: NDArray) -> tuple[NDArray, NDArray]:
        """Decide as ever, and remember the logits."""
        seen = group.memory.get(SEEN)
        if seen is None:
            seen = np.full((len(group), len(self.ends), logits.shape[-1]), np.nan, dtype=logits.dtype)
        seen = seen.copy()
        seen[slice(None) if rows is None else rows, number] = logits
        leaving, answer = super()._decide(group, number, rows, logits)
        group.memory = {**group.memory, SEEN: seen}
        return leaving, answer
