"""The paper's experiments as data: which tasks, which methods by which strategies, which settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exitpoll.decide.policy import Policy
from exitpoll.study.pruning import Prune
from exitpoll.training.methods import ExitWeights
from exitpoll.training.settings import MethodName

BINARY = ("cola", "mrpc", "qqp", "rte", "sst2")
MULTICLASS = ("agnews", "sst5", "trec")
BEYOND = ("nsmc", "qnli")  # binary, and not in the paper's table: Korean film reviews; does a sentence answer
RANGES = {"binary": (1.3, 2.0), "multiclass": (1.3, 2.3)}  # of speed-ups, in which the best threshold is looked for
TWINS: dict[ExitWeights, MethodName] = {"depth": "pabee", "uniform": "righttool"}  # what ours is without diversity
STARTS = {"rte": ("mnli", "snli")}  # tasks that start from a checkpoint of another, the first there is

# Table 5, "Hyperparameters used in our experiments".
PRESETS: dict[str, dict[str, Any]] = {
    "mrpc": {"learning_rate": 5e-5, "batch_size": 32, "epochs": 3, "warmup": 0.1, "diversity_weight": 0.1},
    "sst2": {"learning_rate": 1e-5, "batch_size": 16, "epochs": 5, "warmup": 0.0, "diversity_weight": 0.5},
    "qnli": {"learning_rate": 2e-5, "batch_size": 32, "epochs": 3, "warmup": 0.1, "diversity_weight": 0.5},
    "rte": {"learning_rate": 3e-5, "batch_size": 16, "epochs": 5, "warmup": 0.1, "diversity_weight": 0.1},
    "agnews": {"learning_rate": 1e-5, "batch_size": 32, "epochs": 5, "warmup": 0.1, "diversity_weight": 0.5},
    "trec": {"learning_rate": 2e-5, "batch_size": 16, "epochs": 4, "warmup": 0.1, "diversity_weight": 0.3},
    "sst5": {"learning_rate": 2e-5, "batch_size": 16, "epochs": 3, "warmup": 0.2, "diversity_weight": 0.1},
}

# The appendix: "we perform grid search over …".
GRID: dict[str, Sequence[Any]] = {
    "batch_size": (16, 32),
    "learning_rate": (1e-5, 2e-5, 3e-5, 5e-5),
    "epochs": (3, 4, 5),
    "diversity_weight": (0.1, 0.2, 0.3, 0.5),
}


@dataclass(frozen=True)
class Row:
    """One row of the tables of results."""

    name: str
    method: MethodName
    strategies: Sequence[str | Policy] = ()  # candidates for the threshold search; none for a static model
    share: float | None = None  # of the layers, for a static model
    prune: Prune | None = None  # what half of the static model to drop
    settings: Mapping[str, Any] = field(default_factory=dict)  # beside the method's own
    pooling: str | None = None  # what a head reads, where that is the point

    @property
    def file_name(self) -> str:
        """The name as that of a file or folder."""
        return self.name.replace(", ", "-").replace(" ", "-")

    def trains_as(self, other: Row) -> bool:
        """Whether another row is of the same kind of training, but for single settings of it.

        Args:
            other: The other row.

        Returns:
            Whether what is a good rate for one may be one for the other.
        """
        ours, theirs = ((row.method, row.share, row.prune, row.settings.get("schedule")) for row in (self, other))
        return ours == theirs


FULL = "full model"
OURS = ("votes", "patience", "soft_votes", "entropy", "hybrid", "learned")
_STATIC: dict[str, Any] = {
    "objective": "relevancy",
    "schedule": "joint",
    "exit_weights": "uniform",
    "diversity_weight": 0.0,
}
_HEADS: dict[str, Any] = {"schedule": "heads"}  # of the full model, whose training is the first stage of these methods

ROWS: tuple[Row, ...] = (
    Row(FULL, "ensemble", share=1.0, settings=_STATIC),
    Row("first half", "ensemble", share=0.5, settings=_STATIC),
    Row("first three quarters", "ensemble", share=0.75, settings=_STATIC),
    Row("LayerDrop", "ensemble", share=1.0, prune="layers", settings={**_STATIC, "layer_drop": 0.5}),
    Row("HeadPrune", "ensemble", share=1.0, prune="heads", settings=_STATIC),
    Row("DeeBERT", "deebert", ["entropy"], settings=_HEADS),
    Row("RightTool", "righttool", ["max_prob"]),
    Row("FastBERT", "fastbert", [Policy("entropy", settings={"normalized": True})], settings=_HEADS),
    Row("PABEE", "pabee", ["patience"]),
    Row("ours, patience", "ensemble", ["patience"]),
    Row("ours, votes", "ensemble", ["votes"]),
    Row("ours, soft votes", "ensemble", ["soft_votes"]),
    Row("ours, entropy", "ensemble", ["entropy"]),
    Row("ours, hybrid", "ensemble", ["hybrid"]),
    Row("ours, learned", "ensemble", ["learned"]),
    Row("ours on the full model", "ensemble", OURS, settings=_HEADS),
)
NAMED = {row.name: row for row in ROWS}

_NO_DIVERSITY = {"diversity_weight": 0.0}
_BEST_OF_THREE = Row("ours, best of votes, patience and entropy", "ensemble", ["votes", "patience", "entropy"])
BEST = Row("ours, best of all", "ensemble", OURS)  # one of them, whichever is best on calibration texts

OURS_ROW, WITHOUT = NAMED["ours, votes"], Row("λ = 0", "ensemble", settings=_NO_DIVERSITY)

# What the comparison with the paper asks: of two ways at one speed-up, how far is the first above the second?
# The first may be several: whichever is best on calibration texts.
Question = tuple[Row | tuple[Row, ...], Row]
KEPT = "best of ours against the full model"
CONTESTS: dict[str, Question] = {
    "diversity, by patience": (
        NAMED["ours, patience"],
        Row("λ = 0, patience", "ensemble", ["patience"], settings=_NO_DIVERSITY),
    ),
    "diversity, by votes": (NAMED["ours, votes"], Row("λ = 0, votes", "ensemble", ["votes"], settings=_NO_DIVERSITY)),
    "ours against PABEE, both by patience": (NAMED["ours, patience"], NAMED["PABEE"]),
    "ours by votes against PABEE": (NAMED["ours, votes"], NAMED["PABEE"]),
    "votes against patience": (NAMED["ours, votes"], NAMED["ours, patience"]),
    "entropy against votes": (NAMED["ours, entropy"], NAMED["ours, votes"]),
    "soft votes against votes": (NAMED["ours, soft votes"], NAMED["ours, votes"]),
    "hybrid against the best of votes, patience and entropy": (NAMED["ours, hybrid"], _BEST_OF_THREE),
    "learned against the best of votes, patience and entropy": (NAMED["ours, learned"], _BEST_OF_THREE),
    KEPT: ((BEST, NAMED["ours on the full model"]), NAMED[FULL]),
}

# Tables 2 (development sets) and 3 of the paper, ALBERT-base; RightTool is not in them.
_COLUMNS = ("cola", "mrpc", "qqp", "rte", "sst2", "agnews", "sst5", "trec")
PAPER: dict[str, dict[str, float]] = {
    name: dict(zip(_COLUMNS, figures, strict=False))
    for name, figures in {
        FULL: (58.9, 89.5, 89.6, 78.6, 92.8, 94.8, 53.9, 97.0),
        "first half": (53.4, 85.8, 86.8, 73.6, 89.8, 94.5, 52.6, 95.8),
        "first three quarters": (55.2, 87.1, 88.3, 75.9, 91.3, 94.7, 53.6, 97.0),
        "LayerDrop": (53.6, 85.9, 87.3, 74.3, 90.7),
        "HeadPrune": (54.1, 86.2, 88.0, 75.1, 90.5),
        "DeeBERT": (57.6, 89.8, 89.1, 79.1, 92.9, 94.8, 53.7, 96.5),
        "FastBERT": (58.0, 89.8, 89.3, 79.5, 92.9, 94.8, 53.9, 97.0),
        "PABEE": (61.2, 90.0, 89.6, 80.1, 93.0, 94.7, 54.0, 96.2),
        "ours, patience": (61.4, 92.4, 89.6, 80.9, 93.2, 95.0, 54.5, 96.6),
        "ours, votes": (61.6, 92.7, 89.8, 80.9, 93.5, 95.2, 54.9, 97.0),
    }.items()
}

# Readings of the loss that the paper leaves open, other weights of it, and other heads: each a change of ours.
VARIANTS: tuple[Row, ...] = tuple(
    Row(name, "ensemble", settings=settings, pooling=pooling)
    for name, settings, pooling in (
        ("λ = 0.1", {"diversity_weight": 0.1}, None),
        ("λ = 0.2", {"diversity_weight": 0.2}, None),
        ("λ = 0.3", {"diversity_weight": 0.3}, None),
        ("closest over the batch", {"closest": "batch"}, None),
        ("gradient into the earlier head", {"through_target": True}, None),
        ("weights alike", {"exit_weights": "uniform"}, None),
        ("weights by depth", {"exit_weights": "depth"}, None),
        ("last head not diverse", {"last_diversity": False}, None),
        ("nearest neighbour only", {"neighbors": 1}, None),
        ("heads read the first token", {}, "first"),
        ("heads learn at 5e-5", {"head_learning_rate": 5e-5}, None),
        ("first token at 5e-5", {"head_learning_rate": 5e-5}, "first"),
    )
)
