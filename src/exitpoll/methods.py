"""The published recipes by name, and the settings of a training."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from exitpoll.errors import InputError


@dataclass(frozen=True)
class Method:
    """A published recipe: objective + schedule + strategy."""

    objective: str
    schedule: str
    strategy: str
    weights: str = "uniform"
    diversity_weight: float = 0.0
    paper: str = ""


METHODS: dict[str, Method] = {
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
# encoder, "all" everything together.
SCHEDULES: dict[str, tuple[str, ...]] = {
    "joint": ("all",),
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
        epochs: Passes over the training texts, in each stage.
        batch_size: Texts in a training batch.
        learning_rate: Highest learning rate of the encoder.
        head_learning_rate: Highest learning rate of the heads.
        warmup: Share of the steps in which the learning rate rises.
        weight_decay: AdamW's weight decay.
        max_grad_norm: Gradients are clipped to this norm.
        max_length: Longest text read, in tokens.
        logs_per_epoch: How often an epoch is interrupted to score the calibration split and save a checkpoint.
        select: Keep the checkpoint with the best mean score over exits, last exit's score, or mean loss.
        early_stop: Stop after so many scorings without a new best; never by default.
        precision: "auto" is bf16 where the graphics card has it, and fp32 elsewhere.
        seed: Seed of everything random.
    """

    method: Literal["deebert", "righttool", "fastbert", "pabee", "ensemble"] = "ensemble"
    objective: Literal["relevancy", "ensemble", "self_distillation"] | None = None
    schedule: Literal["joint", "two-stage", "mixed", "heads"] | None = None
    strategy: str | None = None
    weights: Literal["uniform", "depth"] | None = None
    diversity_weight: float | None = None
    closest: Literal["text", "batch"] = "text"
    through_target: bool = False
    neighbours: int | None = None
    last_diversity: bool = True
    temperature: float = 1.0
    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 5e-5
    head_learning_rate: float = 1e-3
    warmup: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    max_length: int = 128
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
        _check_choice("method", self.method, METHODS)
        method = METHODS[self.method]
        gaps = {
            field.name: getattr(method, field.name)
            for field in fields(method)
            if field.name != "paper" and getattr(self, field.name) is None
        }
        settings = replace(self, **gaps)
        _check_choice("schedule", settings.schedule, SCHEDULES)
        for name in ("epochs", "batch_size", "learning_rate", "head_learning_rate", "max_grad_norm", "logs_per_epoch"):
            if getattr(settings, name) <= 0:
                raise InputError(f"{name} {getattr(settings, name)} must be above 0")
        if not 0 <= settings.warmup < 1:
            raise InputError(f"warmup {settings.warmup} must be a share of the steps, at least 0 and below 1")
        return settings


def _check_choice(name: str, value: str | None, choices: dict) -> None:
    """Refuse a value that is not in a table."""
    if value not in choices:
        raise InputError(f"{name} '{value}' is unknown; choose one of: {', '.join(choices)}")
