"""Check that a model, a tokenizer, texts and settings go together, before anything is computed or written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from exitpoll.data.splits import AGREEMENT, Splits, Texts
from exitpoll.decide.metrics import MULTI_LABEL, PROBLEM_TYPES, REGRESSION, SINGLE_LABEL, metric_named
from exitpoll.errors import InputError
from exitpoll.models.model import EarlyExitModel
from exitpoll.training.heads_only import check_exit_zero, check_heads_below
from exitpoll.training.methods import SCHEDULES
from exitpoll.training.objectives import loss_for
from exitpoll.training.settings import TrainingSettings
from exitpoll.training.work import SPLITS


def check_kinds(model: object, tokenizer: object, splits: object) -> None:
    """Refuse arguments of another kind than `train` takes.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        splits: The texts.
    """
    for name, value, kind in (
        ("model", model, EarlyExitModel),
        ("tokenizer", tokenizer, PreTrainedTokenizerBase),
        ("splits", splits, Splits),
    ):
        if not isinstance(value, kind):
            raise InputError(f"{name} must be of the kind {kind.__name__}, not {type(value).__name__}")


def are_labelled(splits: Splits) -> bool:
    """Return whether the texts have labels, and refuse splits of which only some have.

    Args:
        splits: The texts.

    Returns:
        Whether all splits have labels.
    """
    labelled = [getattr(splits, name).labels is not None for name in SPLITS]
    if any(labelled) != all(labelled):
        without = [name for name, yes in zip(SPLITS, labelled, strict=True) if not yes]
        raise InputError(f"there are no labels in the {' and '.join(without)} split, but in others")
    return all(labelled)


def with_classes_of(model: EarlyExitModel, splits: Splits) -> Splits:
    """Take the classes of the model, and agreement as the metric, where the texts have no labels.

    Args:
        model: The model.
        splits: The texts.

    Returns:
        The splits; those with labels as they are.
    """
    if splits.train.labels is not None:
        return splits
    config = model.config
    names = splits.label_names or list(config.id2label.values())
    return replace(splits, label_names=names, problem_type=config.problem_type, metric=AGREEMENT)


def check_compatible(
    model: EarlyExitModel, tokenizer: PreTrainedTokenizerBase, splits: Splits, settings: TrainingSettings
) -> None:
    """Refuse a model, tokenizer, data and settings that do not go together.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        splits: The texts.
        settings: Resolved settings.
    """
    assert settings.schedule is not None
    if "heads" in SCHEDULES[settings.schedule]:
        check_heads_below(model.config)
    if settings.schedule == "exit-zero":
        check_exit_zero(model.config)
    if len(tokenizer) > model.config.encoder.vocab_size:
        raise InputError(
            f"the tokenizer has {len(tokenizer)} tokens, the encoder {model.config.encoder.vocab_size}: "
            "they do not belong together"
        )
    if splits.problem_type not in PROBLEM_TYPES:
        raise InputError(f"problem type '{splits.problem_type}' is unknown; choose one of: {', '.join(PROBLEM_TYPES)}")
    if model.config.problem_type != splits.problem_type:
        raise InputError(f"the model is for {model.config.problem_type}, the data for {splits.problem_type}")
    classes = model.config.num_labels
    if classes != len(splits.label_names):
        listed = ", ".join(splits.label_names)
        raise InputError(f"the model knows {classes} labels, the data {len(splits.label_names)}: {listed}")
    if splits.metric != AGREEMENT:
        metric_named(splits.metric, splits.problem_type, classes)
    loss_for(settings, splits.problem_type)
    for name in SPLITS:
        _check_texts(name, getattr(splits, name), splits.problem_type, classes, pairs=splits.is_pairs)


def _check_texts(name: str, texts: Texts, problem_type: str, classes: int, *, pairs: bool) -> None:
    """Refuse a split that is empty, or whose labels or pairs do not fit."""
    if not len(texts):
        raise InputError(f"the {name} split has no texts")
    if (texts.second is not None) != pairs:
        kinds = ("single texts", "pairs") if pairs else ("pairs", "single texts")
        raise InputError(f"the texts of the {name} split are {kinds[0]}, those of the train split {kinds[1]}")
    if texts.labels is None:
        return
    shape = (len(texts), classes) if problem_type == MULTI_LABEL else (len(texts),)
    if np.shape(texts.labels) != shape:
        raise InputError(f"the labels of the {name} split have the shape {np.shape(texts.labels)}, not {shape}")
    if not _fit(texts, problem_type, classes):
        wanted = {
            SINGLE_LABEL: f"integers from 0 to {classes - 1}",
            MULTI_LABEL: "0 or 1",
            REGRESSION: "finite numbers",
        }
        raise InputError(f"the labels of the {name} split must be {wanted[problem_type]}")


def _fit(texts: Texts, problem_type: str, classes: int) -> bool:
    """Return whether labels have values that they may have."""
    labels = np.asarray(texts.labels)
    if problem_type == REGRESSION:
        return labels.dtype.kind in "fiu" and bool(np.isfinite(labels).all())
    if problem_type == MULTI_LABEL:
        return labels.dtype.kind in "fiub" and bool(np.isin(labels, (0, 1)).all())
    return labels.dtype.kind in "iu" and bool(((labels >= 0) & (labels < classes)).all())
