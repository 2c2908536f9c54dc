"""The published methods by name: an objective, a schedule and an exit strategy each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ExitWeights = Literal["uniform", "depth"]


@dataclass(frozen=True)
class Method:
    """A published method: objective + schedule + strategy."""

    objective: str  # a name in training.objectives.OBJECTIVES
    schedule: str  # a name in SCHEDULES
    strategy: str  # a name in decide.strategies.STRATEGIES
    exit_weights: ExitWeights = "uniform"
    diversity_weight: float = 0.0
    paper: str = ""


# A new method is one row here.
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
        "relevancy", "joint", "patience", exit_weights="depth", paper="BERT Loses Patience, Zhou et al., NeurIPS 2020"
    ),
    "ensemble": Method(
        "ensemble",
        "joint",
        "votes",
        diversity_weight=0.2,
        paper="Early Exiting with Ensemble Internal Classifiers, Sun et al., 2021",
    ),
}

# The stages of a schedule, in order: "last" trains the encoder with the last head, "heads" the other heads on a frozen
# encoder, "all" everything jointly, "alternating" the last head alone at every other step (BERxiT, Xin et al., 2021).
SCHEDULES: dict[str, tuple[str, ...]] = {
    "joint": ("all",),
    "alternating": ("alternating",),
    "two-stage": ("last", "heads"),
    "mixed": ("last", "all"),
    "heads": ("heads",),
}
