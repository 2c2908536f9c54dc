"""Do a run: train, prune, record every exit, and keep it all under the run's name."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, set_seed

from exitpoll.analysis import static_exit
from exitpoll.data import Splits, Texts, load_splits
from exitpoll.embedded import encoder_folder
from exitpoll.folders import read_json, write_json
from exitpoll.model import EarlyExitModel
from exitpoll.pruning import every_other, head_importance, keep_layers, prune_heads, speedup_of
from exitpoll.recording import record
from exitpoll.study.moments import Watch
from exitpoll.study.runs import JOURNAL, MOMENTS, RUN, SPLITS, UNLABELLED, Outcome, Run
from exitpoll.tokens import load_tokenizer, tokenise
from exitpoll.torch_runtime import opened
from exitpoll.trace import Trace
from exitpoll.trainer import OnProgress
from exitpoll.training import train

RANKED = 1024  # texts on which attention heads are ranked


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
    _record(outcome, smaller, tokenizer, splits)
    shutil.copy(model / JOURNAL, folder / JOURNAL)
    about = {
        "seconds": round(time.monotonic() - started, 1),
        "fewer_products": round(speedup_of(whole, smaller), 3),
        **_training_of(model),
    }
    write_json(folder / RUN, {**run.identity, **about, **_scored(outcome)})
    if not keep and run.prune is None:
        shutil.rmtree(model)
    return outcome


def _record(outcome: Outcome, model: EarlyExitModel, tokenizer: PreTrainedTokenizerBase, splits: Splits) -> None:
    """Ask every exit about every text that is held out."""
    ready = opened(model, tokenizer)
    about = {"data": outcome.run.task, "metric": splits.metric, "run": outcome.run.name}
    for split in (*SPLITS, UNLABELLED):
        texts: Texts | None = getattr(splits, split)
        path = outcome.folder / f"{split}.safetensors"
        if texts is not None and not path.exists():
            record(ready, texts, path, about={**about, "split": split})


def _training_of(model: Path) -> dict[str, Any]:
    """Say what a training was done with."""
    trained = read_json(model / "training.json") or {}
    return {
        "versions": {name: version(name) for name in ("exitpoll", "torch", "transformers")},
        "threads": torch.get_num_threads(),
        **{name: trained.get(name) for name in ("metric", "texts", "truncated", "notes")},
    }


def _scored(outcome: Outcome) -> dict[str, Any]:
    """Score every exit."""
    traces = {split: outcome.trace(split) for split in SPLITS}
    return {
        "layers": list(traces["test"].layers),
        "scores": {split: _scores(trace) for split, trace in traces.items()},
    }


def _scores(trace: Trace) -> list[float]:
    """Score every exit of a trace."""
    return [round(static_exit(trace, number).score(trace.metric), 5) for number in range(len(trace.layers))]


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
    watch = Watch(model, tokenizer, splits.calibration, out.with_name(MOMENTS), on_progress)
    train(model, tokenizer, splits, out, run.settings, resume=True, on_progress=watch)


def _encoder_of(model: Path, folder: Path) -> Path:
    """Give the encoder of a trained model as a folder of its own."""
    EarlyExitModel.from_pretrained(model).encoder.save_pretrained(folder)
    load_tokenizer(model).save_pretrained(folder)
    return folder


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
