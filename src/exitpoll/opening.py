"""A model folder, opened, and texts read as the model was trained to see them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from exitpoll.data import Texts, load_splits, load_texts
from exitpoll.errors import InputError
from exitpoll.folders import read_json
from exitpoll.model import EarlyExitModel
from exitpoll.recording import Advance, fingerprint, record
from exitpoll.tasks import DEFAULT_METRICS, REGRESSION, task_named
from exitpoll.tokens import load_tokenizer
from exitpoll.trace import Trace

Split = Literal["train", "calibration", "test", "all"]


@dataclass(frozen=True)
class Opened:
    """A model, its tokenizer and the summary of its training."""

    model: EarlyExitModel
    tokenizer: PreTrainedTokenizerBase
    summary: Mapping[str, Any]

    @property
    def label_names(self) -> list[str]:
        """The classes, in their order."""
        config = self.model.config
        return [config.id2label[number] for number in range(config.num_labels)]


@dataclass(frozen=True)
class Read:
    """Texts, and what is to be noted of them."""

    texts: Texts
    about: Mapping[str, Any]  # data, split, metric
    notes: tuple[str, ...] = ()


def open_model(model: str) -> Opened:
    """Open a model folder, or one on the hub.

    Args:
        model: Its path or name.

    Returns:
        What is in it.
    """
    loaded = EarlyExitModel.from_pretrained(model)
    path = Path(model) / "training.json"
    summary = read_json(path) if path.exists() else {}
    if summary is None or not isinstance(summary.get("settings", {}), dict):
        raise InputError(f"'{path}' is broken: how training cut the splits cannot be told; restore it or remove it")
    return Opened(loaded, load_tokenizer(model), summary)


def policy_path(model: str) -> Path:
    """Say where a model's policy is kept.

    Args:
        model: The model's folder.

    Returns:
        The path of its policy.json.
    """
    if not Path(model).is_dir():
        raise InputError(f"'{model}' is no folder; name the model folder that exitpoll train wrote")
    return Path(model) / "policy.json"


def check_same_model(model: str, path: Path, trace: Trace) -> None:
    """Refuse a trace of another model.

    Args:
        model: The model's folder.
        path: The trace's file, for the message.
        trace: The trace.
    """
    ours, theirs = fingerprint(EarlyExitModel.from_pretrained(model)), trace.about.get("model")
    if theirs is not None and ours != theirs:
        raise InputError(f"'{path}' was recorded from another model than '{model}': {theirs}, not {ours}")


def read_texts(
    opened: Opened,
    data: str,
    split: Split,
    *,
    task: str | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
) -> Read:
    """Read a split as training cut it, with labels numbered as the model numbers them.

    Args:
        opened: The model.
        data: A file, a folder, a known task's name or a hub dataset's.
        split: Which split; "all" takes a file as it is, with labels or without.
        task: The known task whose metric to use, where neither the model's training nor the data's name says it.
        text_column: The column of the text.
        pair_column: The column of the second text of a pair.
        label_column: The column of the label.
        group_column: A column of groups of texts that are to be told apart.

    Returns:
        The texts.
    """
    kind = opened.model.config.problem_type
    columns: dict[str, Any] = {
        "text_column": text_column,
        "pair_column": pair_column,
        "label_column": label_column,
        "group_column": group_column,
    }
    named = task or Path(data).name
    about = {"data": Path(data).name, "split": split, "task": named if task_named(named) else None}
    metric = opened.summary.get("metric")
    if split == "all":
        texts = load_texts(data, label_names=opened.label_names, problem_type=kind, **columns)
        return Read(texts, about | {"metric": metric or DEFAULT_METRICS[kind]})
    seed = opened.summary.get("settings", {}).get("seed")
    splits = load_splits(
        data,
        task=task,
        label_names=None if kind == REGRESSION else opened.label_names,
        problem_type=kind,
        seed=seed if isinstance(seed, int) and seed >= 0 else 0,
        **columns,
    )
    if not isinstance(seed, int) and any("cut from train" in note for note in splits.notes):
        raise InputError(
            f"'{data}' has no {split} split, and how training cut it is not known; use a file and --split all"
        )
    return Read(getattr(splits, split), about | {"metric": metric or splits.metric}, tuple(splits.notes))


def record_in_memory(opened: Opened, read: Read, *, batch_size: int = 64, advance: Advance | None = None) -> Trace:
    """Ask every exit about some texts without keeping a file.

    Args:
        opened: The model.
        read: The texts.
        batch_size: Texts in a batch.
        advance: Called after every batch.

    Returns:
        The trace.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.safetensors"
        trace = record(
            opened.model, opened.tokenizer, read.texts, path, about=read.about, batch_size=batch_size, advance=advance
        )
        return Trace(np.array(trace.logits), read.texts.labels, trace.layers, trace.about)
