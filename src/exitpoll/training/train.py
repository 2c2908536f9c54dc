"""train(): from a model and three splits to a model folder, in the stages of a schedule."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase, set_seed

from exitpoll.data.progress import OnProgress, ignore
from exitpoll.data.splits import Splits, Texts
from exitpoll.decide.metrics import REGRESSION
from exitpoll.errors import InputError
from exitpoll.files import partial_of, publish, read_json, write_json, write_text
from exitpoll.models.card import model_card
from exitpoll.models.fingerprint import fingerprint_of, runtime_name
from exitpoll.models.folder import CARD, JOURNAL, TRAINING, SplitScores, TrainingSummary, check_free_for_model
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import TokenizedTexts, readable_length, tokenize
from exitpoll.training.features import record_logits
from exitpoll.training.heads_only import check_heads_below
from exitpoll.training.methods import SCHEDULES
from exitpoll.training.objectives import loss_for
from exitpoll.training.scores import score_exits
from exitpoll.training.settings import TrainingSettings
from exitpoll.training.stages import Job, run_stages
from exitpoll.training.trainer import processes

SPLITS = ("train", "calibration", "test")
IDENTITY = "identity.json"  # in the work folder: what the training depends on


@dataclass(frozen=True)
class Trained:
    """Result of a training run."""

    folder: Path
    model: EarlyExitModel
    exit_layers: Sequence[int]
    calibration_scores: Sequence[float]  # (exits,) by the task's metric
    test_scores: Sequence[float]  # (exits,)
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
    """Train a model and write its folder atomically.

    While it runs, checkpoints and the journal are kept in `<out>.partial`. From then on denormal numbers, which slow
    CPUs down, are flushed to zero in the whole process.

    Args:
        model: The model to train, in place.
        tokenizer: Its tokenizer.
        splits: The texts to train on, to select checkpoints by and to report scores on.
        out: The folder to write.
        settings: How to train. A model made by `from_classifier` keeps its own head, and only the heads below it are
            trained, unless a schedule is named.
        resume: Resume an interrupted training.
        overwrite: Replace an older model folder, and discard an interrupted training.
        on_progress: Called after every step and every evaluation.

    Returns:
        The trained model with the scores of every exit.
    """
    started = time.monotonic()
    out = Path(out).resolve()
    settings = preflight(settings, out, native_head=model.config.native_head, overwrite=overwrite)
    _check_compatible(model, tokenizer, splits, settings)
    notes = (*splits.notes, *_name_labels(model, splits))
    _configure(model, settings)
    tokenized = {name: tokenize(getattr(splits, name), tokenizer, model.config.max_length) for name in SPLITS}
    calibration = tokenized["calibration"].sorted_by_length()
    job = Job(model, tokenizer, tokenized["train"], calibration, splits, settings, partial_of(out), on_progress)
    distributed = processes()
    if distributed.is_main_process:
        _open_work(job.work, _identity(model, splits, settings), resume=resume, overwrite=overwrite)
    distributed.wait_for_everyone()
    torch.set_flush_denormal(True)
    set_seed(settings.seed)
    model.to(distributed.device)
    run_stages(job)
    scores = {name: _score(job, tokenized[name]) for name in ("calibration", "test")}
    result = Trained(
        folder=out,
        model=model,
        exit_layers=model.config.exit_layers,
        calibration_scores=scores["calibration"]["exit_scores"],
        test_scores=scores["test"]["exit_scores"],
        metric=splits.metric,
        truncated=sum(texts.truncated for texts in tokenized.values()),
        texts=sum(map(len, tokenized.values())),
        seconds=time.monotonic() - started,
        notes=notes,
    )
    if distributed.is_main_process:
        _write_folder(job, _summary(job, result, scores), out)
    distributed.wait_for_everyone()
    return result


def preflight(settings: TrainingSettings | None, out: Path, *, native_head: bool, overwrite: bool) -> TrainingSettings:
    """Check what can be checked before data and weights are read: the settings and the output folder.

    Args:
        settings: How to train.
        out: The folder to write.
        native_head: Whether a fine-tuned classifier with a head of its own is trained.
        overwrite: Whether an older model folder may be replaced.

    Returns:
        The resolved settings.
    """
    resolved = (settings or TrainingSettings()).resolved(native_head=native_head)
    check_free_for_model(out, overwrite=overwrite)
    return resolved


def _check_compatible(
    model: EarlyExitModel, tokenizer: PreTrainedTokenizerBase, splits: Splits, settings: TrainingSettings
) -> None:
    """Refuse a model, tokenizer, data and settings that do not go together, before anything is written."""
    loss_for(settings, splits.problem_type)
    assert settings.schedule is not None
    if "heads" in SCHEDULES[settings.schedule]:
        check_heads_below(model.config)
    if len(tokenizer) > model.config.encoder.vocab_size:
        raise InputError(
            f"the tokenizer has {len(tokenizer)} tokens, the encoder {model.config.encoder.vocab_size}: "
            "they do not belong together"
        )
    if model.config.problem_type != splits.problem_type:
        raise InputError(f"the model is for {model.config.problem_type}, the data for {splits.problem_type}")
    if model.config.num_labels != len(splits.label_names):
        raise InputError(
            f"the model knows {model.config.num_labels} labels, the data {len(splits.label_names)}: "
            + ", ".join(splits.label_names)
        )


def _name_labels(model: EarlyExitModel, splits: Splits) -> tuple[str, ...]:
    """Check that model and data number the labels alike; a model without label names takes those of the data."""
    names, ours = list(splits.label_names), model.config.id2label
    if splits.problem_type == REGRESSION or names == [ours[number] for number in range(len(names))]:
        return ()
    if any(ours[number] != f"LABEL_{number}" for number in range(len(names))):
        raise InputError(f"the labels of the model are {list(ours.values())}, those of the data {names}: use one order")
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: number for number, name in enumerate(names)}
    return (f"the model had no label names; its classes are taken to be, in order: {', '.join(names)}",)


def _configure(model: EarlyExitModel, settings: TrainingSettings) -> None:
    """Enter settings into the configuration of the model, which is saved with it."""
    config = model.config
    config.max_length = readable_length(config.encoder, settings.max_length or config.max_length)
    config.layer_drop = settings.layer_drop


def _identity(model: EarlyExitModel, splits: Splits, settings: TrainingSettings) -> dict[str, dict[str, object]]:
    """Collect all that a training depends on, so that only the same training is resumed."""
    weights = hashlib.sha256()
    for parameter in model.encoder.parameters():
        weights.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy())
    config = model.config
    return {
        "setting": asdict(settings),
        "model": {
            "encoder": weights.hexdigest(),
            "exit_layers": list(config.exit_layers),
            "head": [config.head, config.shared_head, config.native_head],
            "pooling": config.pooling,
            "labels": list(splits.label_names),
            "metric": splits.metric,
        },
        "split": {name: digest_of_texts(getattr(splits, name)) for name in SPLITS},
    }


def digest_of_texts(texts: Texts) -> str:
    """Hash texts and labels.

    Args:
        texts: The texts, with labels or without.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256(json.dumps([list(texts.first), list(texts.second or ())]).encode())
    digest.update(b"" if texts.labels is None else texts.labels.tobytes())
    return digest.hexdigest()


def _open_work(work: Path, identity: Mapping[str, Mapping[str, object]], *, resume: bool, overwrite: bool) -> None:
    """Create the work folder, or reuse that of the same training if it was interrupted."""
    earlier = read_json(work / IDENTITY)
    if work.exists() and earlier is None:
        raise InputError(f"'{work}' exists and is not the work folder of a training; move it or choose another folder")
    if work.exists() and not resume:
        if not overwrite:
            raise InputError(f"'{work}' holds an interrupted training: use --resume, or --overwrite to discard it")
        shutil.rmtree(work)
    elif earlier is not None:
        _check_same(work, earlier, identity)
    work.mkdir(parents=True, exist_ok=True)
    write_json(work / IDENTITY, identity)


def _check_same(
    work: Path, earlier: Mapping[str, Mapping[str, object]], identity: Mapping[str, Mapping[str, object]]
) -> None:
    """Refuse to resume another training."""
    differing = [
        f"{group} {name}"
        for group, values in identity.items()
        for name, value in values.items()
        if earlier.get(group, {}).get(name) != value
    ]
    if differing:
        raise InputError(f"'{work}' was started with another {', another '.join(differing)}: resume with the same")


def _score(job: Job, texts: TokenizedTexts) -> SplitScores:
    """Score every exit of the trained model on a split."""
    logits = record_logits(job.model, texts, job.tokenizer)
    assert texts.labels is not None
    return score_exits(logits, texts.labels, job.splits.metric, job.splits.problem_type)


def _summary(job: Job, result: Trained, scores: dict[str, SplitScores]) -> TrainingSummary:
    """Summarize the training."""
    return TrainingSummary(
        versions={package: version(package) for package in ("exitpoll", "torch", "transformers", "tokenizers")},
        settings=asdict(job.settings),
        source={"fingerprint": fingerprint_of(job.model, job.tokenizer), "runtime": runtime_name(job.model.dtype)},
        encoder=_encoder_name(job.model),
        data=job.splits.source,
        pairs=job.splits.is_pairs,
        metric=result.metric,
        exit_layers=list(result.exit_layers),
        scores=scores,
        texts={name: len(getattr(job.splits, name)) for name in SPLITS},
        truncated=result.truncated,
        notes=list(result.notes),
        seconds=round(result.seconds, 1),
    )


def _encoder_name(model: EarlyExitModel) -> str | None:
    """Return the name of the pretrained encoder on the hub, or of its folder without the path."""
    name = model.config.encoder.name_or_path
    return (Path(name).name if Path(name).exists() else name) or None


def _write_folder(job: Job, summary: TrainingSummary, out: Path) -> None:
    """Write the model folder inside the work folder and move it to its place."""
    finished = job.work / "finished"
    job.model.save_pretrained(finished)
    job.tokenizer.save_pretrained(finished)
    shutil.copy(job.work / JOURNAL, finished / JOURNAL)
    write_json(finished / TRAINING, summary)
    write_text(finished / CARD, model_card(finished, out.name))
    publish(job.work, finished.name, out)
