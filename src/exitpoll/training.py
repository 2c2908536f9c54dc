"""train(): from a model and three splits to a model folder, in the stages of a schedule."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

from exitpoll import objectives
from exitpoll.data import Splits, Texts
from exitpoll.errors import InputError
from exitpoll.folders import check_free, partial_of, publish, read_json, write_json
from exitpoll.frozen import FrozenTexts, HeadsOnly
from exitpoll.methods import SCHEDULES, TrainingSettings
from exitpoll.model import EarlyExitModel
from exitpoll.record import record_features, record_logits
from exitpoll.recorder import Recorder
from exitpoll.tokens import TokenisedTexts, readable_length, tokenise
from exitpoll.trainer import (
    ExitTrainer,
    Interruptions,
    Objective,
    OnProgress,
    Progress,
    exit_scores,
    last_checkpoint,
    scorer,
)

logger = logging.getLogger(__name__)

RECORD_NAME = "training.jsonl"
SUMMARY_NAME = "training.json"


@dataclass(frozen=True)
class Trained:
    """What a training came to."""

    folder: Path
    model: EarlyExitModel
    layers: Sequence[int]  # of each exit
    calibration_scores: Sequence[float]  # of each exit, by the task's metric
    test_scores: Sequence[float]
    metric: str
    truncated: int  # texts longer than the encoder reads, over all splits
    texts: int  # over all splits
    seconds: float
    notes: Sequence[str]


@dataclass(frozen=True)
class _Job:
    """What every stage of one training shares."""

    model: EarlyExitModel
    tokenizer: PreTrainedTokenizerBase
    train: TokenisedTexts
    calibration: TokenisedTexts
    splits: Splits
    settings: TrainingSettings
    work: Path
    on_progress: OnProgress | None


def train(
    model: EarlyExitModel,
    tokenizer: PreTrainedTokenizerBase,
    splits: Splits,
    out: str | Path,
    settings: TrainingSettings | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
) -> Trained:
    """Train a model and write its folder, whole or not at all.

    While it runs, checkpoints and the record are kept beside the folder, in `<out>.partial`.

    Args:
        model: The model to train, in place.
        tokenizer: Its tokenizer.
        splits: What to train on, to choose checkpoints by and to report on.
        out: The folder to write.
        settings: How to train.
        resume: Go on with a training that was cut off.
        overwrite: Replace an older model folder, and drop what a training that was cut off had done.
        on_progress: Called after every step.

    Returns:
        The scores of every exit.
    """
    started = time.monotonic()
    out = Path(out)
    settings = (settings or TrainingSettings()).resolved()
    check_free(out, overwrite=overwrite)
    objective = _objective(settings, splits.problem_type)
    work = _open_work(out, _fingerprint(model, splits, settings), resume=resume, overwrite=overwrite)
    torch.set_flush_denormal(True)
    set_seed(settings.seed)
    model.config.max_length = readable_length(model.config.encoder, settings.max_length)
    model.config.strategy = settings.strategy
    read = partial(tokenise, tokenizer=tokenizer, max_length=model.config.max_length)
    train_texts, calibration, test = read(splits.train), read(splits.calibration), read(splits.test)
    job = _Job(model, tokenizer, train_texts, calibration.sorted_by_length(), splits, settings, work, on_progress)
    _run_stages(job, objective)
    scores = {
        "calibration": _scores(job, calibration),
        "test": _scores(job, test),
    }
    truncated = sum(split.truncated for split in (train_texts, calibration, test))
    result = Trained(
        folder=out,
        model=model,
        layers=model.config.exits,
        calibration_scores=scores["calibration"]["exit_scores"],
        test_scores=scores["test"]["exit_scores"],
        metric=splits.metric,
        truncated=truncated,
        texts=len(train_texts) + len(calibration) + len(test),
        seconds=time.monotonic() - started,
        notes=splits.notes,
    )
    _write_folder(job, out, scores, result)
    return result


# ---- stages ---------------------------------------------------------------------------------------------------------


def _run_stages(job: _Job, objective: Objective) -> None:
    """Run the schedule; a stage that an earlier run finished is only loaded."""
    assert job.settings.schedule is not None
    for number, stage in enumerate(SCHEDULES[job.settings.schedule], start=1):
        folder = job.work / f"{number}-{stage}"
        finished = folder / "finished.safetensors"
        if finished.exists():
            job.model.load_state_dict(load_file(finished))
            continue
        folder.mkdir(exist_ok=True)
        STAGES[stage](job, objective, folder)
        save_file(job.model.state_dict(), folder / "aside.safetensors")
        (folder / "aside.safetensors").rename(finished)


def _train_all(job: _Job, objective: Objective, folder: Path) -> None:
    """Train the encoder and every head together."""
    _fit(job, "all", job.model, objective, job.train, job.calibration, folder)


def _train_last(job: _Job, objective: Objective, folder: Path) -> None:
    """Train the encoder and the last head, as if there were no other exits."""
    problem_type = job.splits.problem_type

    def last_exit(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return objectives.relevancy(logits[:, -1:], labels, problem_type=problem_type)

    if not job.model.config.shared_head:
        job.model.heads[: len(job.model.config.exits) - 1].requires_grad_(False)
    _fit(job, "last", job.model, last_exit, job.train, job.calibration, folder)
    job.model.requires_grad_(True)


def _train_heads(job: _Job, objective: Objective, folder: Path) -> None:
    """Train the heads below the last on features that the frozen encoder computes once."""
    heads = HeadsOnly(job.model)
    train_texts = _freeze(job, job.train, folder / "train.npy")
    calibration = _freeze(job, job.calibration, folder / "calibration.npy")
    _fit(job, "heads", heads, objective, train_texts, calibration, folder)


STAGES = {"all": _train_all, "last": _train_last, "heads": _train_heads}


def _freeze(job: _Job, texts: TokenisedTexts, path: Path) -> FrozenTexts:
    """Compute the features of a split."""

    def advance(done: int, total: int) -> None:
        if job.on_progress is not None:
            job.on_progress(Progress(f"features of {path.stem}", done, total))

    features, last_logits = record_features(job.model, texts, job.tokenizer, path, advance=advance)
    assert texts.labels is not None
    return FrozenTexts(features, last_logits, texts.labels)


def _fit(
    job: _Job,
    stage: str,
    model: torch.nn.Module,
    objective: Objective,
    train_texts: TokenisedTexts | FrozenTexts,
    calibration: TokenisedTexts | FrozenTexts,
    folder: Path,
) -> None:
    """Run one stage to its best checkpoint, from the newest checkpoint if there is one."""
    settings = job.settings
    assert settings.diversity_weight is not None
    recorder = Recorder(
        job.work / RECORD_NAME,
        stage=stage,
        diversity_weight=settings.diversity_weight if settings.objective == "ensemble" else 0.0,
        problem_type=job.splits.problem_type,
    )
    steps = math.ceil(len(train_texts) / settings.batch_size) * settings.epochs
    trainer = ExitTrainer(
        objective=objective,
        head_learning_rate=settings.head_learning_rate,
        recorder=recorder,
        on_progress=job.on_progress,
        model=model,
        args=_arguments(settings, folder, steps, "last" if stage == "last" else settings.select),
        train_dataset=train_texts,
        eval_dataset=calibration,
        data_collator=DataCollatorWithPadding(job.tokenizer) if stage != "heads" else default_data_collator,
        compute_metrics=scorer(job.splits.metric, job.splits.problem_type),
        callbacks=_callbacks(settings, steps),
    )
    trainer.remove_callback(PrinterCallback)
    checkpoint = last_checkpoint(folder)
    recorder.rewind(0 if checkpoint is None else int(checkpoint.name.split("-")[1]))
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    for path in folder.glob("checkpoint-*"):
        shutil.rmtree(path)


def _callbacks(settings: TrainingSettings, steps: int) -> list[Any]:
    """Say when to stop and look, and when to stop for good."""
    looks = settings.epochs * settings.logs_per_epoch
    callbacks: list[Any] = [Interruptions({max(1, round(steps * look / looks)) for look in range(1, looks + 1)})]
    if settings.early_stop is not None:
        callbacks.append(EarlyStoppingCallback(early_stopping_patience=settings.early_stop))
    return callbacks


def _arguments(settings: TrainingSettings, folder: Path, steps: int, select: str) -> TrainingArguments:
    """Put settings into Trainer's words."""
    quantity = {"mean": "mean_score", "last": "last_score", "loss": "mean_loss"}[select]
    return TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=64,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        optim="adamw_torch_fused",
        bf16=_use_bf16(settings.precision),
        seed=settings.seed,
        # Scoring, logging and saving go together, at the steps that Interruptions names; the last step is one.
        eval_strategy="steps",
        eval_steps=steps,
        save_strategy="steps",
        save_steps=steps,
        logging_strategy="steps",
        logging_steps=steps,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model=quantity,
        greater_is_better=select != "loss",
        label_names=["labels"],
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=True,
        report_to="none",
    )


def _use_bf16(precision: str) -> bool:
    """Whether to train in bf16."""
    if precision == "auto":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return precision == "bf16"


def _objective(settings: TrainingSettings, problem_type: str) -> Objective:
    """Bind the settings of an objective."""
    assert settings.weights is not None
    assert settings.diversity_weight is not None
    if settings.objective == "relevancy":
        return partial(objectives.relevancy, weights=settings.weights, problem_type=problem_type)
    if settings.objective == "self_distillation":
        if problem_type != objectives.SINGLE_LABEL:
            raise InputError("self-distillation compares distributions over classes: use the relevancy objective")
        return lambda logits, labels: objectives.self_distillation(logits, temperature=settings.temperature)
    objectives.check_diversity_weight(settings.diversity_weight)
    if problem_type == objectives.REGRESSION:
        raise InputError("diversity is defined on distributions; regression has none: use the relevancy objective")
    return partial(
        objectives.ensemble,
        diversity_weight=settings.diversity_weight,
        weights=settings.weights,
        closest=settings.closest,
        through_target=settings.through_target,
        neighbours=settings.neighbours,
        last=settings.last_diversity,
        problem_type=problem_type,
    )


# ---- folders --------------------------------------------------------------------------------------------------------


def _fingerprint(model: EarlyExitModel, splits: Splits, settings: TrainingSettings) -> dict[str, Any]:
    """Note what a training follows from, so that only the same one is resumed."""
    return {
        "settings": asdict(settings),
        "encoder": model.config.encoder.model_type,
        "exits": list(model.config.exits),
        "labels": list(splits.label_names),
        "data": {name: _digest(getattr(splits, name)) for name in ("train", "calibration", "test")},
    }


def _digest(texts: Texts) -> str:
    """Tell some texts from others."""
    digest = hashlib.sha256(json.dumps([list(texts.first), list(texts.second or ())]).encode())
    digest.update(b"" if texts.labels is None else texts.labels.tobytes())
    return digest.hexdigest()


def _open_work(out: Path, fingerprint: dict[str, Any], *, resume: bool, overwrite: bool) -> Path:
    """Make the folder of the work, or find that of a training that was cut off."""
    work = partial_of(out)
    if work.exists() and not resume:
        if not overwrite:
            raise InputError(f"'{work}' holds a training that was cut off: say --resume, or --overwrite to drop it")
        shutil.rmtree(work)
    if work.exists():
        earlier = read_json(work / "fingerprint.json") or {}
        differing = [name for name, value in _flat(fingerprint).items() if _flat(earlier).get(name) != value]
        if earlier and differing:
            raise InputError(f"'{work}' was begun with another {', '.join(differing)}: resume with the same")
    work.mkdir(parents=True, exist_ok=True)
    write_json(work / "fingerprint.json", fingerprint)
    return work


def _flat(content: dict[str, Any]) -> dict[str, Any]:
    """Name nested values by their own names."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        flat |= {f"{name} {inner}": v for inner, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _scores(job: _Job, texts: TokenisedTexts) -> dict[str, Any]:
    """Score every exit of the trained model on a split."""
    logits = record_logits(job.model, texts, job.tokenizer)
    assert texts.labels is not None
    return exit_scores(logits, texts.labels, job.splits.metric, job.splits.problem_type)


def _write_folder(job: _Job, out: Path, scores: dict[str, Any], result: Trained) -> None:
    """Write the model folder aside, put it in place and drop the work."""
    prepared = job.work / "finished"
    job.model.save_pretrained(prepared)
    job.tokenizer.save_pretrained(prepared)
    shutil.copy(job.work / RECORD_NAME, prepared / RECORD_NAME)
    summary = {
        "exitpoll": version("exitpoll"),
        "settings": asdict(job.settings),
        "metric": job.splits.metric,
        "layers": list(result.layers),
        "scores": scores,
        "texts": {name: len(getattr(job.splits, name)) for name in ("train", "calibration", "test")},
        "truncated": result.truncated,
        "notes": list(job.splits.notes),
        "seconds": round(result.seconds, 1),
    }
    write_json(prepared / SUMMARY_NAME, summary)
    publish(prepared, out)
    shutil.rmtree(job.work)
