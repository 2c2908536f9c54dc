"""The stages of a schedule: what is trained with which loss, and which checkpoint is kept."""

from __future__ import annotations

import copy
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
    TrainingArguments,
)

from exitpoll.data.progress import OnProgress, named
from exitpoll.data.splits import Splits
from exitpoll.models import losses
from exitpoll.models.folder import JOURNAL
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import TokenizedTexts
from exitpoll.training import ranks
from exitpoll.training.features import record_features, record_logits
from exitpoll.training.heads_only import FrozenTexts, HeadsOnly, collate
from exitpoll.training.journal import Journal
from exitpoll.training.methods import SCHEDULES
from exitpoll.training.objectives import OBJECTIVES, Loss, loss_for
from exitpoll.training.scores import answers_as_labels
from exitpoll.training.settings import TrainingSettings
from exitpoll.training.trainer import (
    EvaluateAndSave,
    ExitTrainer,
    ToLabels,
    last_checkpoint,
    metrics_by,
    step_of,
)

NEVER = 10**12  # steps
LAST = 30.0  # weight of the last head when a model is adapted, so that its answers change little


@dataclass(frozen=True)
class Job:
    """What all stages of a training share."""

    model: EarlyExitModel
    tokenizer: PreTrainedTokenizerBase
    train: TokenizedTexts
    calibration: TokenizedTexts  # longest first
    test: TokenizedTexts
    splits: Splits
    settings: TrainingSettings  # resolved
    work: Path  # folder of checkpoints and journal
    on_progress: OnProgress


def run_stages(job: Job) -> None:
    """Run all stages of the schedule; a stage that was finished before an interruption is only loaded.

    Args:
        job: What to train, on which texts and how.
    """
    assert job.settings.schedule is not None
    objective = loss_for(job.settings, job.splits.problem_type)
    for number, stage in enumerate(SCHEDULES[job.settings.schedule], start=1):
        folder = job.work / f"{number}-{stage}"
        finished = folder / "finished.safetensors"
        if finished.exists():
            job.model.load_state_dict(load_file(finished))
            continue
        ranks.first_alone(partial(folder.mkdir, exist_ok=True))
        STAGES[stage](job, objective, folder)
        ranks.first_alone(partial(_save_finished, job.model, finished))


def _save_finished(model: EarlyExitModel, path: Path) -> None:
    """Save the result of a stage atomically, and remove its checkpoints."""
    aside = path.with_name("aside.safetensors")
    save_file(model.state_dict(), aside)
    aside.rename(path)
    for checkpoint in path.parent.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)


def _train_all(job: Job, objective: Loss, folder: Path) -> None:
    """Train the encoder and all heads together."""
    _fit(job, "all", job.model, objective, job.train, job.calibration, folder)


def _train_alternating(job: Job, objective: Loss, folder: Path) -> None:
    """Train the encoder and all heads together, but at every other step with the last head alone."""
    _fit(job, "alternating", job.model, objective, job.train, job.calibration, folder, alternate=_last_exit(job))


def _last_exit(job: Job) -> Loss:
    """Return the loss of the last exit alone."""
    problem_type = job.splits.problem_type
    return lambda logits, labels: losses.relevancy(logits[:, -1:], labels, problem_type=problem_type)


def _train_last(job: Job, objective: Loss, folder: Path) -> None:
    """Train the encoder and the last head, without the other exits."""
    kept = int(job.model.has_exit_zero) if job.model.config.shared_head else len(job.model.config.exit_layers) - 1
    job.model.heads[:kept].requires_grad_(False)
    _fit(job, "last", job.model, _last_exit(job), job.train, job.calibration, folder)
    job.model.requires_grad_(True)


def _train_heads(job: Job, objective: Loss, folder: Path) -> None:
    """Train the heads below the last on the output of the frozen encoder, which is computed once."""
    _train_first_heads(job, "heads", len(job.model.config.exit_layers) - 1, objective, folder)


def _train_exit_zero(job: Job, objective: Loss, folder: Path) -> None:
    """Train the head at exit 0 alone; no layer is run, unless it learns from the last head."""
    assert job.settings.objective is not None
    others = OBJECTIVES[job.settings.objective].needs_trained_last_head or job.train.labels is None
    _train_first_heads(job, "exit-zero", 1, objective, folder, others=others)


def _train_first_heads(job: Job, stage: str, exits: int, objective: Loss, folder: Path, *, others: bool = True) -> None:
    """Train the heads of the first exits on the output of the frozen rest, which is computed once."""
    heads = HeadsOnly(job.model, exits)
    train_texts, calibration = (
        _freeze(job, texts, folder / f"{split}-{ranks.processes().process_index}.npy", split, exits, others=others)
        for texts, split in ((job.train, "train"), (job.calibration, "calibration"))
    )
    _fit(job, stage, heads, objective, train_texts, calibration, folder)


def _train_adapted(job: Job, objective: Loss, folder: Path) -> None:
    """Train everything on what the last head answers now: softly, and the last head itself above all."""
    problem_type = job.splits.problem_type
    soft = partial(losses.distillation, temperature=job.settings.temperature, last=LAST, problem_type=problem_type)
    train_texts, calibration = (
        replace(texts, labels=record_logits(job.model, texts, job.tokenizer)[:, -1])
        for texts in (job.train, job.calibration)
    )
    to_labels = partial(answers_as_labels, problem_type=problem_type)
    _fit(job, "adapt", job.model, soft, train_texts, calibration, folder, to_labels=to_labels)


STAGES = {
    "all": _train_all,
    "alternating": _train_alternating,
    "last": _train_last,
    "heads": _train_heads,
    "exit-zero": _train_exit_zero,
    "adapt": _train_adapted,
}


def _freeze(job: Job, texts: TokenizedTexts, path: Path, split: str, exits: int, *, others: bool) -> FrozenTexts:
    """Compute the features of a split, in every process separately."""
    features = record_features(
        job.model,
        texts,
        job.tokenizer,
        path,
        exits=exits,
        others=others,
        on_progress=named(f"features of {split}", job.on_progress),
    )
    if texts.labels is not None:
        return FrozenTexts(features, texts.labels)
    return FrozenTexts(features, answers_as_labels(features.fixed_logits[:, -1], job.splits.problem_type))


def _fit(
    job: Job,
    stage: str,
    model: torch.nn.Module,
    objective: Loss,
    train_texts: TokenizedTexts | FrozenTexts,
    calibration: TokenizedTexts | FrozenTexts,
    folder: Path,
    alternate: Loss | None = None,
    to_labels: ToLabels = np.asarray,
) -> None:
    """Train in one stage, resuming from its newest checkpoint, and load the best checkpoint."""
    settings, frozen = job.settings, isinstance(train_texts, FrozenTexts)
    trainer = ExitTrainer(
        objective=objective,
        alternate=alternate,
        to_labels=to_labels,
        head_learning_rate=settings.head_learning_rate,
        ngram_learning_rate=settings.ngram_learning_rate,
        journal=_journal(job, stage),
        on_progress=job.on_progress,
        model=copy.deepcopy(model) if ranks.shards_weights() else model,
        args=_arguments(settings, folder, "last" if stage == "last" else settings.select),
        train_dataset=train_texts,
        eval_dataset=calibration,
        data_collator=collate if frozen else DataCollatorWithPadding(job.tokenizer),
        compute_metrics=metrics_by(job.splits.metric, job.splits.problem_type, to_labels),
        callbacks=_callbacks(settings),
    )
    trainer.remove_callback(PrinterCallback)
    checkpoint = ranks.first_alone(partial(_rewind, trainer.journal, folder))
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    ranks.processes().wait_for_everyone()  # until all have loaded the best checkpoint, which the first then removes
    if ranks.shards_weights():
        whole = trainer.accelerator.get_state_dict(trainer.model)  # of all processes; the first has them
        model.load_state_dict(ranks.first_alone(lambda: whole))


def _rewind(journal: Journal, folder: Path) -> Path | None:
    """Return the newest checkpoint of a stage, and drop what the journal holds of later steps."""
    checkpoint = last_checkpoint(folder)
    journal.rewind(0 if checkpoint is None else step_of(checkpoint))
    return checkpoint


def _journal(job: Job, stage: str) -> Journal:
    """Return the journal of a stage."""
    settings = job.settings
    assert settings.diversity_weight is not None
    return Journal(
        job.work / JOURNAL,
        stage=stage,
        problem_type=job.splits.problem_type,
        diversity_weight=settings.diversity_weight if settings.objective == "ensemble" else 0.0,
        closest=settings.closest,
        neighbors=settings.neighbors,
    )


def _callbacks(settings: TrainingSettings) -> list[TrainerCallback]:
    """Return the callbacks that evaluate, save and stop early."""
    callbacks: list[TrainerCallback] = [EvaluateAndSave(settings.logs_per_epoch)]
    if settings.early_stop is not None:
        callbacks.append(EarlyStoppingCallback(early_stopping_patience=settings.early_stop))
    return callbacks


def _arguments(settings: TrainingSettings, folder: Path, select: str) -> TrainingArguments:
    """Translate settings into the arguments of Trainer."""
    selected_by = {"mean": "mean_score", "last": "last_score", "loss": "mean_loss"}[select]
    return TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=ranks.split_evenly(settings.batch_size),
        per_device_eval_batch_size=64,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        optim="adamw_torch_fused",
        bf16=_use_bf16(settings.precision),
        use_cpu=not torch.accelerator.is_available(),
        seed=settings.seed,
        # EvaluateAndSave alone decides when to evaluate, log and save.
        eval_strategy="steps",
        eval_steps=NEVER,
        save_strategy="steps",
        save_steps=NEVER,
        logging_strategy="steps",
        logging_steps=NEVER,
        save_total_limit=1,
        restore_callback_states_from_checkpoint=True,
        load_best_model_at_end=True,
        metric_for_best_model=selected_by,
        greater_is_better=select != "loss",
        label_names=["labels"],
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=True,
        report_to="none",
    )


def _use_bf16(precision: str) -> bool:
    """Return whether to train in bf16."""
    if precision == "auto":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return precision == "bf16"
