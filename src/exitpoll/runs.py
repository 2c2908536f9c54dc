"""One run of an experiment: a training and its traces, kept under a name that follows from its settings."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, set_seed

from exitpoll.data import Splits, load_splits
from exitpoll.embedded import encoder_folder
from exitpoll.folders import read_json, write_json
from exitpoll.methods import TrainingSettings
from exitpoll.model import EarlyExitModel
from exitpoll.pruning import every_other, head_importance, keep_layers, prune_heads, speedup_of
from exitpoll.recording import record
from exitpoll.tokens import load_tokenizer, tokenise
from exitpoll.torch_runtime import opened
from exitpoll.trace import Trace
from exitpoll.trainer import OnProgress
from exitpoll.training import train

RUN, JOURNAL = "run.json", "training.jsonl"
SPLITS = ("calibration", "test")
RANKED = 1024  # texts on which attention heads are ranked


@dataclass(frozen=True)
class Run:
    """What a run follows from."""

    data: str  # a file, a folder, a known task's name or a hub dataset's
    encoder: str  # a hub name or a folder
    settings: TrainingSettings
    exits: tuple[int, ...] | None = None  # after every layer by default
    limit: int | None = None  # of training texts
    start: Run | None = None  # whose encoder to go on from, instead of the pretrained one
    pooling: str = "mean"
    prune: Literal["layers", "heads"] | None = None  # what half of the trained model to drop

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
    def whole(self) -> Run:
        """The run whose model this one prunes; itself if it prunes none."""
        return replace(self, prune=None)


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
            split: "calibration" or "test".

        Returns:
            The trace.
        """
        return Trace.load(self.folder / f"{split}.safetensors")


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
    splits = load_splits(run.data, limit=run.limit, seed=run.settings.seed)
    if run.prune is not None:
        model = execute(run.whole, cache, keep=True, on_progress=on_progress).folder / "model"
    elif not model.exists():
        _train(run, cache, splits, model, on_progress)
    whole, tokenizer = EarlyExitModel.from_pretrained(model), load_tokenizer(model)
    smaller = _pruned(run, whole, tokenizer, splits)
    ready = opened(smaller, tokenizer)
    about = {"data": run.task, "metric": splits.metric, "run": run.name}
    for split in SPLITS:
        if not (folder / f"{split}.safetensors").exists():
            texts = getattr(splits, split)
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
            **{name: trained.get(name) for name in ("metric", "layers", "scores", "texts", "truncated", "notes")},
        },
    )
    if not keep and run.prune is None:
        shutil.rmtree(model)
    return outcome


def _train(run: Run, cache: Path, splits: Splits, out: Path, on_progress: OnProgress | None) -> None:
    """Train from the pretrained encoder, or from that of an earlier run."""
    encoder = encoder_folder(run.encoder) if run.start is None else _encoder_of(run.start, cache, on_progress)
    set_seed(run.settings.seed)
    model = EarlyExitModel.from_encoder(
        encoder,
        labels=list(splits.label_names),
        exits=run.exits,
        pooling=run.pooling,
        problem_type=splits.problem_type,
    )
    train(model, load_tokenizer(encoder), splits, out, run.settings, resume=True, on_progress=on_progress)


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


def _encoder_of(run: Run, cache: Path, on_progress: OnProgress | None) -> Path:
    """Give the encoder of an earlier run as a folder of its own."""
    folder = cache / run.name / "encoder"
    if not folder.exists():
        trained = execute(run, cache, keep=True, on_progress=on_progress).folder / "model"
        prepared = folder.with_name("encoder.partial")
        shutil.rmtree(prepared, ignore_errors=True)
        EarlyExitModel.from_pretrained(trained).encoder.save_pretrained(prepared)
        load_tokenizer(trained).save_pretrained(prepared)
        prepared.rename(folder)
        shutil.rmtree(trained)
    return folder


def execute_all(
    runs: list[Run], cache: Path, *, advance: Callable[[int, int, Run], None], on_progress: OnProgress | None = None
) -> list[Outcome]:
    """Do several runs, one after another.

    Args:
        runs: What to do.
        cache: The folder of all runs.
        advance: Called before every run.
        on_progress: Called after every step of a training.

    Returns:
        What they left behind, in the order of the runs.
    """
    pruned = {run.whole.name for run in runs if run.prune is not None and not (cache / run.name / RUN).exists()}
    outcomes = []
    for number, run in enumerate(runs):
        advance(number, len(runs), run)
        outcomes.append(execute(run, cache, keep=run.name in pruned, on_progress=on_progress))
    for name in pruned:
        shutil.rmtree(cache / name / "model", ignore_errors=True)
    return outcomes
