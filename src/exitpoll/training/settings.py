"""TrainingSettings: how to train, from the command line or Python; what is left out is the method's."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

from exitpoll.decide.strategies import STRATEGIES
from exitpoll.errors import InputError
from exitpoll.training.methods import METHODS, SCHEDULES, ExitWeights
from exitpoll.training.objectives import OBJECTIVES

if TYPE_CHECKING:
    MethodName = str
    ObjectiveName = str
    ScheduleName = str
    StrategyName = str
else:  # read from the tables, so that the command line lists and checks whatever they hold
    MethodName, ObjectiveName = Literal[tuple(METHODS)], Literal[tuple(OBJECTIVES)]
    ScheduleName, StrategyName = Literal[tuple(SCHEDULES)], Literal[tuple(STRATEGIES)]


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How to train; a part left out is the method's.

    Args:
        method: The published recipe to follow.
        objective: The loss over all exits; the method's by default.
        schedule: What is trained when; the method's by default. "heads" leaves encoder and last head untouched.
        strategy: The exit strategy to go with it; the method's by default.
        exit_weights: Weigh the exits alike or by depth; the method's by default.
        diversity_weight: λ of the ensemble objective, in [0, 1); the method's by default.
        closest: Take the diversity loss's minimum for each text or for the batch.
        through_target: Let the diversity loss's gradient flow into the earlier head too.
        neighbors: Compare a head with only so many heads before it.
        last_diversity: Keep the diversity term of the last head.
        temperature: Softens self-distillation.
        layer_drop: How likely each layer is to be skipped in training (LayerDrop).
        epochs: Passes over the training texts, in each stage.
        batch_size: Texts in a training batch.
        learning_rate: Highest learning rate of the encoder.
        head_learning_rate: Highest learning rate of the heads.
        warmup: Share of the steps in which the learning rate rises.
        weight_decay: AdamW's weight decay.
        max_grad_norm: Gradients are clipped to this norm.
        max_length: Longest text read, in tokens; the model's (128) by default.
        logs_per_epoch: How often an epoch is interrupted to score the calibration split and save a checkpoint.
        select: Keep the checkpoint with the best mean score over exits, last exit's score, or mean loss.
        early_stop: Stop after so many scorings without a new best; never by default.
        precision: "auto" is bf16 where the graphics card has it, and fp32 elsewhere.
        seed: Seed of everything random.
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
    warmup: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    max_length: int | None = None
    logs_per_epoch: int = 4
    select: Literal["mean", "last", "loss"] = "mean"
    early_stop: int | None = None
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    seed: int = 0

    def resolved(self) -> TrainingSettings:
        """Fill in what is the method's, and refuse what cannot be.

        Returns:
            Settings without gaps.
        """
        _check_choices(self)
        method = METHODS[self.method]
        gaps = {
            field.name: getattr(method, field.name)
            for field in fields(method)
            if field.name != "paper" and getattr(self, field.name) is None
        }
        settings = replace(self, **gaps)
        _check_ranges(settings)
        assert settings.objective is not None
        assert settings.schedule is not None
        if OBJECTIVES[settings.objective].needs_trained_last_head and SCHEDULES[settings.schedule][-1] != "heads":
            raise InputError(
                f"objective '{settings.objective}' learns from a trained last head, which schedule "
                f"'{settings.schedule}' does not train first: use two-stage or heads"
            )
        return settings


def _check_choices(settings: TrainingSettings) -> None:
    """Refuse a value that is not among its setting's choices."""
    for name, hint in get_type_hints(TrainingSettings).items():
        choices = _choices(hint)
        value = getattr(settings, name)
        if choices and value is not None and value not in choices:
            raise InputError(f"{name} '{value}' is unknown; choose one of: {', '.join(choices)}")


def _choices(hint: Any) -> tuple[str, ...]:
    """List the choices of a type that is a Literal or a Literal or None."""
    return tuple(choice for part in (hint, *get_args(hint)) for choice in get_args(part) if isinstance(choice, str))


def _check_ranges(settings: TrainingSettings) -> None:
    """Refuse numbers that no training can use; NaN is in no range."""
    from exitpoll.models.losses import check_diversity_weight  # imports torch, which naming settings must not

    assert settings.diversity_weight is not None
    check_diversity_weight(settings.diversity_weight)
    ranges = {
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
    for name, (least, most) in ranges.items():
        value = getattr(settings, name)
        if value is not None and not least <= value <= most:
            raise InputError(
                f"{name} {value} must be at least {least}" + (f" and at most {most}" if most < math.inf else "")
            )
    for name in ("learning_rate", "head_learning_rate", "max_grad_norm", "temperature"):
        if not 0 < getattr(settings, name) < math.inf:
            raise InputError(f"{name} {getattr(settings, name)} must be above 0")
