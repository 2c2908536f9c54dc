"""The experiments of Sun et al. (2021) as data: tasks, methods with their strategies, settings, published scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from exitpoll.decide.policy import Policy
from exitpoll.study.pruning import Prune
from exitpoll.training.methods import ExitWeights
from exitpoll.training.settings import MethodName

BINARY = ("cola", "mrpc", "qqp", "rte", "sst2")
MULTICLASS = ("agnews", "sst5", "trec")
OTHER_BINARY = ("nsmc", "qnli")  # not in the paper's table: Korean movie reviews; question answering as entailment
RANGES = {"binary": (1.3, 2.0), "multiclass": (1.3, 2.3)}  # of speed-ups, in which the best threshold is chosen
STARTING_TASKS = {"rte": ("mnli", "snli")}  # the first available one is trained before the task itself
# The methods whose training is that of the paper's ensemble without its diversity term.
METHODS_WITHOUT_DIVERSITY: dict[ExitWeights, MethodName] = {"depth": "pabee", "uniform": "righttool"}

Overrides = Mapping[str, Any]  # some fields of TrainingSettings, by name

# Table 5, "Hyperparameters used in our experiments".
PRESETS: dict[str, Overrides] = {
    "mrpc": {"learning_rate": 5e-5, "batch_size": 32, "epochs": 3, "warmup": 0.1, "diversity_weight": 0.1},
    "sst2": {"learning_rate": 1e-5, "batch_size": 16, "epochs": 5, "warmup": 0.0, "diversity_weight": 0.5},
    "qnli": {"learning_rate": 2e-5, "batch_size": 32, "epochs": 3, "warmup": 0.1, "diversity_weight": 0.5},
    "rte": {"learning_rate": 3e-5, "batch_size": 16, "epochs": 5, "warmup": 0.1, "diversity_weight": 0.1},
    "agnews": {"learning_rate": 1e-5, "batch_size": 32, "epochs": 5, "warmup": 0.1, "diversity_weight": 0.5},
    "trec": {"learning_rate": 2e-5, "batch_size": 16, "epochs": 4, "warmup": 0.1, "diversity_weight": 0.3},
    "sst5": {"learning_rate": 2e-5, "batch_size": 16, "epochs": 3, "warmup": 0.2, "diversity_weight": 0.1},
}

# The appendix: "we perform grid search over …".
GRID: dict[str, Sequence[float]] = {
    "batch_size": (16, 32),
    "learning_rate": (1e-5, 2e-5, 3e-5, 5e-5),
    "epochs": (3, 4, 5),
    "diversity_weight": (0.1, 0.2, 0.3, 0.5),
}


@dataclass(frozen=True)
class TableRow:
    """One row of the tables of results: a method of training and the strategies to decide by."""

    name: str
    method: MethodName
    strategies: Sequence[str | Policy] = ()  # candidates for the threshold search; none for a static model
    share: float | None = None  # of the layers, for a static model
    prune: Prune | None = None  # which half of the static model to remove
    settings: Overrides = field(default_factory=dict)  # that differ from the method's own
    pooling: str | None = None  # what the heads read, where it differs from the plan's

    @property
    def file_name(self) -> str:
        """The name as a file or folder name."""
        return self.name.replace(", ", "-").replace(" ", "-")

    def trains_as(self, other: TableRow) -> bool:
        """Return whether another row is trained in the same way, so that good settings of one suit the other.

        Args:
            other: The other row.

        Returns:
            Whether method, depth, pruning and schedule are the same.
        """
        ours, theirs = ((row.method, row.share, row.prune, row.settings.get("schedule")) for row in (self, other))
        return ours == theirs


FULL = "full model"
OUR_STRATEGIES = ("votes", "patience", "soft_votes", "entropy", "hybrid", "learned")
_STATIC: Overrides = {
    "objective": "relevancy",
    "schedule": "joint",
    "exit_weights": "uniform",
    "diversity_weight": 0.0,
}
_HEADS: Overrides = {"schedule": "heads"}  # on the full model, whose training is the first stage of these methods

ROWS: tuple[TableRow, ...] = (
    TableRow(FULL, "ensemble", share=1.0, settings=_STATIC),
    TableRow("first half", "ensemble", share=0.5, settings=_STATIC),
    TableRow("first three quarters", "ensemble", share=0.75, settings=_STATIC),
    TableRow("LayerDrop", "ensemble", share=1.0, prune="layers", settings={**_STATIC, "layer_drop": 0.5}),
    TableRow("HeadPrune", "ensemble", share=1.0, prune="heads", settings=_STATIC),
    TableRow("DeeBERT", "deebert", ["entropy"], settings=_HEADS),
    TableRow("RightTool", "righttool", ["max_prob"]),
    TableRow("FastBERT", "fastbert", [Policy("entropy", settings={"normalized": True})], settings=_HEADS),
    TableRow("PABEE", "pabee", ["patience"]),
    TableRow("ours, patience", "ensemble", ["patience"]),
    TableRow("ours, votes", "ensemble", ["votes"]),
    TableRow("ours, soft votes", "ensemble", ["soft_votes"]),
    TableRow("ours, entropy", "ensemble", ["entropy"]),
    TableRow("ours, hybrid", "ensemble", ["hybrid"]),
    TableRow("ours, learned", "ensemble", ["learned"]),
    TableRow("ours on the full model", "ensemble", OUR_STRATEGIES, settings=_HEADS),
)
ROWS_BY_NAME = {row.name: row for row in ROWS}

_PABEE, _PATIENCE, _VOTES = (ROWS_BY_NAME[name] for name in ("PABEE", "ours, patience", "ours, votes"))
_SOFT_VOTES, _ENTROPY = (ROWS_BY_NAME[name] for name in ("ours, soft votes", "ours, entropy"))
_HYBRID, _LEARNED = (ROWS_BY_NAME[name] for name in ("ours, hybrid", "ours, learned"))
_BEST_OF_THREE = TableRow("ours, best of votes, patience and entropy", "ensemble", ["votes", "patience", "entropy"])
BEST_ROW = TableRow("ours, best of all", "ensemble", OUR_STRATEGIES)  # whichever is best on calibration texts

_NO_DIVERSITY: Overrides = {"diversity_weight": 0.0}
OURS_ROW = _VOTES
NO_DIVERSITY_ROW = TableRow("λ = 0", "ensemble", settings=_NO_DIVERSITY)


@dataclass(frozen=True)
class Contrast:
    """Two ways to decide, to be compared at the same speed-up."""

    first: tuple[TableRow, ...]  # whichever is best on calibration texts
    second: TableRow


AGAINST_FULL = "best of ours against the full model"
CONTRASTS: dict[str, Contrast] = {
    "diversity, by patience": Contrast(
        (_PATIENCE,), replace(_PATIENCE, name="λ = 0, patience", settings=_NO_DIVERSITY)
    ),
    "diversity, by votes": Contrast((_VOTES,), replace(_VOTES, name="λ = 0, votes", settings=_NO_DIVERSITY)),
    "ours against PABEE, both by patience": Contrast((_PATIENCE,), _PABEE),
    "ours by votes against PABEE": Contrast((_VOTES,), _PABEE),
    "votes against patience": Contrast((_VOTES,), _PATIENCE),
    "entropy against votes": Contrast((_ENTROPY,), _VOTES),
    "soft votes against votes": Contrast((_SOFT_VOTES,), _VOTES),
    "hybrid against the best of votes, patience and entropy": Contrast((_HYBRID,), _BEST_OF_THREE),
    "learned against the best of votes, patience and entropy": Contrast((_LEARNED,), _BEST_OF_THREE),
    AGAINST_FULL: Contrast((BEST_ROW, ROWS_BY_NAME["ours on the full model"]), ROWS_BY_NAME[FULL]),
}

# Tables 2 (development sets) and 3 of the paper, ALBERT-base, in %; RightTool is not in them.
_COLUMNS = ("cola", "mrpc", "qqp", "rte", "sst2", "agnews", "sst5", "trec")
PAPER_SCORES: dict[str, dict[str, float]] = {
    name: dict(zip(_COLUMNS, scores, strict=False))
    for name, scores in {
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

# Single changes of ours: readings of the loss that the paper leaves open, other weights of its terms, other heads.
VARIANTS: tuple[TableRow, ...] = tuple(
    TableRow(name, "ensemble", settings=settings, pooling=pooling)
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
