"""The published methods by name, as combinations of an objective, a schedule and an exit strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ExitWeights = Literal["uniform", "depth"]


@dataclass(frozen=True)
class Method:
    """A published method; settings that are not set take its values."""

    objective: str  # a name in training.objectives.OBJECTIVES
    schedule: str  # a name in SCHEDULES
    strategy: str  # a name in decide.strategies.STRATEGIES
    exit_weights: ExitWeights = "uniform"
    diversity_weight: float = 0.0
    paper: str = ""


# A new method is one row here.
METHODS: dict[str, Method] = {
    "deebert": Method("relevancy", "two-stage", "entropy", paper="Xin et al. (2020), DeeBERT: Dynamic Early Exiting"),
    "righttool": Method("relevancy", "joint", "max_prob", paper="Schwartz et al. (2020), The Right Tool for the Job"),
    "fastbert": Method(
        "self_distillation", "two-stage", "entropy", paper="Liu et al. (2020), FastBERT: Self-distilling BERT"
    ),
    "pabee": Method(
        "relevancy", "joint", "patience", exit_weights="depth", paper="Zhou et al. (2020), BERT Loses Patience"
    ),
    "ensemble": Method(
        "ensemble",
        "joint",
        "votes",
        diversity_weight=0.2,
        paper="Sun et al. (2021), Early Exiting with Ensemble Internal Classifiers",
    ),
}

# The stages of every schedule, in order: "last" trains the encoder with the last head, "heads" the other heads on a
# frozen encoder, "all" everything jointly, "alternating" the same with only the last head at every other step,
# Xin et al. (2021), "exit-zero" the head before the first layer alone, on a trained model, "adapt" everything jointly
# on what a trained model answers at full depth, which is recorded first.
SCHEDULES: dict[str, tuple[str, ...]] = {
    "joint": ("all",),
    "alternating": ("alternating",),
    "two-stage": ("last", "heads"),
    "mixed": ("last", "all"),
    "heads": ("heads",),
    "exit-zero": ("exit-zero",),
    "adapt": ("adapt",),
}
# The schedules that start from a trained last head: texts need no labels, heads can learn its answers.
NEED_LAST_HEAD = ("heads", "exit-zero", "adapt")
