"""Certificate: what a policy was calibrated for, what is guaranteed, and which model and texts that rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from typing import Any, ClassVar, Literal, TypeVar, get_args

import numpy as np

from exitpoll.decide.shift import Profile
from exitpoll.errors import InputError
from exitpoll.files import JsonObject

VERSION = 3  # of policy.json and its certificate

Risk = Literal["disagreement", "accuracy"]
GOAL_NAMES: dict[Risk, str] = {"disagreement": "max_disagreement", "accuracy": "max_accuracy_drop"}  # of `calibrate`
FULL_MODEL, ORIGINAL = "the full model", "the original classifier"
REFERENCES = (FULL_MODEL, ORIGINAL)  # whose answers a guarantee is about
MOST = 1e15  # that a number in a certificate may be
MOST_CAUTIOUS = 8  # more cautious policies that a certificate may hold
CHANGES = ("strategy", "threshold", "settings", "answer", "fallback", "max_depth")  # in which these may differ
ASKED = (
    "strategy",
    "settings",
    "answer",
    "fallback",
    "max_depth",
    "problem_type",
    "exit_layers",
)  # what is kept of a policy
Metadata = Mapping[str, Any]  # of a trace or another file: fingerprint, runtime, data, split, metric, …


def _check_positive(name: str, number: float) -> None:
    """Check that a goal is a finite number above 0."""
    if not 0 < number < np.inf:
        raise InputError(f"{name} {number:g} must be above 0, and finite")


@dataclass(frozen=True)
class Speedup:
    """Goal: the best score at a speed-up in layers."""

    kind: ClassVar[str] = "speedup"
    at_least: float

    def __post_init__(self) -> None:
        """Check the number."""
        _check_positive("speedup", self.at_least)

    def __str__(self) -> str:
        """Describe the goal."""
        return f"at least {self.at_least:g} ×"


@dataclass(frozen=True)
class Latency:
    """Goal: the best score within so many milliseconds a text, on average and one text at a time."""

    kind: ClassVar[str] = "latency"
    at_most_ms: float

    def __post_init__(self) -> None:
        """Check the number."""
        _check_positive("latency_ms", self.at_most_ms)

    def __str__(self) -> str:
        """Describe the goal."""
        return f"at most {self.at_most_ms:g} ms"


@dataclass(frozen=True)
class Guarantee:
    """Goal: the fastest policy whose risk is bounded, with a stated confidence.

    Args:
        risk: "disagreement", the share of texts whose answer differs from the full model's, or "accuracy", how much
            lower the accuracy is than the full model's.
        at_most: The bound.
        confidence: The probability that a calibration on other texts of the same kind keeps the bound.
        tolerance: For regression: values that are at most so far apart count as the same answer.
        reference: Whose answers are compared: "the full model", or "the original classifier" that it was made from.
    """

    kind: ClassVar[str] = "guarantee"
    risk: Risk = "disagreement"
    at_most: float = 0.01
    confidence: float = 0.95
    tolerance: float | None = None
    reference: str = FULL_MODEL

    def __post_init__(self) -> None:
        """Check that the bound can be guaranteed at all."""
        if self.risk not in get_args(Risk):
            raise InputError(f"risk '{self.risk}' is unknown; choose one of: {', '.join(get_args(Risk))}")
        if not 0 < self.at_most < 1:
            raise InputError(f"{GOAL_NAMES[self.risk]} {self.at_most:g} must be above 0 and below 1: 0.01 is 1 %")
        if self.tolerance is not None and not (0 <= self.tolerance < np.inf and self.risk == "disagreement"):
            raise InputError(f"tolerance {self.tolerance:g} must be 0 or more, and is for max_disagreement alone")
        if self.reference not in REFERENCES:
            raise InputError(f"reference '{self.reference:.60}' is unknown; choose one of: {', '.join(REFERENCES)}")
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence {self.confidence:g} must be above 0 and below 1: 0.95 is usual")

    def __str__(self) -> str:
        """Describe the guarantee in a sentence."""
        share = f"{100 * self.at_most:.4g}"
        if self.tolerance is not None:
            bound = f"values are more than {self.tolerance:.3g} from {self.reference}'s on at most {share} % of texts"
        elif self.risk == "disagreement":
            bound = f"answers differ from {self.reference}'s on at most {share} % of texts"
        else:
            bound = f"accuracy is at most {share} point{'' if share == '1' else 's'} below {self.reference}'s"
        return f"{bound}, with {100 * self.confidence:g} % confidence"


Goal = Speedup | Latency | Guarantee
GOALS: dict[str, type[Goal]] = {goal.kind: goal for goal in (Speedup, Latency, Guarantee)}


@dataclass(frozen=True)
class Nearest:
    """The smallest bound that the calibration texts could have proven for a policy worth having."""

    guarantee: Guarantee
    speedup: float


@dataclass(frozen=True)
class StaticExit:
    """All texts leave after the same layer: what a smaller model of that depth does."""

    layer: int
    speedup: float
    score: float


@dataclass(frozen=True)
class MoreCautious:
    """A more cautious policy that passed the same test on the way to the certified one.

    Policies are tested in a fixed order, so the guarantees of all that passed hold together, with one confidence.
    """

    changes: Metadata  # fields of the certified policy that are others here, with their values
    speedup: float
    measured: float
    bound: float


@dataclass(frozen=True)
class Source:
    """Which model, runtime and texts a trace or a policy comes from; None where that is not known."""

    fingerprint: str | None = None  # of the model's weights
    runtime: str | None = None
    data: str | None = None
    split: str | None = None
    metric: str | None = None
    carried_from: str | None = None  # the runtime it was calibrated in, if an export took it over

    @classmethod
    def of(cls, about: Metadata) -> Source:
        """Pick what is known of the source from a trace's metadata."""
        return cls(**{name: about[name] for name in _SOURCE_FIELDS if name in about})

    def carried_to(self, fingerprint: str, runtime: str) -> Source:
        """Return the source of a policy that another runtime takes over, because its logits are the same.

        Args:
            fingerprint: Of the model there.
            runtime: Its name.

        Returns:
            The source, which says where the policy was calibrated.
        """
        return replace(self, fingerprint=fingerprint, runtime=runtime, carried_from=self.runtime)

    def check_same(self, other: Source) -> None:
        """Refuse another model or runtime, as far as both are known.

        Args:
            other: What a policy is to be used for.
        """
        for name in ("runtime", "fingerprint"):  # the fingerprint of an export is not that of its model
            ours, theirs = getattr(self, name), getattr(other, name)
            if None not in (ours, theirs) and ours != theirs:
                raise InputError(
                    f"the policy was calibrated for {name} {ours}, and this is {name} {theirs}: "
                    "record and calibrate again"
                )


_SOURCE_FIELDS = tuple(field.name for field in fields(Source))


@dataclass(frozen=True)
class Certificate:
    """The result of a calibration, kept in policy.json beside the policy it speaks of."""

    goal: Goal
    texts: int  # that the figures rest on
    speedup: float  # in layers, on these texts
    source: Source
    met: bool = True  # False: no policy could be guaranteed, and this one never exits early
    asked: str | Metadata = "best"  # the strategy that was asked for: a name, or a policy without threshold
    metric: str | None = None  # of the scores; "agreement" with the full model where there were no labels
    score: float | None = None
    full_score: float | None = None  # of the full model
    latency_ms: float | None = None  # mean milliseconds a text, for a latency
    test: str | None = None  # the statistical test, for a guarantee
    measured: float | None = None  # the risk on these texts
    bound: float | None = None  # the upper bound of the risk, with the guarantee's confidence
    nearest: Nearest | None = None  # what could be guaranteed instead, where the goal is not met
    searched_on: int | None = None  # texts that strategies were searched or fitted on
    exits_chosen_on: int | None = None  # texts that the exits to ask were chosen on
    fixed: str | None = None  # the strategy that "best" took without a search, fixed beforehand
    static: StaticExit | None = None  # the best static exit that reaches the goal, for a speed-up or a latency
    trained_on: float | None = None  # share of the texts that the model was trained on, where that is known
    profile: Profile | None = None  # what the texts looked like, to notice when others differ
    cautious: Sequence[MoreCautious] | None = None  # the next more cautious first; for a guarantee
    exitpoll: str = field(default_factory=lambda: version("exitpoll"))

    @property
    def guarantee(self) -> Guarantee | None:
        """The guarantee that holds, if there is one."""
        return self.goal if isinstance(self.goal, Guarantee) and self.met else None

    def __repr__(self) -> str:
        """Describe goal, speed-up and texts."""
        state = "" if self.met else "not possible: "
        return f"Certificate({state}{self.goal}; {self.speedup:.2f} × in layers on {self.texts} texts)"

    def to_dict(self) -> JsonObject:
        """Return plain values for JSON, without what is not known."""
        plain = _without_none(asdict(replace(self, profile=None)))
        if self.cautious is not None:
            plain["cautious"] = list(plain["cautious"])
        plain["goal"] = {"kind": self.goal.kind, **_without_none(asdict(self.goal))}
        profile = {} if self.profile is None else {"profile": self.profile.to_dict()}
        return {"version": VERSION, **plain, **profile}

    @classmethod
    def from_dict(cls, content: object) -> Certificate:
        """Read what `to_dict` returned.

        Args:
            content: A JSON object.

        Returns:
            The certificate.
        """
        values = _checked_object(content, "certificate")
        if values.pop("version", None) != VERSION:
            raise InputError("the certificate is of another version: calibrate again")
        goal = _checked_object(values.pop("goal", None), "goal of the certificate")
        kind = goal.pop("kind", None)
        if not isinstance(kind, str) or kind not in GOALS:
            raise InputError(f"goal {kind!r} of the certificate is unknown; known goals: {', '.join(GOALS)}")
        parts: JsonObject = {
            "goal": _build(GOALS[kind], goal),
            "source": _build(Source, _checked_object(values.get("source"), "source of the certificate")),
        }
        for name, read in _PARTS.items():
            if values.get(name) is not None:
                parts[name] = read(values[name])
        return _build(cls, values | parts)


T = TypeVar("T")
_NUMBERS = (
    *("at_least", "at_most_ms", "at_most", "confidence", "tolerance", "speedup"),
    *(
        "score",
        "full_score",
        "latency_ms",
        "measured",
        "bound",
        "texts",
        "searched_on",
        "exits_chosen_on",
        "layer",
        "trained_on",
    ),
)
_KINDS: JsonObject = {
    **dict.fromkeys(("risk", "reference", "metric", "test", "fixed", "exitpoll", *_SOURCE_FIELDS), str),
    "met": bool,
    "asked": str | Mapping,
    "goal": Goal,
    "source": Source,
    "nearest": Nearest | None,
    "guarantee": Guarantee,
    "static": StaticExit | None,
    "profile": Profile | None,
    "cautious": tuple,
    "changes": Mapping,
}


def _nearest(content: object) -> Nearest:
    """Read the nearest guarantee."""
    values = _checked_object(content, "nearest of the certificate")
    guarantee = _build(Guarantee, _checked_object(values.pop("guarantee", None), "nearest of the certificate"))
    return _build(Nearest, values | {"guarantee": guarantee})


def _static(content: object) -> StaticExit:
    """Read the best static exit."""
    return _build(StaticExit, _checked_object(content, "static exit of the certificate"))


def _cautious(content: object) -> tuple[MoreCautious, ...]:
    """Read the more cautious policies; what they change is checked where they are made."""
    if not isinstance(content, list) or len(content) > MOST_CAUTIOUS:
        raise InputError(f"cautious must be a list of at most {MOST_CAUTIOUS} policies; calibrate again")
    steps = [_build(MoreCautious, _checked_object(step, "more cautious policy")) for step in content]
    unknown = {name for step in steps for name in step.changes} - set(CHANGES)
    if unknown:
        raise InputError(f"a more cautious policy may not change {', '.join(sorted(unknown))}; calibrate again")
    return tuple(steps)


_PARTS = {"nearest": _nearest, "static": _static, "profile": Profile.from_dict, "cautious": _cautious}


def _checked_object(content: object, name: str) -> JsonObject:
    """Check that content is a JSON object, and copy it."""
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        raise InputError(f"the {name} must be names with values, not {content!r:.60}")
    return dict(content)


def _build(cls: type[T], values: JsonObject) -> T:
    """Make one of the dataclasses above of plain values, and check them."""
    for name, value in values.items():
        if name in _NUMBERS:
            valid = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST
        else:
            valid = name in _KINDS and isinstance(value, _KINDS[name])
            valid = valid and not (isinstance(value, Mapping) and set(value) - set(ASKED) - {"threshold"})
        if not valid:
            raise InputError(f"{name} {value!r:.60} is not what the certificate of a policy holds; calibrate again")
    try:
        return cls(**values)
    except TypeError as error:  # a field is missing, or belongs to another goal
        raise InputError(f"the certificate is broken ({error}); calibrate again") from error


def _without_none(values: JsonObject) -> JsonObject:
    """Drop empty fields, at any depth."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }
