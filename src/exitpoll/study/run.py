"""Run: one training run of the study, its name and its digests; Outcome: the files that it writes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TypedDict, cast

from numpy.typing import NDArray
from safetensors.numpy import load_file

from exitpoll.decide.policy import Policy
from exitpoll.decide.sweep import Curve, sweep
from exitpoll.decide.trace import Trace
from exitpoll.files import read_json
from exitpoll.models.folder import JOURNAL
from exitpoll.study.pruning import Prune
from exitpoll.training.settings import TrainingSettings

RUN, MODEL, SNAPSHOTS = "run.json", "model", "moments.safetensors"
SPLITS, UNLABELLED = ("calibration", "test"), "unlabelled"
LABELS = "labels"  # beside the snapshots, which are named by their training steps


@dataclass(frozen=True)
class Run:
    """What a run is made from."""

    data: str  # a file, a folder, a known task's name or a hub dataset's
    encoder: str  # a hub name or a folder
    settings: TrainingSettings
    exits: tuple[int, ...] | None = None  # after every layer by default
    limit: int | None = None  # of training texts
    held_out: int | None = None  # limit of calibration texts, and of test texts
    start: Run | None = None  # whose encoder to start from, instead of the pretrained one
    pooling: str = "mean"
    prune: Prune | None = None  # which half of the trained model to remove

    @property
    def task(self) -> str:
        """The name of the data."""
        return Path(self.data).name

    @cached_property
    def identity(self) -> dict[str, object]:
        """Everything that the outcome depends on, as plain values; files by name: `digests` has their contents."""
        return {
            "task": _plain_name(self.data),
            "encoder": _plain_name(self.encoder),
            "settings": _stored_settings(asdict(self.settings.resolved())),
            "exits": None if self.exits is None else list(self.exits),
            "limit": self.limit,
            "held_out": self.held_out,
            "start": None if self.start is None else self.start.identity,
            "pooling": self.pooling,
            "prune": self.prune,
        }

    @property
    def digests(self) -> dict[str, str]:
        """Digests of the local files that the run reads, to tell them from others of the same names."""
        sources = {"data": self.data, "encoder": self.encoder}
        own = {name: _digest(source) for name, source in sources.items() if Path(source).exists()}
        start = {} if self.start is None else self.start.digests
        others = {name: digest for name, digest in start.items() if digest not in own.values()}
        return own | {f"{name} of the start": digest for name, digest in others.items()}

    @cached_property
    def name(self) -> str:
        """A unique and readable name, also of the run's folder in the cache."""
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()
        depth = "" if self.exits is None else f"-{self.exits[-1]}L"
        pruned = "" if self.prune is None else f"-half-{self.prune}"
        return f"{self.task}-{self.settings.method}{depth}{pruned}-s{self.settings.seed}-{digest[:8]}"

    @property
    def base(self) -> Run | None:
        """The run whose model this one prunes or starts from, if there is one."""
        return self.start if self.prune is None else replace(self, prune=None)


# Settings that have had another name since the committed runs were named by a hash over all of them.
_STORED_NAMES = {"exit_weights": "weights", "neighbors": "neighbours"}
_WITHOUT_EFFECT = ("ngram_learning_rate",)  # of exit 0, which no run of the paper has


def _stored_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings under the names that they have in committed runs, so that the names of runs stay the same."""
    return {_STORED_NAMES.get(name, name): value for name, value in settings.items() if name not in _WITHOUT_EFFECT}


def _plain_name(source: str) -> str:
    """Return the name of a file or folder without its path; a hub name stays as it is."""
    return Path(source).name if Path(source).is_absolute() or Path(source).exists() else source


@cache
def _digest(source: str) -> str:
    """Compute a digest of the contents of a file, or of the files of a folder."""
    path, digest = Path(source), hashlib.sha256()
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.name.encode() + b"\0")
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:16]


class RunSummary(TypedDict, total=False):
    """What the study reads of run.json, which has the run's identity, versions and notes as well."""

    digests: dict[str, str]
    seconds: float
    fewer_products: float  # ratio of multiplications of the full and the pruned model
    unlabelled: int  # number of unlabelled test texts that the data have
    scores: dict[str, list[float]]  # of every exit, by split


class JournalLine(TypedDict):
    """What the study reads of a line of the training journal."""

    step: int
    alpha: list[float] | None  # λ·p_c of every exit from the second on
    closest: list[list[int]] | None  # counts, (exits, exits)


@dataclass(frozen=True)
class Outcome:
    """The files of a run in the cache."""

    run: Run
    folder: Path

    @property
    def is_complete(self) -> bool:
        """Whether the run has been completed."""
        return (self.folder / RUN).exists()

    @cached_property
    def summary(self) -> RunSummary:
        """Identity, versions, seconds and the score of every exit; empty before the run is complete."""
        return cast(RunSummary, read_json(self.folder / RUN) or {})

    def trace_path(self, split: str) -> Path:
        """Return where the trace of a split is kept."""
        return self.folder / f"{split}.safetensors"

    def trace(self, split: str) -> Trace:
        """Load every exit's logits on a split.

        Args:
            split: "calibration", "test", or "unlabelled" where the data have such texts.

        Returns:
            The trace.
        """
        return Trace.load(self.trace_path(split))

    def curves(self, split: str, strategies: Sequence[str | Policy]) -> list[Curve]:
        """Sweep the thresholds of strategies on a split; the result is cached.

        Args:
            split: "calibration" or "test".
            strategies: The strategies, with all their settings.

        Returns:
            Their curves.
        """
        key = split, str(strategies)
        if key not in self._curves:
            self._curves[key] = sweep(self.trace(split), strategies)
        return self._curves[key]

    @cached_property
    def _curves(self) -> dict[tuple[str, str], list[Curve]]:
        """Cache of `curves`."""
        return {}

    @property
    def has_unlabelled(self) -> bool:
        """Whether the unlabelled test texts were recorded, too."""
        return self.trace_path(UNLABELLED).exists()

    def snapshots(self) -> dict[int, tuple[NDArray, NDArray]]:
        """Load what the heads read of some calibration texts during training.

        Returns:
            For some training steps, features (texts, exits, width) and labels (texts,).
        """
        arrays = load_file(self.folder / SNAPSHOTS)
        labels = arrays.pop(LABELS)
        return {int(step): (arrays[step], labels) for step in sorted(arrays, key=int)}

    def journal(self) -> list[JournalLine]:
        """Load the lines of the training journal."""
        return [json.loads(line) for line in (self.folder / JOURNAL).read_text(encoding="utf-8").splitlines()]
