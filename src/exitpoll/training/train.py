"""train(): from a model and three splits to a model folder, in the stages of a schedule."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, set_seed

from exitpoll.data.progress import OnProgress, ignore
from exitpoll.data.splits import Splits, Texts
from exitpoll.decide.metrics import REGRESSION
from exitpoll.errors import InputError
from exitpoll.files import partial_of, publish, read_json, write_json, write_text
from exitpoll.models.card import model_card
from exitpoll.models.fingerprint import fingerprint_of, runtime_name
from exitpoll.models.folder import CARD, JOURNAL, TRAINING, check_free_for_model
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import TokenizedTexts, readable_length, tokenize
from exitpoll.training.features import record_logits
from exitpoll.training.heads_only import check_heads_below
from exitpoll.training.methods import SCHEDULES
from exitpoll.training.objectives import loss_for
from exitpoll.training.settings import TrainingSettings
from exitpoll.training.stages import Job, run_stages
from exitpoll.training.trainer import exit_scores, processes


@dataclass(frozen=True)
class Trained:
    """What a training came to."""

    folder: Path
    model: EarlyExitModel
    exit_layers: Sequence[int]  # of each exit
    calibration_scores: Sequence[float]  # of each exit, by the task's metric
    test_scores: Sequence[float]
    metric: str
    truncated: int  # texts longer than the encoder reads, over all splits
    texts: int  # over all splits
    seconds: float
    notes: Sequence[str]


def train(
    model: EarlyExitModel,
    tokenizer: PreTrainedTokenizerBase,
    splits: Splits,
    out: str | Path,
    settings: TrainingSettings | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    on_progress: OnProgress = ignore,
) -> Trained:
    """Train a model and write its folder, whole or not at all.

    Denormal numbers are flushed to zero from then on, in the whole process: they slow processors down. While it runs,
    checkpoints and the journal are kept beside the folder, in `<out>.partial`.

    Args:
        model: The model to train, in place.
        tokenizer: Its tokenizer.
        splits: What to train on, to choose checkpoints by and to report on.
        out: The folder to write.
        settings: How to train.
        resume: Go on with a training that was cut off.
        overwrite: Replace an older model folder, and drop what a training that was cut off had done.
        on_progress: Called after every step and every scoring.

    Returns:
        The scores of every exit.
    """
    started = time.monotonic()
    out = Path(out).resolve()
    settings = (settings or TrainingSettings()).resolved()
    _check(model, tokenizer, splits, settings)
    notes = (*splits.notes, *_name_labels(model, splits))
    wanted = settings.max_length or model.config.max_length
    model.config.max_length = readable_length(model.config.encoder, wanted)
    model.config.layer_drop = settings.layer_drop
    read = partial(tokenize, tokenizer=tokenizer, max_length=model.config.max_length)
    train_texts, calibration, test = read(splits.train), read(splits.calibration), read(splits.test)
    everyone = processes()
    if everyone.is_main_process:
        check_free_for_model(out, overwrite=overwrite)
        _open_work(out, _fingerprint(model, splits, settings), resume=resume, overwrite=overwrite)
    everyone.wait_for_everyone()
    torch.set_flush_denormal(True)
    set_seed(settings.seed)
    model.to(everyone.device)
    sorted_calibration = calibration.sorted_by_length()
    job = Job(model, tokenizer, train_texts, sorted_calibration, splits, settings, partial_of(out), on_progress)
    run_stages(job)
    scores = {"calibration": _scores(job, calibration), "test": _scores(job, test)}
    result = Trained(
        folder=out,
        model=model,
        exit_layers=model.config.exit_layers,
        calibration_scores=scores["calibration"]["exit_scores"],
        test_scores=scores["test"]["exit_scores"],
        metric=splits.metric,
        truncated=sum(split.truncated for split in (train_texts, calibration, test)),
        texts=len(train_texts) + len(calibration) + len(test),
        seconds=time.monotonic() - started,
        notes=notes,
    )
    if everyone.is_main_process:
        _write_folder(job, out, scores, result)
    everyone.wait_for_everyone()
    return result


def _check(
    model: EarlyExitModel, tokenizer: PreTrainedTokenizerBase, splits: Splits, settings: TrainingSettings
) -> None:
    """Refuse, before anything is written, what could not be trained or would be saved under wrong names."""
    loss_for(settings, splits.problem_type)
    if settings.schedule is not None and "heads" in SCHEDULES[settings.schedule]:
        check_heads_below(model.config)
    if len(tokenizer) > model.config.encoder.vocab_size:
        words = model.config.encoder.vocab_size
        raise InputError(
            f"the tokenizer knows {len(tokenizer)} words, the encoder {words}: they do not belong together"
        )
    if model.config.problem_type != splits.problem_type:
        raise InputError(f"the model is for {model.config.problem_type}, the data for {splits.problem_type}")
    if model.config.num_labels != len(splits.label_names):
        raise InputError(
            f"the model knows {model.config.num_labels} labels, the data {len(splits.label_names)}: "
            + ", ".join(splits.label_names)
        )


def _name_labels(model: EarlyExitModel, splits: Splits) -> tuple[str, ...]:
    """Make sure that model and data number the labels alike; a model without names takes the data's, with a note."""
    names, ours = list(splits.label_names), model.config.id2label
    if splits.problem_type == REGRESSION or names == [ours[number] for number in range(len(names))]:
        return ()
    if any(ours[number] != f"LABEL_{number}" for number in range(len(names))):
        raise InputError(f"the model's labels are {list(ours.values())}, the data's {names}: number them alike")
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: number for number, name in enumerate(names)}
    return (f"the model had no label names; its classes are taken to be, in order: {', '.join(names)}",)


def _fingerprint(model: EarlyExitModel, splits: Splits, settings: TrainingSettings) -> dict[str, Any]:
    """Note what a training follows from, so that only the same one is resumed."""
    weights = hashlib.sha256()
    for parameter in model.encoder.parameters():
        weights.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy())
    config = model.config
    return {
        "setting": asdict(settings),
        "model": {
            "encoder": weights.hexdigest(),
            "exits": list(config.exit_layers),
            "head": [config.head, config.shared_head, config.native_head],
            "pooling": config.pooling,
            "labels": list(splits.label_names),
            "metric": splits.metric,
        },
        "split": {name: digest_of_texts(getattr(splits, name)) for name in ("train", "calibration", "test")},
    }


def digest_of_texts(texts: Texts) -> str:
    """Tell some texts from others.

    Args:
        texts: The texts, with labels or without.

    Returns:
        A name that follows from all of them.
    """
    digest = hashlib.sha256(json.dumps([list(texts.first), list(texts.second or ())]).encode())
    digest.update(b"" if texts.labels is None else texts.labels.tobytes())
    return digest.hexdigest()


def _open_work(out: Path, fingerprint: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
    """Make the folder of the work, or find that of a training that was cut off."""
    work = partial_of(out)
    earlier = read_json(work / "fingerprint.json")
    if work.exists() and earlier is None:
        raise InputError(f"'{work}' is in the way and not a training of exitpoll; move it or choose another folder")
    if work.exists() and not resume:
        if not overwrite:
            raise InputError(f"'{work}' holds a training that was cut off: say --resume, or --overwrite to drop it")
        shutil.rmtree(work)
    elif earlier is not None:
        differing = [
            f"{group} {name}"
            for group, values in fingerprint.items()
            for name, value in values.items()
            if earlier.get(group, {}).get(name) != value
        ]
        if differing:
            raise InputError(f"'{work}' was begun with another {', another '.join(differing)}: resume with the same")
    work.mkdir(parents=True, exist_ok=True)
    write_json(work / "fingerprint.json", fingerprint)


def _scores(job: Job, texts: TokenizedTexts) -> dict[str, Any]:
    """Score every exit of the trained model on a split."""
    logits = record_logits(job.model, texts, job.tokenizer)
    assert texts.labels is not None
    return exit_scores(logits, texts.labels, job.splits.metric, job.splits.problem_type)


def _name_of(model: EarlyExitModel) -> str | None:
    """Say what a model was made of, by its name on the hub or that of its folder, wherever that may be."""
    name = model.config.encoder.name_or_path
    return (Path(name).name if Path(name).exists() else name) or None


def _write_folder(job: Job, out: Path, scores: dict[str, Any], result: Trained) -> None:
    """Write the model folder aside, put it in place and drop the work."""
    prepared = job.work / "finished"
    job.model.save_pretrained(prepared)
    job.tokenizer.save_pretrained(prepared)
    shutil.copy(job.work / JOURNAL, prepared / JOURNAL)
    summary = {
        "exitpoll": version("exitpoll"),
        "settings": asdict(job.settings),
        "source": {"fingerprint": fingerprint_of(job.model), "runtime": runtime_name(job.model.dtype)},
        "encoder": _name_of(job.model),
        "data": job.splits.source,
        "pairs": job.splits.is_pairs,
        "metric": job.splits.metric,
        "exit_layers": list(result.exit_layers),
        "scores": scores,
        "texts": {name: len(getattr(job.splits, name)) for name in ("train", "calibration", "test")},
        "truncated": result.truncated,
        "notes": list(result.notes),
        "seconds": round(result.seconds, 1),
    }
    write_json(prepared / TRAINING, summary)
    write_text(prepared / CARD, model_card(prepared, out.name))
    publish(job.work, prepared.name, out)
