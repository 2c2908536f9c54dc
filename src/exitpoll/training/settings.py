"""TrainingSettings: how to train, from the command line or Python; what is not set follows from the method."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

from exitpoll.decide.metrics import REGRESSION
from exitpoll.decide.strategies import STRATEGIES
from exitpoll.errors import InputError
from exitpoll.training.methods import METHODS, NEED_LAST_HEAD, SCHEDULES, ExitWeights, Method
from exitpoll.training.objectives import FALLBACK, OBJECTIVES

if TYPE_CHECKING:
    MethodName = str
    ObjectiveName = str
    ScheduleName = str
    StrategyName = str
else:  # read from the tables, so that the command line lists and checks whatever they hold
    MethodName, ObjectiveName = Literal[tuple(METHODS)], Literal[tuple(OBJECTIVES)]
    ScheduleName, StrategyName = Literal[tuple(SCHEDULES)], Literal[tuple(STRATEGIES)]

RANGES: dict[str, tuple[float, float]] = {  # inclusive
    "epochs": (1, math.inf),
    "batch_size": (1, math.inf),
    "logs_per_epoch": (1, math.inf),
    "early_stop": (1, math.inf),
    "neighbors": (1, math.inf),
    "max_length": (3, math.inf),
    "seed": (0, 2**32 - 1),
    "warmup": (0, 0.999),
    "layer_drop": (0, 0.999),
    "weight_decay": (0, 1),
}
POSITIVE = ("learning_rate", "head_learning_rate", "ngram_learning_rate", "max_grad_norm", "temperature")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How to train; what is not set follows from the method.

    Args:
        method: The published method to follow.
        objective: The loss over all exits; the method's by default, relevancy where that is not defined, and
            also for texts without labels, where the last exit's answers take their place.
        schedule: The order in which encoder and heads are trained; the method's by default, "heads" for a fine-tuned
            classifier. "heads" leaves the encoder and the last head unchanged, "exit-zero" all but the head at exit 0;
            "adapt" trains everything to answer as the last head did before.
        strategy: The exit strategy that goes with the model; the method's by default.
        exit_weights: Weight all exits alike or by depth; the method's by default.
        diversity_weight: λ of the ensemble objective, in [0, 1); the method's by default.
        closest: Take the minimum in the diversity loss for every text or once for the batch.
        through_target: Let the gradient of the diversity loss flow into the earlier head too.
        neighbors: Compare a head with at most this many heads directly before it.
        last_diversity: Keep the diversity term of the last head.
        temperature: Softmax temperature of self-distillation.
        layer_drop: The probability of skipping a layer in training (LayerDrop).
        epochs: Passes over the training texts, in every stage.
        batch_size: Texts in a training batch, of all processes that train together.
        learning_rate: Peak learning rate of the encoder.
        head_learning_rate: Peak learning rate of the heads.
        ngram_learning_rate: Peak learning rate of the n-gram table of exit 0, whose rows are read rarely.
        warmup: Share of the steps in which the learning rate rises.
        weight_decay: Weight decay of AdamW.
        max_grad_norm: Gradients are clipped to this norm.
        max_length: Longest text read, in tokens; the model's by default: 128 of an encoder, all that it reads of a
            classifier.
        logs_per_epoch: How many times in an epoch the calibration split is scored and a checkpoint saved.
        select: Keep the checkpoint with the best mean score over exits, last exit's score, or mean loss.
        early_stop: Stop after this many evaluations without improvement; never by default.
        precision: "auto" is bf16 on GPUs that support it, and fp32 elsewhere.
        seed: Seed of all random generators.
    """

    method: MethodName = "ensemble"
    objective: ObjectiveName | None = None
    schedule: ScheduleName | None = None
    strategy: StrategyName | None = None
    exit_weights: ExitWeights | None = None
    diversity_weight: float | None = None
    closest: Literal["text", "batch"] = "text"
    through_target: bool = False
    neighbors: int | None = None
    last_diversity: bool = True
    temperature: float = 1.0
    layer_drop: float = 0.0
    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 5e-5
    head_learning_rate: float = 1e-3
    ngram_learning_rate: float = 0.1
    warmup: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    max_length: int | None = None
    logs_per_epoch: int = 4
    select: Literal["mean", "last", "loss"] = "mean"
    early_stop: int | None = None
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    seed: int = 0

    def resolved(
        self, *, native_head: bool = False, problem_type: str | None = None, labelled: bool = True
    ) -> TrainingSettings:
        """Check all values and fill in those that follow from the method, the model and the texts.

        Args:
            native_head: Whether the model is a fine-tuned classifier with a head of its own. It stays unchanged, and
                only the heads below it are trained, unless a schedule is named.
            problem_type: As in transformers; None if it is not known yet.
            labelled: Whether the texts have labels.

        Returns:
            Settings in which objective, schedule, strategy, exit weights and diversity weight are set.
        """
        given = _with_plain_numbers(self)
        _check_choices(given)
        method = _fitting(METHODS[given.method], problem_type, labelled=labelled)
        unset = {
            field.name: getattr(method, field.name)
            for field in fields(method)
            if field.name != "paper" and getattr(given, field.name) is None
        }
        if native_head and given.schedule is None:
            unset["schedule"] = "heads"
        settings = replace(given, **unset)
        _check_ranges(settings)
        _check_schedule(settings, labelled=labelled)
        return settings


def fallback_notes(
    given: TrainingSettings, resolved: TrainingSettings, problem_type: str, *, labelled: bool
) -> list[str]:
    """Describe where a training departs from its method.

    Args:
        given: The settings as they were given.
        resolved: The same, resolved.
        problem_type: As in transformers.
        labelled: Whether the texts have labels.

    Returns:
        What a reader of the results should know.
    """
    method = METHODS[given.method]
    if not labelled and given.objective is None and resolved.objective != method.objective:
        return ["the texts have no labels: heads learn the last exit's answers"]
    if given.objective is None and resolved.objective != method.objective:
        reason = f"the {method.objective} objective of method {given.method} is not defined for {problem_type}"
        return [f"{reason}: the heads are trained with the {resolved.objective} objective"]
    return []


def _fitting(method: Method, problem_type: str | None, *, labelled: bool) -> Method:
    """Replace what a method cannot do with texts of this kind."""
    if problem_type == REGRESSION and not STRATEGIES[method.strategy].regression:
        method = replace(method, strategy=next(name for name, row in STRATEGIES.items() if row.regression))
    if not labelled and not OBJECTIVES[method.objective].needs_trained_last_head:
        return replace(method, objective=FALLBACK, diversity_weight=0.0)
    if problem_type is not None and problem_type not in OBJECTIVES[method.objective].problem_types:
        return replace(method, objective=FALLBACK, diversity_weight=0.0)
    return method


def _with_plain_numbers(settings: TrainingSettings) -> TrainingSettings:
    """Refuse values of a wrong type; numbers of NumPy become numbers of Python."""
    plain: dict[str, Any] = {}
    for name, hint in get_type_hints(TrainingSettings).items():
        value, kinds = getattr(settings, name), (hint, *get_args(hint))
        if value is None and type(None) in kinds:
            continue
        if bool in kinds and not isinstance(value, bool):
            raise InputError(f"{name} {value!r:.60} must be True or False")
        if int in kinds:
            plain[name] = _plain_number(name, value, Integral, "an integer")
        elif float in kinds:
            plain[name] = _plain_number(name, value, Real, "a number")
    return replace(settings, **plain)


def _plain_number(name: str, value: object, kind: type, called: str) -> int | float:
    """Refuse what is not a number of a kind; True is none."""
    if isinstance(value, bool) or not isinstance(value, kind):
        raise InputError(f"{name} {value!r:.60} must be {called}")
    assert isinstance(value, Real)
    return int(value) if isinstance(value, Integral) else float(value)


def _check_choices(settings: TrainingSettings) -> None:
    """Refuse a value that is not among the choices of its setting."""
    for name, hint in get_type_hints(TrainingSettings).items():
        choices = _choices(hint)
        value = getattr(settings, name)
        if choices and value is not None and value not in choices:
            raise InputError(f"{name} '{value!s:.60}' is unknown; choose one of: {', '.join(choices)}")


def _choices(hint: object) -> tuple[str, ...]:
    """Return the choices of a type that is a Literal, or a Literal or None."""
    return tuple(choice for part in (hint, *get_args(hint)) for choice in get_args(part) if isinstance(choice, str))


def _check_ranges(settings: TrainingSettings) -> None:
    """Refuse numbers out of range; NaN is out of every range."""
    from exitpoll.models.losses import check_diversity_weight  # imports torch, which this module must not

    assert settings.diversity_weight is not None
    check_diversity_weight(settings.diversity_weight)
    for name, (lowest, highest) in RANGES.items():
        value = getattr(settings, name)
        if value is not None and not lowest <= value <= highest:
            at_most = "" if highest == math.inf else f" and at most {highest}"
            raise InputError(f"{name} {value} must be at least {lowest}{at_most}")
    for name in POSITIVE:
        if not 0 < getattr(settings, name) < math.inf:
            raise InputError(f"{name} {getattr(settings, name)} must be above 0")


def _check_schedule(settings: TrainingSettings, *, labelled: bool) -> None:
    """Refuse a schedule that does not train the last head before heads that learn from it, or that needs labels."""
    assert settings.objective is not None
    assert settings.schedule is not None
    if not labelled and settings.schedule not in NEED_LAST_HEAD:
        raise InputError(
            "the texts have no labels, from which only the heads below a fine-tuned classifier can learn "
            "(schedule heads): use labelled texts, or start from a classifier"
        )
    trained_before = SCHEDULES[settings.schedule][-1] in NEED_LAST_HEAD
    if OBJECTIVES[settings.objective].needs_trained_last_head and not trained_before:
        raise InputError(
            f"objective '{settings.objective}' learns from a trained last head, which schedule "
            f"'{settings.schedule}' does not train first: use two-stage or heads"
        )
