"""One run of an experiment: what it follows from, its name, and what it leaves behind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load_file

from exitpoll.decide.policy import Policy
from exitpoll.decide.sweep import Curve, sweep
from exitpoll.decide.trace import Trace
from exitpoll.files import read_json
from exitpoll.study.pruning import Prune
from exitpoll.training.settings import TrainingSettings

RUN, MODEL, JOURNAL, MOMENTS = "run.json", "model", "training.jsonl", "moments.safetensors"
SPLITS, UNLABELLED = ("calibration", "test"), "unlabelled"
LABELS = "labels"  # beside the moments, which are named by their steps


@dataclass(frozen=True)
class Run:
    """What a run follows from."""

    data: str  # a file, a folder, a known task's name or a hub dataset's
    encoder: str  # a hub name or a folder
    settings: TrainingSettings
    exits: tuple[int, ...] | None = None  # after every layer by default
    limit: int | None = None  # of training texts
    held_out: int | None = None  # at most so many calibration texts, and so many test texts
    start: Run | None = None  # whose encoder to go on from, instead of the pretrained one
    pooling: str = "mean"
    prune: Prune | None = None  # what half of the trained model to drop

    @property
    def task(self) -> str:
        """What the data are called."""
        return Path(self.data).name

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that the outcome depends on, as plain values; files by their names: `digests` tell them apart."""
        return {
            "task": _plain(self.data),
            "encoder": _plain(self.encoder),
            "settings": _named_as_kept(asdict(self.settings.resolved())),
            "exits": None if self.exits is None else list(self.exits),
            "limit": self.limit,
            "held_out": self.held_out,
            "start": None if self.start is None else self.start.identity,
            "pooling": self.pooling,
            "prune": self.prune,
        }

    @property
    def digests(self) -> dict[str, str]:
        """Tell files on disk from others of the same names, and from what the hub has by these names."""
        places = {"data": self.data, "encoder": self.encoder}
        found = {name: _digest(place) for name, place in places.items() if Path(place).exists()}
        start = {} if self.start is None else self.start.digests
        others = {name: digest for name, digest in start.items() if digest not in found.values()}
        return found | {f"{name} of the start": digest for name, digest in others.items()}

    @cached_property
    def name(self) -> str:
        """Tell this run from all others, for people and for the cache."""
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()
        depth = "" if self.exits is None else f"-{self.exits[-1]}L"
        pruned = "" if self.prune is None else f"-half-{self.prune}"
        return f"{self.task}-{self.settings.method}{depth}{pruned}-s{self.settings.seed}-{digest[:8]}"

    @property
    def base(self) -> Run | None:
        """The run whose model this one prunes or goes on from, if there is one."""
        return self.start if self.prune is None else replace(self, prune=None)


def _named_as_kept(settings: dict[str, Any]) -> dict[str, Any]:
    """Name the settings as stored runs do, so that the names of runs stay."""
    stored = {"exit_weights": "weights", "neighbors": "neighbours"}
    return {stored.get(name, name): value for name, value in settings.items()}


def _plain(place: str) -> str:
    """Name a file or folder wherever it may be; a name on the hub is one as it is."""
    return Path(place).name if Path(place).is_absolute() or Path(place).exists() else place


@cache
def _digest(place: str) -> str:
    """Sum up the contents of a file, or of the files of a folder."""
    path, digest = Path(place), hashlib.sha256()
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.name.encode() + b"\0")
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    run: Run
    folder: Path

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Settings, versions, seconds, and the score of every exit."""
        return read_json(self.folder / RUN) or {}

    def trace(self, split: str) -> Trace:
        """Give what every exit said of a split.

        Args:
            split: "calibration", "test", or "unlabelled" where the data have such texts.

        Returns:
            The trace.
        """
        return Trace.load(self.folder / f"{split}.safetensors")

    def curves(self, split: str, strategies: Sequence[str | Policy]) -> list[Curve]:
        """Sweep the thresholds of strategies on a split, once.

        Args:
            split: "calibration" or "test".
            strategies: The strategies, with all their settings.

        Returns:
            Their curves.
        """
        key = split, str(strategies)
        if key not in self._swept:
            self._swept[key] = sweep(self.trace(split), strategies)
        return self._swept[key]

    @cached_property
    def _swept(self) -> dict[tuple[str, str], list[Curve]]:
        """Keep what was swept."""
        return {}

    @property
    def has_unlabelled(self) -> bool:
        """Whether the data have a test split without labels."""
        return (self.folder / f"{UNLABELLED}.safetensors").exists()

    def moments(self) -> dict[int, tuple[NDArray, NDArray]]:
        """Give what the heads read of some calibration texts while they were trained.

        Returns:
            For each step that was watched, features (texts, exits, width) and labels (texts,).
        """
        kept = load_file(self.folder / MOMENTS)
        labels = kept.pop(LABELS)
        return {int(step): (kept[step], labels) for step in sorted(kept, key=int)}

    def journal(self) -> list[dict[str, Any]]:
        """Give the lines of the training's journal."""
        return [json.loads(line) for line in (self.folder / JOURNAL).read_text(encoding="utf-8").splitlines()]
