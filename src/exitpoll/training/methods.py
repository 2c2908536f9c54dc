"""The published recipes by name, and the settings of a training."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from exitpoll.errors import InputError

MethodName = Literal["deebert", "righttool", "fastbert", "pabee", "ensemble"]
Objective = Literal["relevancy", "ensemble", "self_distillation"]
Schedule = Literal["joint", "alternating", "two-stage", "mixed", "heads"]
Strategy = Literal[
    "entropy",
    "max_prob",
    "margin",
    "patience",
    "confident_patience",
    "js_patience",
    "votes",
    "soft_votes",
    "mean",
    "geometric",
    "hybrid",
    "learned",
]
Weights = Literal["uniform", "depth"]
Prune = Literal["layers", "heads"]  # what half of a trained model to drop


@dataclass(frozen=True)
class Method:
    """A published recipe: objective + schedule + strategy."""

    objective: Objective
    schedule: Schedule
    strategy: Strategy
    weights: Weights = "uniform"
    diversity_weight: float = 0.0
    paper: str = ""


METHODS: dict[MethodName, Method] = {
    "deebert": Method(
        "relevancy", "two-stage", "entropy", paper="DeeBERT: Dynamic Early Exiting, Xin et al., ACL 2020"
    ),
    "righttool": Method(
        "relevancy", "joint", "max_prob", paper="The Right Tool for the Job, Schwartz et al., ACL 2020"
    ),
    "fastbert": Method(
        "self_distillation", "two-stage", "entropy", paper="FastBERT: Self-distilling BERT, Liu et al., ACL 2020"
    ),
    "pabee": Method(
        "relevancy", "joint", "patience", weights="depth", paper="BERT Loses Patience, Zhou et al., NeurIPS 2020"
    ),
    "ensemble": Method(
        "ensemble",
        "joint",
        "votes",
        diversity_weight=0.2,
        paper="Early Exiting with Ensemble Internal Classifiers, Sun et al., 2021",
    ),
}

# What is trained, stage by stage: "last" is the encoder with the last head, "heads" the other heads on a frozen
# encoder, "all" everything together, "alternating" the last head and everything in turn, step by step (BERxiT, Xin et
# al., EACL 2021).
SCHEDULES: dict[Schedule, tuple[str, ...]] = {
    "joint": ("all",),
    "alternating": ("alternating",),
    "two-stage": ("last", "heads"),
    "mixed": ("last", "all"),
    "heads": ("heads",),
}


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How to train; a part left out is the method's.

    Args:
        method: The published recipe to follow.
        objective: The loss over all exits; the method's by default.
        schedule: What is trained when; the method's by default. "heads" leaves encoder and last head untouched.
        strategy: The exit strategy to go with it; the method's by default.
        weights: Weigh the exits alike or by depth; the method's by default.
        diversity_weight: λ of the ensemble objective, in [0, 1); the method's by default.
        closest: Take the diversity loss's minimum for each text or for the batch.
        through_target: Let the diversity loss's gradient flow into the earlier head too.
        neighbours: Compare a head with only so many heads before it.
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
    objective: Objective | None = None
    schedule: Schedule | None = None
    strategy: Strategy | None = None
    weights: Weights | None = None
    diversity_weight: float | None = None
    closest: Literal["text", "batch"] = "text"
    through_target: bool = False
    neighbours: int | None = None
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
        if settings.objective == "self_distillation" and SCHEDULES[settings.schedule or "joint"][-1] != "heads":
            raise InputError(
                f"schedule '{settings.schedule}' gives self-distillation no trained last head to learn from: "
                "use two-stage or heads"
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
    assert settings.diversity_weight is not None
    check_diversity_weight(settings.diversity_weight)
    ranges = {
        "epochs": (1, math.inf),
        "batch_size": (1, math.inf),
        "logs_per_epoch": (1, math.inf),
        "early_stop": (1, math.inf),
        "neighbours": (1, math.inf),
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


def check_diversity_weight(diversity_weight: float) -> None:
    """Refuse a λ under which the loss would push the right answer away (the paper's analysis of its loss).

    Args:
        diversity_weight: λ.
    """
    if not 0 <= diversity_weight < 1:
        raise InputError(
            f"diversity weight {diversity_weight} must be at least 0 and below 1: from 1 on, λ·p_c − 1 can turn "
            "positive and the loss would lower the probability of the right class"
        )
