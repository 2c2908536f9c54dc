"""Execute runs: train, prune, record every exit, and keep the files under the run's name."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

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
from exitpoll.models.folder import JOURNAL, read_training
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.pretrained import encoder_folder
from exitpoll.models.tokenizer import load_tokenizer, tokenize
from exitpoll.study.pruning import every_other, head_importance, keep_layers, prune_heads, speedup_of
from exitpoll.study.run import MODEL, RUN, SNAPSHOTS, SPLITS, UNLABELLED, Outcome, Run
from exitpoll.study.snapshots import SnapshotTaker
from exitpoll.training.clock import Clock
from exitpoll.training.ranks import processes
from exitpoll.training.train import train
from exitpoll.training.work import digest_of_texts

RANKING_TEXTS = 1024  # on which attention heads are ranked
CLOCK, DIGESTS = "seconds.json", "files.json"
AGAIN = "again"  # name inside the work folder of a run that is repeated because its weights were removed


class Executor(Protocol):
    """Executes a run somewhere, as `execute` does here."""

    def __call__(
        self, run: Run, cache: Path, *, keep: bool = False, answer: bool = False, on_progress: OnProgress = ignore
    ) -> Outcome:
        """Execute a run, unless it is complete."""


def execute(
    run: Run, cache: Path, *, keep: bool = False, answer: bool = False, on_progress: OnProgress = ignore
) -> Outcome:
    """Execute a run, unless it is complete; an interrupted run is resumed.

    Args:
        run: The run.
        cache: The folder of all runs.
        keep: Whether to keep the model; its weights are removed otherwise, as later steps read only the traces.
        answer: Whether to record the unlabelled texts as well, where the data have such.
        on_progress: Called after every training step and every evaluation.

    Returns:
        The completed run.
    """
    outcome = Outcome(run, cache / run.name)
    aside = partial_of(outcome.folder)
    restore(aside, outcome.folder)
    if outcome.folder.exists():
        _check_digests(outcome)
    if _is_done(outcome, keep, answer):
        return outcome
    repeat = outcome.is_complete and run.prune is None and not (outcome.folder / MODEL).exists()
    work = Outcome(run, aside / AGAIN) if repeat else outcome  # repeated elsewhere, and replaced when complete
    _execute(work, cache, keep=keep, answer=answer or outcome.has_unlabelled, on_progress=on_progress)
    if repeat:
        publish(aside, AGAIN, outcome.folder)
    return Outcome(run, outcome.folder)


def _execute(outcome: Outcome, cache: Path, *, keep: bool, answer: bool, on_progress: OnProgress) -> None:
    """Execute a run in its folder, from where it was interrupted."""
    run = outcome.run
    outcome.folder.mkdir(parents=True, exist_ok=True)
    _check_digests(outcome)
    base = None if run.base is None else execute(run.base, cache, keep=True, on_progress=on_progress).folder / MODEL
    clock = Clock(outcome.folder / CLOCK)
    splits = _load_splits(run)
    model_folder = _model_folder(outcome, base, splits, clock.around(on_progress))
    full, tokenizer = EarlyExitModel.from_pretrained(model_folder), load_tokenizer(model_folder)
    model = _prune(run, full, tokenizer, splits)
    _record(outcome, model, tokenizer, splits, answer=answer)
    shutil.copy(model_folder / JOURNAL, outcome.folder / JOURNAL)
    summary = {
        **run.identity,
        "digests": run.digests,
        "seconds": round(clock.seconds, 1),
        "fewer_products": round(speedup_of(full, model), 3),
        "unlabelled": 0 if splits.unlabelled is None else len(splits.unlabelled),
        **_environment(model_folder),
        **_exit_scores(outcome),
    }
    write_json(outcome.folder / RUN, summary)
    if not keep and run.prune is None:
        remove_folder(model_folder)


def _is_done(outcome: Outcome, keep: bool, answer: bool) -> bool:
    """Return whether a run is complete, with model and answers to unlabelled texts where they are wanted."""
    if not outcome.is_complete:
        return False
    answered = not outcome.summary.get("unlabelled") or outcome.has_unlabelled
    return (not keep or (outcome.folder / MODEL).exists()) and (not answer or answered)


def _check_digests(outcome: Outcome) -> None:
    """Keep the digests of the files that a run reads; refuse to resume or reuse it with other files of these names."""
    path, current = outcome.folder / DIGESTS, outcome.run.digests
    if not path.exists():
        write_json(path, outcome.summary.get("digests", current))
    stored = read_json(path) or {}
    for name in sorted(stored.keys() | current.keys()):
        if stored.get(name) != current.get(name):
            raise InputError(f"{name} changed since '{outcome.folder}' was started; choose another folder for runs")


def _model_folder(outcome: Outcome, base: Path | None, splits: Splits, on_progress: OnProgress) -> Path:
    """Return the model of a run, trained if it is not yet; of a run that prunes, the model to prune."""
    if outcome.run.prune is not None:
        assert base is not None
        return base
    folder = outcome.folder / MODEL
    if not folder.exists():
        _train(outcome.run, base, splits, folder, on_progress)
    return folder


def _record(
    outcome: Outcome, model: EarlyExitModel, tokenizer: PreTrainedTokenizerBase, splits: Splits, *, answer: bool
) -> None:
    """Record every exit on all held-out texts."""
    loaded = loaded_model(model.to(processes().device), tokenizer)
    about = {"data": outcome.run.task, "metric": splits.metric, "run": outcome.run.name}
    recorded = (*SPLITS, UNLABELLED) if answer else SPLITS
    for split in recorded:
        texts: Texts | None = getattr(splits, split)
        path = outcome.trace_path(split)
        if texts is not None and not path.exists():
            record(loaded, texts, path, about={**about, "split": split, "texts_digest": digest_of_texts(texts)})


def _environment(model_folder: Path) -> Mapping[str, object]:
    """Return the versions and threads that a run used, and its data as the training describes them."""
    training = read_training(model_folder)
    return {
        "versions": {name: version(name) for name in ("exitpoll", "torch", "transformers")},
        "threads": torch.get_num_threads(),
        **{name: training.get(name) for name in ("metric", "texts", "truncated", "notes")},
    }


def _exit_scores(outcome: Outcome) -> Mapping[str, object]:
    """Score every exit on calibration and test texts."""
    traces = {split: outcome.trace(split) for split in SPLITS}
    return {
        "layers": list(traces["test"].exit_layers),
        "scores": {split: _scores(trace) for split, trace in traces.items()},
    }


def _scores(trace: Trace) -> list[float]:
    """Score every exit of a trace."""
    return [round(static_exit(trace, number).score(trace.metric), 5) for number in range(len(trace.exit_layers))]


def _load_splits(run: Run) -> Splits:
    """Load the data of a run; the held-out texts are the same for every seed where the data have such splits."""
    splits = load_splits(run.data, limit=run.limit, seed=run.settings.seed)
    calibration, test = (_draw(texts, run.held_out) for texts in (splits.calibration, splits.test))
    return replace(splits, calibration=calibration, test=test)


def _draw(texts: Texts, limit: int | None) -> Texts:
    """Draw some texts at random, the same for every seed of the run."""
    if limit is None or limit >= len(texts):
        return texts
    return texts.select(np.sort(np.random.default_rng(0).choice(len(texts), size=limit, replace=False)))


def _train(run: Run, base: Path | None, splits: Splits, out: Path, on_progress: OnProgress) -> None:
    """Train from the pretrained encoder, or from the encoder of another run."""
    with tempfile.TemporaryDirectory() as scratch:
        encoder = encoder_folder(run.encoder) if base is None else _save_encoder(base, Path(scratch))
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
    snapshots = SnapshotTaker(model, tokenizer, splits.calibration, out.with_name(SNAPSHOTS), on_progress)
    train(model, tokenizer, splits, out, run.settings, resume=True, on_progress=snapshots)


def _save_encoder(model_folder: Path, out: Path) -> Path:
    """Write the encoder of a trained model to a folder of its own."""
    EarlyExitModel.from_pretrained(model_folder).encoder.save_pretrained(out)
    load_tokenizer(model_folder).save_pretrained(out)
    return out


def _prune(run: Run, model: EarlyExitModel, tokenizer: PreTrainedTokenizerBase, splits: Splits) -> EarlyExitModel:
    """Remove half of the layers or attention heads, if the run asks for it."""
    if run.prune == "layers":
        return keep_layers(model, every_other(model.config.exit_layers[-1]))
    if run.prune is None:
        return model
    texts = tokenize(_draw(splits.train, RANKING_TEXTS), tokenizer, model.config.max_length)
    rows = [texts[number] for number in range(len(texts))]
    batches = [tokenizer.pad(rows[at : at + 32], return_tensors="pt") for at in range(0, len(rows), 32)]
    return prune_heads(model, head_importance(model, [dict(batch) for batch in batches]))


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Start threads, for which nobody waits where the block is interrupted.

    Args:
        count: How many.

    Yields:
        The pool.
    """
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def execute_all(
    runs: Sequence[Run],
    cache: Path,
    *,
    answered: Collection[str] = (),
    executor: Executor | None = None,
    workers: int = 1,
    on_run: OnProgress = ignore,
    on_progress: OnProgress = ignore,
) -> tuple[list[Outcome], dict[str, str]]:
    """Execute several runs, one after another or some at a time; a run that fails does not stop the others.

    Args:
        runs: The runs; models that others start from are kept.
        cache: The folder of all runs.
        answered: Names of the runs that record unlabelled texts as well.
        executor: What executes a run; `execute` by default. With more workers, it is called in threads.
        workers: How many runs are executed at a time.
        on_run: Called before every run.
        on_progress: Called after every training step, if one run is executed at a time.

    Returns:
        The completed runs, in the given order, and the error messages of failed runs by name.
    """
    todo = [run for run in runs if not _is_done(Outcome(run, cache / run.name), False, run.name in answered)]
    bases = {run.base.name for run in todo if run.base is not None}
    outcomes, failed = [], {}

    def result_of(number: int, run: Run) -> Outcome | str:
        on_run(Progress(run.name, number, len(runs)))
        keep, answer = run.name in bases, run.name in answered
        shown = on_progress if workers == 1 else ignore
        try:
            return (executor or execute)(run, cache, keep=keep, answer=answer, on_progress=shown)
        except InputError as error:
            return str(error)

    with threads(workers) if workers > 1 else nullcontext() as pool:
        results = (map if pool is None else pool.map)(result_of, range(len(runs)), runs)
        for run, result in zip(runs, results, strict=True):
            if isinstance(result, str):
                failed[run.name] = result
            else:
                outcomes.append(result)
    return outcomes, failed
