"""Policy: a strategy with its settings and thresholds, which decides when to exit and what to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.certificate import VERSION, Certificate, Source
from exitpoll.decide.costs import check_layers, columns_of
from exitpoll.decide.decisions import Decisions, probability_of
from exitpoll.decide.describe import describe_setting
from exitpoll.decide.formulas import Opinion
from exitpoll.decide.metrics import PROBLEM_TYPES, SINGLE_LABEL, predictions
from exitpoll.decide.settings import Settings, check_threshold
from exitpoll.decide.strategies import ask, check_settings, members, open_member, strategy_named
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError
from exitpoll.files import JsonObject, read_json, write_json

LARGEST_FILE = 1 << 20  # bytes of a policy.json


@dataclass(frozen=True)
class Policy:
    """When to exit and what to answer.

    Args:
        strategy: Its name.
        threshold: Exit where the strategy's score reaches this, in its natural units; one for all exits or one
            per exit; None never exits early.
        settings: Settings of the strategy, such as k of votes.
        answer: At an early exit, answer as the "strategy" does or as the "head" of that exit does.
        fallback: Where no exit fires, answer as the "strategy" does at the end (most votes, say) or as the "head"
            there does. Without a threshold it is always the head: the full model's answer.
        max_depth: Exit at the last exit within so many layers, whether it fires or not.
        problem_type: What is decided, as in transformers: one class, every label of several, or a value.
        exit_layers: The layers whose exits are asked, the last exit of the model among them; all by default. Exits that
            are not asked do not exist for the policy: votes, run lengths and whatever has an entry per exit count the
            others only.
        certificate: What calibration guarantees, and what that rests on.
    """

    strategy: str = "votes"
    threshold: float | Sequence[float] | None = None
    settings: Settings = field(default_factory=dict)
    answer: str = "strategy"
    fallback: str = "strategy"
    max_depth: int | None = None
    problem_type: str = SINGLE_LABEL
    exit_layers: Sequence[int] | None = None
    certificate: Certificate | None = None

    def __post_init__(self) -> None:
        """Check what the policy is made of."""
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise InputError(f"{name} '{getattr(self, name)}' is unknown; choose one of: {', '.join(known)}")
        check_settings(self.strategy, self.settings)
        if self.certificate is not None and not isinstance(self.certificate, Certificate):
            raise InputError(f"certificate {self.certificate!r:.60} must be a Certificate; calibrate makes one")
        if self.max_depth is not None and (not isinstance(self.max_depth, int) or self.max_depth < 0):
            raise InputError(f"max_depth {self.max_depth!r} must be a number of layers, 0 or more")
        check_threshold(self.threshold)
        if self.exit_layers is not None:
            check_layers(self.exit_layers)
            object.__setattr__(self, "exit_layers", tuple(int(layer) for layer in self.exit_layers))

    def __repr__(self) -> str:
        """Describe strategy, threshold and what calibration found."""
        words = [self.name]
        if self.threshold is None:
            words.append("never exits early")
        elif isinstance(self.threshold, int | float):
            words.append(f"threshold {self.threshold:.6g}")
        else:
            words.append("one threshold per exit")
        if self.max_depth is not None:
            words.append(f"at most {self.max_depth} layers")
        if self.exit_layers is not None:
            words.append(f"exits after layers {', '.join(map(str, self.exit_layers))}")
        if self.certificate is not None:
            words.append(f"{self.certificate.speedup:.2f} × in layers")
            words += [] if self.certificate.guarantee is None else [f"guarantee: {self.certificate.guarantee}"]
        return f"Policy({', '.join(words)})"

    @property
    def name(self) -> str:
        """Strategy and settings in words, as in "votes (k=0.5)"."""
        known = strategy_named(self.strategy).settings
        words = [describe_setting(key, value) for key, value in self.settings.items() if known[key].in_name]
        return f"{self.strategy} ({', '.join(words)})" if words else self.strategy

    @property
    def source(self) -> Source:
        """Which model, runtime and texts the policy was calibrated on, as far as its certificate states them."""
        return Source() if self.certificate is None else self.certificate.source

    @property
    def more_cautious(self) -> tuple[Policy, ...]:
        """More cautious policies that the same calibration has certified for the same guarantee, the next one first.

        All these guarantees hold together with the confidence that each states.
        """
        certificate = self.certificate
        if certificate is None or certificate.guarantee is None:
            return ()
        return tuple(
            replace(
                self,
                **step.changes,
                certificate=replace(
                    certificate,
                    speedup=step.speedup,
                    measured=step.measured,
                    bound=step.bound,
                    score=None,
                    profile=None,
                    cautious=None,
                ),
            )
            for step in certificate.cautious or ()
        )

    # ---- thresholds -------------------------------------------------------------------------------------------------

    def natural(self, level: float) -> float:
        """Turn a level that scores must reach into a threshold in natural units.

        Args:
            level: What scores must reach.

        Returns:
            The threshold; that of the open member, for a hybrid with one.
        """
        member = open_member(self.settings)
        return level * strategy_named(self.strategy if member is None else member["strategy"]).sign_for(
            self.problem_type
        )

    def at(self, level: float) -> Policy:
        """Set the threshold; that of the open member, for a hybrid with one.

        Args:
            level: What scores must reach.

        Returns:
            A policy to decide by.
        """
        threshold, opened = self.natural(level), open_member(self.settings)
        if opened is None:
            return replace(self, threshold=threshold)
        closed = [
            {**member, "threshold": threshold} if member is opened else member for member in members(self.settings)
        ]
        return replace(self, threshold=1.0, settings={**self.settings, "policies": closed})

    def levels(self, exits: int) -> NDArray:
        """Return what scores must reach to exit, exit by exit.

        Args:
            exits: How many exits are asked.

        Returns:
            Levels, (exits,); ∞ where the policy never exits early.
        """
        if self.exit_layers is not None and len(self.exit_layers) != exits:
            raise InputError(f"the policy asks {len(self.exit_layers)} exits, not {exits}")
        if self.threshold is None:
            return np.full(exits, np.inf)
        thresholds = np.asarray(self.threshold, dtype=np.float64)
        if thresholds.ndim and len(thresholds) != exits:
            raise InputError(f"{len(thresholds)} thresholds were given for {exits} exits; give one, or one per exit")
        return np.broadcast_to(thresholds * strategy_named(self.strategy).sign_for(self.problem_type), exits)

    def ends(self, exit_layers: Sequence[int]) -> NDArray:
        """Return which exits are final: the last, or the last within the depth cap and all above it.

        Args:
            exit_layers: The layers of the exits that are asked.

        Returns:
            Flags, (exits,).
        """
        if self.max_depth is None:
            return np.arange(len(exit_layers)) == len(exit_layers) - 1
        if self.max_depth < exit_layers[0]:
            raise InputError(f"max_depth {self.max_depth} is below the first exit, after layer {exit_layers[0]}")
        within = np.asarray(exit_layers) <= self.max_depth
        return np.append(~within[1:], True)  # the next exit would be too deep

    def asked(self, exit_layers: Sequence[int]) -> tuple[int, ...]:
        """Return the layers whose exits are asked, of those of a model.

        Args:
            exit_layers: The layers of all exits of the model.

        Returns:
            The layers, rising.
        """
        if self.exit_layers is None:
            return tuple(exit_layers)
        return tuple(exit_layers[number] for number in columns_of(self.exit_layers, exit_layers))

    # ---- decisions --------------------------------------------------------------------------------------------------

    def opinion(self, logits: NDArray) -> Opinion:
        """Ask the strategy.

        Args:
            logits: Of the exits that are asked, (texts, exits so far, classes).

        Returns:
            Its scores and answers.
        """
        return ask(self.strategy, logits, self.complete_settings, self.problem_type)

    @cached_property
    def complete_settings(self) -> Settings:
        """The settings as strategies take them fastest: lists with one entry per exit as arrays."""
        known = strategy_named(self.strategy).settings
        missing = [name for name, setting in known.items() if setting.required and name not in self.settings]
        if missing:
            raise InputError(
                f"strategy '{self.strategy}' has no {' and no '.join(missing)} yet; calibrate fits it to a trace"
            )
        return {name: np.array(value) if known[name].per_exit else value for name, value in self.settings.items()}

    def decide(self, trace: Trace) -> Decisions:
        """Decide where every text of a trace exits and what it is answered.

        Args:
            trace: Every exit's logits.

        Returns:
            The decisions, in the order of the texts; exits are numbered as in the trace, also where some are not asked.
        """
        self.check(trace)
        parts = [self._decide(part.at_exits(self.exit_layers)) for part in (list(trace.chunks()) or [trace])]
        numbers, answers, probabilities = (np.concatenate(column) for column in zip(*parts, strict=True))
        if self.exit_layers is not None:
            numbers = np.asarray(columns_of(self.exit_layers, trace.exit_layers))[numbers]
        return Decisions(numbers, answers, probabilities, tuple(trace.exit_layers), trace.labels)

    def _decide(self, trace: Trace) -> tuple[NDArray, NDArray, NDArray]:
        """Decide for texts that fit into memory: exit numbers, answers, probabilities."""
        logits = np.asarray(trace.logits)
        opinion = self.opinion(logits)
        fires = opinion.score >= self.levels(len(trace.exit_layers))  # (texts, exits)
        exit_number = (fires | self.ends(trace.exit_layers)).argmax(axis=1)
        at = np.arange(len(logits)), exit_number
        answer = self.answers(fires[at], opinion.answer[at], logits[at])
        return exit_number, answer, probability_of(logits[at], answer, self.problem_type)

    def answers(self, fired: NDArray, by_strategy: NDArray, logits: NDArray) -> NDArray:
        """Return what texts are answered that exit, because they fired or because they reached the end.

        Args:
            fired: Which of them fired, (texts,).
            by_strategy: The strategy's answers.
            logits: Of the heads there, (texts, classes).

        Returns:
            Answers, (texts,), or (texts, classes) for multi-label.
        """
        # A policy that never exits early is the full model, whose answer is the last head's.
        falls_back = self.fallback == "strategy" and self.threshold is not None
        uses_strategy = np.where(fired, self.answer == "strategy", falls_back)
        if uses_strategy.all():
            return by_strategy
        by_head = predictions(logits, self.problem_type)
        return np.where(uses_strategy.reshape(-1, *[1] * (by_head.ndim - 1)), by_strategy, by_head)

    def answers_at(self, number: int, by: str, opinion: Opinion, logits: NDArray) -> NDArray:
        """Return what all texts would be answered at one exit.

        Args:
            number: The exit, counted from 0.
            by: Whose answer counts, the "strategy"'s or the "head"'s.
            opinion: The strategy's opinion on the logits.
            logits: (texts, exits, classes)

        Returns:
            Answers, (texts,), or (texts, classes) for multi-label.
        """
        if by == "strategy":
            return opinion.answer[:, number]
        return predictions(np.asarray(logits[:, number]), self.problem_type)

    # ---- checks -----------------------------------------------------------------------------------------------------

    def check(self, trace: Trace) -> None:
        """Refuse a trace of another model, runtime or problem type.

        Args:
            trace: The trace to decide on.
        """
        if trace.problem_type != self.problem_type:
            raise InputError(f"the policy is for {self.problem_type}, the trace for {trace.problem_type}")
        self.source.check_same(Source.of(trace.about))
        self.check_exits(trace.exit_layers)

    def check_exits(self, exit_layers: Sequence[int]) -> None:
        """Refuse a model without the exits that are asked, or with more or fewer than thresholds and settings are for.

        Args:
            exit_layers: The layers of all exits of the model.
        """
        exits = len(self.asked(exit_layers))
        self.levels(exits)
        itself: Settings = {"strategy": self.strategy, "settings": self.settings}
        for policy in (itself, *members(self.settings)):
            known = strategy_named(policy["strategy"]).settings
            for name, value in (policy.get("settings") or {}).items():
                if known[name].per_exit and len(value) != exits:
                    raise InputError(f"{len(value)} {name} were given for {exits} exits; give one per exit")

    # ---- files ------------------------------------------------------------------------------------------------------

    def to_dict(self) -> JsonObject:
        """Return the policy as plain values, as policy.json holds them."""
        plain = {name: _plain(getattr(self, name)) for name in _FIELDS if name != "certificate"}
        certificate = None if self.certificate is None else _plain(self.certificate.to_dict())
        return {"version": VERSION, **plain, "certificate": certificate}

    def save(self, path: str | Path) -> None:
        """Write policy.json atomically, in a form that people can read.

        Args:
            path: The file to write.
        """
        write_json(Path(path), self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Load a policy that `save` wrote.

        Args:
            path: The file to read.

        Returns:
            The policy.
        """
        if not Path(path).exists():
            raise InputError(f"there is no policy '{path}'; exitpoll calibrate writes one")
        if Path(path).stat().st_size > LARGEST_FILE:
            raise InputError(f"'{path}' is larger than {LARGEST_FILE >> 20} MiB, which no policy is")
        content = read_json(Path(path))
        if content is None:
            raise InputError(f"'{path}' is not a policy: it is not a JSON object")
        return cls.from_dict(content, f"'{path}'")

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], name: str = "this") -> Policy:
        """Make a policy of what `to_dict` returned.

        Args:
            content: The plain values.
            name: Where they come from, for messages.

        Returns:
            The policy.
        """
        values = dict(content)
        version = values.pop("version", None)
        if version != VERSION:
            raise InputError(f"{name} is a policy of version {version!r}, not {VERSION}: calibrate again")
        unknown = sorted(set(values) - set(_FIELDS))
        if unknown:
            raise InputError(f"{name} has fields that no policy has: {', '.join(unknown)}")
        try:
            if values.get("certificate") is not None:
                values["certificate"] = Certificate.from_dict(values["certificate"])
            policy = cls(**values)
            _ = policy.more_cautious  # they are made of the file too, and checked by being made
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        return policy


_FIELDS = tuple(field.name for field in fields(Policy))
_CHOICES = {
    "answer": ("strategy", "head"),
    "fallback": ("strategy", "head"),
    "problem_type": PROBLEM_TYPES,
}


def _plain(value: Any) -> Any:
    """Turn arrays and NumPy's numbers into what JSON can hold."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
