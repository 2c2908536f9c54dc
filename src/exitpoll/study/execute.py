"""Do a run: train, prune, record every exit, and keep it all under the run's name."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, set_seed

from exitpoll.data.progress import OnProgress, Progress, ignore
from exitpoll.data.splits import Splits, Texts, load_splits
from exitpoll.decide.analysis import static_exit
from exitpoll.decide.trace import Trace
from exitpoll.engine.record import record
from exitpoll.engine.torch_runtime import loaded_model
from exitpoll.errors import InputError
from exitpoll.files import partial_of, publish, read_json, remove_folder, restore, write_json
from exitpoll.models.folder import JOURNAL as TRAINING_JOURNAL
from exitpoll.models.folder import read_training
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.pretrained import encoder_folder
from exitpoll.models.tokenizer import load_tokenizer, tokenize
from exitpoll.study.clock import Clock
from exitpoll.study.pruning import every_other, head_importance, keep_layers, prune_heads, speedup_of
from exitpoll.study.run import JOURNAL, MODEL, MOMENTS, RUN, SPLITS, UNLABELLED, Outcome, Run
from exitpoll.study.snapshots import Watch
from exitpoll.training.train import digest_of_texts, train
from exitpoll.training.trainer import processes

RANKED = 1024  # texts on which attention heads are ranked
CLOCK, FILES = "seconds.json", "files.json"
AGAIN = "again"  # where, beside a run that is done, it is done anew


def execute(
    run: Run, cache: Path, *, keep: bool = False, answer: bool = False, on_progress: OnProgress = ignore
) -> Outcome:
    """Do a run, or find it done; one that was cut off goes on.

    Args:
        run: What to do.
        cache: The folder of all runs.
        keep: Whether to keep the model, whose weights are dropped otherwise: what is asked later is in the traces.
        answer: Whether to answer the unlabelled texts, too, where the data have such.
        on_progress: Called after every step and every scoring.

    Returns:
        What it left behind.
    """
    outcome = Outcome(run, cache / run.name)
    aside = partial_of(outcome.folder)
    restore(aside, outcome.folder)
    if outcome.folder.exists():
        _check_files(outcome)
    if _is_done(outcome, keep, answer):
        return outcome
    again = (outcome.folder / RUN).exists() and run.prune is None and not (outcome.folder / MODEL).exists()
    work = Outcome(run, aside / AGAIN) if again else outcome  # its weights are gone: it is done anew, and then replaced
    _do(work, cache, keep=keep, answer=answer or outcome.has_unlabelled, on_progress=on_progress)
    if again:
        publish(aside, AGAIN, outcome.folder)
    return Outcome(run, outcome.folder)


def _do(outcome: Outcome, cache: Path, *, keep: bool, answer: bool, on_progress: OnProgress) -> None:
    """Do a run in a folder, from where it was cut off."""
    run = outcome.run
    outcome.folder.mkdir(parents=True, exist_ok=True)
    _check_files(outcome)
    base = None if run.base is None else execute(run.base, cache, keep=True, on_progress=on_progress).folder / MODEL
    clock = Clock(outcome.folder / CLOCK)
    splits = _splits(run)
    model = _model(outcome, base, splits, clock.around(on_progress))
    whole, tokenizer = EarlyExitModel.from_pretrained(model), load_tokenizer(model)
    smaller = _pruned(run, whole, tokenizer, splits)
    _record(outcome, smaller, tokenizer, splits, answer=answer)
    shutil.copy(model / TRAINING_JOURNAL, outcome.folder / JOURNAL)
    about = {
        **run.identity,
        "digests": run.digests,
        "seconds": round(clock.seconds, 1),
        "fewer_products": round(speedup_of(whole, smaller), 3),
        "unlabelled": 0 if splits.unlabelled is None else len(splits.unlabelled),
        **_training_of(model),
        **_scored(outcome),
    }
    write_json(outcome.folder / RUN, about)
    if not keep and run.prune is None:
        remove_folder(model)


def _is_done(outcome: Outcome, keep: bool, answer: bool) -> bool:
    """Whether there is nothing left to do."""
    if not (outcome.folder / RUN).exists():
        return False
    answered = not outcome.summary.get("unlabelled") or outcome.has_unlabelled
    return (not keep or (outcome.folder / MODEL).exists()) and (not answer or answered)


def _check_files(outcome: Outcome) -> None:
    """Note which files a run is begun with; refuse to go on, or to take it as done, with others of the same names."""
    noted, now = outcome.folder / FILES, outcome.run.digests
    if not noted.exists():
        write_json(noted, outcome.summary.get("digests", now))
    known = read_json(noted) or {}
    for name in sorted(known.keys() | now.keys()):
        if known.get(name) != now.get(name):
            raise InputError(f"'{outcome.folder}' was done with another {name} of that name: choose another folder")


def _model(outcome: Outcome, base: Path | None, splits: Splits, on_progress: OnProgress) -> Path:
    """Find or train the model of a run; of one that prunes, the model that it prunes."""
    if outcome.run.prune is not None:
        assert base is not None
        return base
    model = outcome.folder / MODEL
    if not model.exists():
        _train(outcome.run, base, splits, model, on_progress)
    return model


def _record(
    outcome: Outcome, model: EarlyExitModel, tokenizer: PreTrainedTokenizerBase, splits: Splits, *, answer: bool
) -> None:
    """Ask every exit about every text that is held out."""
    ready = loaded_model(model.to(processes().device), tokenizer)
    about = {"data": outcome.run.task, "metric": splits.metric, "run": outcome.run.name}
    for split in (*SPLITS, *[UNLABELLED] * answer):
        texts: Texts | None = getattr(splits, split)
        path = outcome.folder / f"{split}.safetensors"
        if texts is not None and not path.exists():
            record(ready, texts, path, about={**about, "split": split, "texts_digest": digest_of_texts(texts)})


def _training_of(model: Path) -> dict[str, Any]:
    """Say what a training was done with."""
    trained = read_training(model)
    return {
        "versions": {name: version(name) for name in ("exitpoll", "torch", "transformers")},
        "threads": torch.get_num_threads(),
        **{name: trained.get(name) for name in ("metric", "texts", "truncated", "notes")},
    }


def _scored(outcome: Outcome) -> dict[str, Any]:
    """Score every exit."""
    traces = {split: outcome.trace(split) for split in SPLITS}
    return {
        "layers": list(traces["test"].exit_layers),
        "scores": {split: _scores(trace) for split, trace in traces.items()},
    }


def _scores(trace: Trace) -> list[float]:
    """Score every exit of a trace."""
    return [round(static_exit(trace, number).score(trace.metric), 5) for number in range(len(trace.exit_layers))]


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


def _train(run: Run, base: Path | None, splits: Splits, out: Path, on_progress: OnProgress) -> None:
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
        return keep_layers(model, every_other(model.config.exit_layers[-1]))
    if run.prune is None:
        return model
    texts = tokenize(_drawn(splits.train, RANKED), tokenizer, model.config.max_length)
    rows = [texts[number] for number in range(len(texts))]
    batches = [tokenizer.pad(rows[at : at + 32], return_tensors="pt") for at in range(0, len(rows), 32)]
    return prune_heads(model, head_importance(model, [dict(batch) for batch in batches]))


def execute_all(
    runs: Sequence[Run],
    cache: Path,
    *,
    answered: Collection[str] = (),
    on_run: OnProgress = ignore,
    on_progress: OnProgress = ignore,
) -> tuple[list[Outcome], dict[str, str]]:
    """Do several runs, one after another; models that others go on from are kept, and one that fails stops no other.

    Args:
        runs: What to do.
        cache: The folder of all runs.
        answered: The names of runs that are to answer unlabelled texts, too.
        on_run: Called before every run.
        on_progress: Called after every step of a training.

    Returns:
        What they left behind, in the order of the runs, and what stopped those that failed, by name.
    """
    left = [run for run in runs if not _is_done(Outcome(run, cache / run.name), False, run.name in answered)]
    bases = {run.base.name for run in left if run.base is not None}
    outcomes, failed = [], {}
    for number, run in enumerate(runs):
        on_run(Progress(run.name, number, len(runs)))
        keep, answer = run.name in bases, run.name in answered
        try:
            outcomes.append(execute(run, cache, keep=keep, answer=answer, on_progress=on_progress))
        except InputError as error:
            failed[run.name] = str(error)
    return outcomes, failed
