"""Policy, a strategy with its settings and thresholds, and Decisions, what it decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.errors import InputError
from exitpoll.folders import read_json, write_json
from exitpoll.strategies import Opinion, softmax, strategy_named
from exitpoll.tasks import METRICS
from exitpoll.trace import Trace

VERSION = 1


@dataclass(frozen=True)
class Decisions:
    """Where texts left and what they were answered."""

    exit: NDArray  # (texts,) exit numbers from 0
    answer: NDArray  # (texts,) class numbers
    probability: NDArray  # (texts,) what the head at that exit gives the answer
    layers: Sequence[int]  # of each exit
    labels: NDArray | None = None  # (texts,)

    @cached_property
    def depth(self) -> NDArray:
        """How many layers each text went through, (texts,)."""
        return np.asarray(self.layers)[self.exit]

    @property
    def speedup(self) -> float:
        """L ÷ mean depth."""
        return float(self.layers[-1] / self.depth.mean()) if len(self.depth) else 1.0

    @property
    def histogram(self) -> dict[int, int]:
        """How many texts left after each layer with an exit."""
        counts = np.bincount(self.exit, minlength=len(self.layers))
        return {int(layer): int(count) for layer, count in zip(self.layers, counts, strict=True)}

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.score("accuracy")

    def score(self, metric: str) -> float:
        """Score the answers by a task's metric.

        Args:
            metric: Its name.

        Returns:
            The score.
        """
        if self.labels is None:
            raise InputError("these texts have no labels, so their answers cannot be scored")
        return METRICS[metric](self.labels, self.answer)


@dataclass(frozen=True)
class Policy:
    """When to leave and what to answer.

    Args:
        strategy: Its name.
        threshold: Leave where the strategy's score reaches this, in its natural units; one for all exits or one for
            each; None never leaves early.
        settings: Settings of the strategy, such as k of votes.
        answer: On leaving, answer as the "strategy" says or as the "head" of that exit does.
        fallback: Where no exit fires, answer as the "strategy" says at the end (most votes, say) or as the "head"
            there does. Without a threshold it is always the head: the full model's answer.
        max_depth: Leave after at most so many layers, fired or not.
        certificate: What calibration promised, and what that rests on.
    """

    strategy: str = "votes"
    threshold: float | Sequence[float] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    answer: str = "strategy"
    fallback: str = "strategy"
    max_depth: int | None = None
    certificate: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be decided by."""
        strategy_named(self.strategy)
        for name in ("answer", "fallback"):
            if getattr(self, name) not in ("strategy", "head"):
                raise InputError(f"{name} '{getattr(self, name)}' is unknown; choose one of: strategy, head")

    def opinion(self, logits: NDArray) -> Opinion:
        """Ask the strategy.

        Args:
            logits: (texts, exits so far, classes)

        Returns:
            Its scores and answers.
        """
        try:
            return strategy_named(self.strategy).function(logits, **self.settings)
        except TypeError as error:
            raise InputError(f"strategy '{self.strategy}' does not take settings {dict(self.settings)}") from error

    def levels(self, exits: int) -> NDArray:
        """Give what scores must reach to leave, exit by exit.

        Args:
            exits: How many exits there are.

        Returns:
            Levels, (exits,); ∞ where the policy never leaves early.
        """
        if self.threshold is None:
            return np.full(exits, np.inf)
        thresholds = np.asarray(self.threshold, dtype=np.float64)
        if thresholds.ndim and len(thresholds) != exits:
            raise InputError(f"{len(thresholds)} thresholds were given for {exits} exits; give one, or one for each")
        return np.broadcast_to(thresholds * strategy_named(self.strategy).sign, exits)

    def ends(self, layers: Sequence[int]) -> NDArray:
        """Say after which exits nobody goes on: the last, and those at the depth cap.

        Args:
            layers: The layer of each exit.

        Returns:
            Flags, (exits,).
        """
        ends = np.asarray(layers) >= (layers[-1] if self.max_depth is None else self.max_depth)
        ends[-1] = True
        return ends

    def decide(self, trace: Trace) -> Decisions:
        """Say where every text of a trace would leave and what it would be answered.

        Args:
            trace: What every exit said.

        Returns:
            The decisions, in the order of the texts.
        """
        parts = [self._decide(part) for part in trace.chunks()] or [self._decide(trace)]
        exit_numbers, answers, probabilities = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Decisions(exit_numbers, answers, probabilities, tuple(trace.layers), trace.labels)

    def _decide(self, trace: Trace) -> tuple[NDArray, NDArray, NDArray]:
        """Decide for texts that fit into memory."""
        logits = np.asarray(trace.logits)
        opinion = self.opinion(logits)
        fires = opinion.score >= self.levels(len(trace.layers))  # (texts, exits)
        exit_number = (fires | self.ends(trace.layers)).argmax(axis=1)
        rows = np.arange(len(logits))
        heads = np.nan_to_num(logits[rows, exit_number])  # (texts, classes)
        by_strategy = np.where(fires[rows, exit_number], self.answer == "strategy", self._falls_back_on_strategy)
        answer = np.where(by_strategy, opinion.answer[rows, exit_number], heads.argmax(axis=-1))
        return exit_number, answer, softmax(heads)[rows, answer]

    @property
    def _falls_back_on_strategy(self) -> bool:
        """Whether texts at the end are answered by the strategy; a policy that never leaves is the full model."""
        return self.fallback == "strategy" and self.threshold is not None

    def save(self, path: str | Path) -> None:
        """Write policy.json, for people to read, whole or not at all.

        Args:
            path: The file to write.
        """
        content = asdict(self)
        if self.threshold is not None:
            content["threshold"] = np.asarray(self.threshold, dtype=np.float64).tolist()
        write_json(Path(path), {"version": VERSION} | content)

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read a policy that `save` wrote.

        Args:
            path: The file to read.

        Returns:
            The policy.
        """
        content = read_json(Path(path))
        if content is None:
            raise InputError(f"'{path}' is no policy: it is missing, or no JSON object")
        version = content.pop("version", None)
        if version != VERSION:
            raise InputError(f"'{path}' is a policy of version {version}; this exitpoll reads version {VERSION}")
        unknown = sorted(set(content) - {each.name for each in fields(cls)})
        if unknown:
            raise InputError(f"'{path}' has fields that no policy has: {', '.join(unknown)}")
        return cls(**content)
