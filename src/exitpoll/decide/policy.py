"""Policy: a strategy with its settings and thresholds, which says when to leave and what to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.decisions import Decisions, probability_of
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, SINGLE_LABEL, predictions
from exitpoll.decide.settings import check_settings, check_threshold
from exitpoll.decide.strategies import Opinion, ask, strategy_named
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError
from exitpoll.files import read_json, write_json

VERSION = 1


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
        max_depth: Leave at the last exit within so many layers, fired or not.
        problem_type: What is decided, as in transformers: one class, every label of several, or a value.
        certificate: What calibration promised, and what that rests on.
    """

    strategy: str = "votes"
    threshold: float | Sequence[float] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    answer: str = "strategy"
    fallback: str = "strategy"
    max_depth: int | None = None
    problem_type: str = SINGLE_LABEL
    certificate: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be decided by."""
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise InputError(f"{name} '{getattr(self, name)}' is unknown; choose one of: {', '.join(known)}")
        check_settings(self.strategy, self.settings)
        if self.certificate is not None and not isinstance(self.certificate, Mapping):
            raise InputError(f"certificate {self.certificate!r} must be names with values")
        if self.max_depth is not None and (not isinstance(self.max_depth, int) or self.max_depth < 1):
            raise InputError(f"max_depth {self.max_depth!r} must be a number of layers, 1 or more")
        check_threshold(self.threshold)

    @property
    def name(self) -> str:
        """Strategy and settings in words."""
        words = [_in_words(key, value) for key, value in self.settings.items() if key not in ("weights", "biases")]
        return f"{self.strategy} ({', '.join(words)})" if words else self.strategy

    @cached_property
    def _given(self) -> dict[str, Any]:
        """The settings as strategies take them fastest: numbers that come in lists as arrays."""
        return {key: np.array(value) if key in _ARRAYS else value for key, value in self.settings.items()}

    def natural(self, level: float) -> float:
        """Turn what scores must reach into a threshold in natural units.

        Args:
            level: What scores must reach.

        Returns:
            The threshold; that of the policy which is still open, for a hybrid with one.
        """
        member = self._open_member
        return level * strategy_named(self.strategy if member is None else member["strategy"]).sign

    def at(self, level: float) -> Policy:
        """Set the threshold, of the policy which is still open for a hybrid with one.

        Args:
            level: What scores must reach.

        Returns:
            A policy to decide by.
        """
        member = self._open_member
        if member is None:
            return replace(self, threshold=self.natural(level))
        closed = dict(member) | {"threshold": self.natural(level)}
        members = [closed if each is member else each for each in self.settings["policies"]]
        return replace(self, threshold=1.0, settings={"policies": members})

    @property
    def _open_member(self) -> Mapping[str, Any] | None:
        """The policy of a hybrid that has no threshold yet."""
        members = self.settings.get("policies", ()) if self.strategy == "hybrid" else ()
        return next((each for each in members if each.get("threshold") is None), None)

    def opinion(self, logits: NDArray) -> Opinion:
        """Ask the strategy.

        Args:
            logits: (texts, exits so far, classes)

        Returns:
            Its scores and answers.
        """
        try:
            return ask(self.strategy, logits, self._given, self.problem_type)
        except InputError:
            raise
        except (TypeError, ValueError, KeyError) as error:
            settings = ", ".join(self.settings) or "none"
            reason = f"strategy '{self.strategy}' cannot be asked with these settings: {settings}"
            if self.strategy == "learned" and "weights" not in self.settings:
                reason = "strategy 'learned' must be fitted to a trace first: calibrate does that"
            raise InputError(reason) from error

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
        """Say after which exits nobody goes on: the last, or the last within the depth cap and all above it.

        Args:
            layers: The layer of each exit.

        Returns:
            Flags, (exits,).
        """
        if self.max_depth is None:
            return np.arange(len(layers)) == len(layers) - 1
        if self.max_depth < layers[0]:
            raise InputError(f"max_depth {self.max_depth} is above no exit: the first is after layer {layers[0]}")
        within = np.asarray(layers) <= self.max_depth
        return np.append(~within[1:], True)  # the next exit would be too deep

    def decide(self, trace: Trace) -> Decisions:
        """Say where every text of a trace would leave and what it would be answered.

        Args:
            trace: What every exit said.

        Returns:
            The decisions, in the order of the texts.
        """
        self.check(trace)
        parts = [self._decide(part) for part in trace.chunks()] or [self._decide(trace)]
        exit_numbers, answers, probabilities = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Decisions(exit_numbers, answers, probabilities, tuple(trace.exit_layers), trace.labels)

    def check(self, trace: Trace) -> None:
        """Refuse a trace that another model, another runtime or another kind of task made.

        Args:
            trace: The trace to decide on.
        """
        if trace.problem_type != self.problem_type:
            raise InputError(f"the policy is for {self.problem_type}, the trace for {trace.problem_type}")
        self.check_source(trace.about)
        self.check_exits(len(trace.exit_layers))

    def check_exits(self, exits: int) -> None:
        """Refuse a model with other exits than the settings are for.

        Args:
            exits: How many there are.
        """
        members = self.settings.get("policies", ()) if self.strategy == "hybrid" else ()
        for settings in (self.settings, *(member.get("settings") or {} for member in members)):
            for name in set(_ARRAYS) & set(settings):
                if len(settings[name]) != exits:
                    raise InputError(f"{len(settings[name])} {name} were given for {exits} exits; give one for each")

    @property
    def source(self) -> Mapping[str, Any]:
        """What the policy was calibrated on, as far as its certificate says: model, runtime, data, split."""
        known = (self.certificate or {}).get("about")
        return known if isinstance(known, Mapping) else {}

    def check_source(self, about: Mapping[str, Any]) -> None:
        """Refuse to decide for another model or runtime than the policy was calibrated for.

        Args:
            about: Model and runtime, as far as they are known.
        """
        ours = self.source
        for name in ("fingerprint", "runtime"):
            if name in ours and name in about and ours[name] != about[name]:
                raise InputError(
                    f"the policy was calibrated on {name} {ours[name]}, and this is {name} {about[name]}; "
                    "record and calibrate anew"
                )

    def _decide(self, trace: Trace) -> tuple[NDArray, NDArray, NDArray]:
        """Decide for texts that fit into memory."""
        logits = np.asarray(trace.logits)
        exit_number, answer = self._settle(logits, self.opinion(logits), trace.exit_layers)
        heads = logits[np.arange(len(logits)), exit_number]  # (texts, classes)
        return exit_number, answer, probability_of(heads, answer, self.problem_type)

    def _settle(self, logits: NDArray, opinion: Opinion, layers: Sequence[int]) -> tuple[NDArray, NDArray]:
        """Find exits and answers, (texts,) each, once the strategy has spoken."""
        fires = opinion.score >= self.levels(len(layers))  # (texts, exits)
        exit_number = (fires | self.ends(layers)).argmax(axis=1)
        at = np.arange(len(logits)), exit_number
        return exit_number, self.answers(fires[at], opinion.answer[at], logits[at])

    def answers(self, fired: NDArray, said: NDArray, heads: NDArray) -> NDArray:
        """Say what texts are answered that leave, because they fired or because they reached the end.

        Args:
            fired: Which of them fired, (texts,).
            said: What the strategy answers.
            heads: What the heads there say, (texts, classes).

        Returns:
            Answers, (texts,), or (texts, classes) for multi-label.
        """
        by_strategy = np.where(fired, self.answer == "strategy", self._falls_back_on_strategy)
        if by_strategy.all():
            return said
        own = predictions(heads, self.problem_type)
        return np.where(by_strategy.reshape(-1, *[1] * (own.ndim - 1)), said, own)

    def answers_at(self, number: int, by: str, opinion: Opinion, logits: NDArray) -> NDArray:
        """Say what all texts would be answered at one exit.

        Args:
            number: The exit, counted from 0.
            by: Whose answer counts, the "strategy"'s or the "head"'s.
            opinion: What the strategy makes of the logits.
            logits: (texts, exits, classes)

        Returns:
            Answers, (texts,), or (texts, classes) for multi-label.
        """
        if by == "strategy":
            return opinion.answer[:, number]
        return predictions(np.asarray(logits[:, number]), self.problem_type)

    @property
    def _falls_back_on_strategy(self) -> bool:
        """Whether texts at the end are answered by the strategy; a policy that never leaves is the full model."""
        return self.fallback == "strategy" and self.threshold is not None

    def save(self, path: str | Path) -> None:
        """Write policy.json, for people to read, whole or not at all.

        Args:
            path: The file to write.
        """
        write_json(Path(path), self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Give the policy as plain values, as policy.json holds them."""
        return {"version": VERSION} | _plain(asdict(self))

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read a policy that `save` wrote.

        Args:
            path: The file to read.

        Returns:
            The policy.
        """
        if not Path(path).exists():
            raise InputError(f"there is no policy '{path}'; exitpoll calibrate writes one")
        content = read_json(Path(path))
        if content is None:
            raise InputError(f"'{path}' is no policy: it is no JSON object")
        version = content.pop("version", None)
        if version != VERSION:
            raise InputError(f"'{path}' is a policy of version {version!r}; this exitpoll reads version {VERSION}")
        unknown = sorted(set(content) - {each.name for each in fields(cls)})
        if unknown:
            raise InputError(f"'{path}' has fields that no policy has: {', '.join(unknown)}")
        try:
            return cls(**content)
        except InputError as error:
            raise InputError(f"'{path}': {error}") from error


_ARRAYS = ("temperatures", "weights", "biases")
_CHOICES = {
    "answer": ("strategy", "head"),
    "fallback": ("strategy", "head"),
    "problem_type": (SINGLE_LABEL, MULTI_LABEL, REGRESSION),
}


def _plain(value: Any) -> Any:
    """Turn arrays and NumPy's numbers into what JSON can hold."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _in_words(key: str, value: Any) -> str:
    """Write a setting as people read it: k=0.5, temperatures, votes k=0.5 ≥ 1.2."""
    if key == "policies":
        return ", ".join(_member_in_words(**member) for member in value)
    return f"{key}={value:g}" if isinstance(value, int | float) else f"{key}={value}" if isinstance(value, str) else key


def _member_in_words(strategy: str, threshold: float | None = None, settings: Mapping[str, Any] | None = None) -> str:
    """Write a policy of a hybrid."""
    sign = "≤" if strategy_named(strategy).falls else "≥"
    limit = [] if threshold is None else [f"{sign} {threshold:.3g}"]
    return " ".join([strategy, *(_in_words(key, value) for key, value in (settings or {}).items()), *limit])
