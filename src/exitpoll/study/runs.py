"""One run of an experiment: a training and its traces, kept under a name that follows from its settings."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedTokenizerBase, set_seed

from exitpoll.data import Splits, Texts, load_splits
from exitpoll.embedded import encoder_folder
from exitpoll.folders import read_json, write_json
from exitpoll.inference import record_all_features
from exitpoll.methods import Prune, TrainingSettings
from exitpoll.model import EarlyExitModel
from exitpoll.pruning import every_other, head_importance, keep_layers, prune_heads, speedup_of
from exitpoll.recording import record
from exitpoll.tokens import load_tokenizer, tokenise
from exitpoll.torch_runtime import opened
from exitpoll.trace import Trace
from exitpoll.trainer import OnProgress, Progress, exit_scores
from exitpoll.training import train

RUN, JOURNAL, MOMENTS = "run.json", "training.jsonl", "moments.safetensors"
SPLITS, UNLABELLED = ("calibration", "test"), "unlabelled"
RANKED = 1024  # texts on which attention heads are ranked
WATCHED = 128  # texts whose hidden states are kept at three moments of a training
MOMENT_SHARES = (0.02, 0.2, 1.0)  # of the steps


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
        """All that the outcome depends on, as plain values; files by their names alone."""
        return {
            "task": self.task,
            "encoder": Path(self.encoder).name,
            "settings": asdict(self.settings.resolved()),
            "exits": None if self.exits is None else list(self.exits),
            "limit": self.limit,
            "held_out": self.held_out,
            "start": None if self.start is None else self.start.identity,
            "pooling": self.pooling,
            "prune": self.prune,
        }

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
        labels = kept.pop("labels")
        return {int(step): (kept[step], labels) for step in sorted(kept, key=int)}

    def journal(self) -> list[dict[str, Any]]:
        """Give the lines of the training's journal."""
        return [json.loads(line) for line in (self.folder / JOURNAL).read_text(encoding="utf-8").splitlines()]


def execute(run: Run, cache: Path, *, keep: bool = False, on_progress: OnProgress | None = None) -> Outcome:
    """Do a run, or find it done; one that was cut off goes on.

    Args:
        run: What to do.
        cache: The folder of all runs.
        keep: Whether to keep the model, whose weights are dropped otherwise: what is asked later is in the traces.
        on_progress: Called after every step and every scoring.

    Returns:
        What it left behind.
    """
    folder = cache / run.name
    outcome = Outcome(run, folder)
    if (folder / RUN).exists() and (not keep or (folder / "model").exists()):
        return outcome
    folder.mkdir(parents=True, exist_ok=True)
    started, model = time.monotonic(), folder / "model"
    splits = _splits(run)
    base = None if run.base is None else execute(run.base, cache, keep=True, on_progress=on_progress).folder / "model"
    if run.prune is not None:
        assert base is not None
        model = base
    elif not model.exists():
        _train(run, base, splits, model, on_progress)
    whole, tokenizer = EarlyExitModel.from_pretrained(model), load_tokenizer(model)
    smaller = _pruned(run, whole, tokenizer, splits)
    ready = opened(smaller, tokenizer)
    about = {"data": run.task, "metric": splits.metric, "run": run.name}
    for split in (*SPLITS, UNLABELLED):
        texts: Texts | None = getattr(splits, split)
        if texts is not None and not (folder / f"{split}.safetensors").exists():
            record(ready, texts, folder / f"{split}.safetensors", about={**about, "split": split})
    shutil.copy(model / JOURNAL, folder / JOURNAL)
    trained = read_json(model / "training.json") or {}
    versions = {name: version(name) for name in ("exitpoll", "torch", "transformers")}
    write_json(
        folder / RUN,
        {
            **run.identity,
            "versions": versions,
            "threads": torch.get_num_threads(),
            "seconds": round(time.monotonic() - started, 1),
            "fewer_products": round(speedup_of(whole, smaller), 3),
            **{name: trained.get(name) for name in ("metric", "texts", "truncated", "notes")},
            "layers": list(outcome.trace("test").layers),
            "scores": {split: _scores(outcome.trace(split)) for split in SPLITS},
        },
    )
    if not keep and run.prune is None:
        shutil.rmtree(model)
    return outcome


def _scores(trace: Trace) -> list[float]:
    """Score every exit of a trace."""
    return exit_scores(trace.logits, trace.gold("a run"), trace.metric, trace.problem_type)["exit_scores"]


def _splits(run: Run) -> Splits:
    """Read the data of a run; the texts held out are the same for every seed where the data bring them."""
    splits = load_splits(run.data, limit=run.limit, seed=run.settings.seed)
    calibration, test = (_drawn(texts, run.held_out) for texts in (splits.calibration, splits.test))
    return replace(splits, calibration=calibration, test=test)


def _drawn(texts: Texts, limit: int | None) -> Texts:
    """Draw some texts, with a seed of its own."""
    if limit is None or limit >= len(texts):
        return texts
    return texts.select(np.sort(np.random.default_rng(0).choice(len(texts), size=limit, replace=False)))


def _train(run: Run, base: Path | None, splits: Splits, out: Path, on_progress: OnProgress | None) -> None:
    """Train from the pretrained encoder, or from that of an earlier run."""
    with tempfile.TemporaryDirectory() as scratch:
        encoder = encoder_folder(run.encoder) if base is None else _encoder_of(base, Path(scratch))
        set_seed(run.settings.seed)
        model = EarlyExitModel.from_encoder(
            encoder,
            labels=list(splits.label_names),
            exits=run.exits,
            pooling=run.pooling,
            problem_type=splits.problem_type,
        )
        tokenizer = load_tokenizer(encoder)
    if base is not None and run.settings.schedule == "heads":
        model.heads[-1].load_state_dict(EarlyExitModel.from_pretrained(base).heads[-1].state_dict())
    watch = _Moments(model, tokenizer, splits.calibration, out.with_name(MOMENTS), on_progress)
    train(model, tokenizer, splits, out, run.settings, resume=True, on_progress=watch)


def _encoder_of(model: Path, folder: Path) -> Path:
    """Give the encoder of a trained model as a folder of its own."""
    EarlyExitModel.from_pretrained(model).encoder.save_pretrained(folder)
    load_tokenizer(model).save_pretrained(folder)
    return folder


class _Moments:
    """Keeps what the heads read of some texts at three moments of a training."""

    def __init__(
        self,
        model: EarlyExitModel,
        tokenizer: PreTrainedTokenizerBase,
        texts: Texts,
        path: Path,
        on_progress: OnProgress | None,
    ) -> None:
        """Choose the texts.

        Args:
            model: The model, which is trained in place.
            tokenizer: Its tokenizer.
            texts: The first of these are looked at.
            path: The file to keep it in.
            on_progress: Called as well.
        """
        self.model, self.tokenizer, self.path, self.on_progress = model, tokenizer, path, on_progress
        some = texts.select(np.arange(min(WATCHED, len(texts))))
        self.texts = tokenise(some, tokenizer, model.config.max_length)
        self.kept: dict[str, NDArray] = load_file(path) if path.exists() else {}

    def __call__(self, progress: Progress) -> None:
        """Look, if this is one of the moments, and pass on."""
        steps = [max(1, round(share * progress.steps)) for share in MOMENT_SHARES]
        if progress.stage == "all" and progress.step in steps and str(progress.step) not in self.kept:
            self.kept[str(progress.step)] = record_all_features(self.model, self.texts, self.tokenizer)
            save_file({"labels": np.asarray(self.texts.labels), **self.kept}, self.path)
        if self.on_progress is not None:
            self.on_progress(progress)


def _pruned(run: Run, model: EarlyExitModel, tokenizer: PreTrainedTokenizerBase, splits: Splits) -> EarlyExitModel:
    """Drop half of a trained model, if that is what the run is about."""
    if run.prune == "layers":
        return keep_layers(model, every_other(model.config.exits[-1]))
    if run.prune is None:
        return model
    texts = tokenise(splits.train.select(np.arange(min(RANKED, len(splits.train)))), tokenizer, model.config.max_length)
    rows = [texts[number] for number in range(len(texts))]
    batches = [tokenizer.pad(rows[at : at + 32], return_tensors="pt") for at in range(0, len(rows), 32)]
    return prune_heads(model, head_importance(model, [dict(batch) for batch in batches]))


def execute_all(
    runs: list[Run], cache: Path, *, advance: Callable[[int, int, Run], None], on_progress: OnProgress | None = None
) -> list[Outcome]:
    """Do several runs, one after another; models that others go on from are kept.

    Args:
        runs: What to do.
        cache: The folder of all runs.
        advance: Called before every run.
        on_progress: Called after every step of a training.

    Returns:
        What they left behind, in the order of the runs.
    """
    bases = {run.base.name for run in runs if run.base is not None and not (cache / run.name / RUN).exists()}
    outcomes = []
    for number, run in enumerate(runs):
        advance(number, len(runs), run)
        outcomes.append(execute(run, cache, keep=run.name in bases, on_progress=on_progress))
    return outcomes
