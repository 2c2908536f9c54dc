"""Snapshots of what the heads read of some texts at three steps of a training, for the figure of hidden states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from transformers import PreTrainedTokenizerBase

from exitpoll.data.progress import OnProgress, Progress
from exitpoll.data.splits import Texts
from exitpoll.files import write_bytes
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import tokenize
from exitpoll.study.run import LABELS
from exitpoll.training.features import record_all_features

TEXTS = 128  # of a snapshot
SHARES = (0.02, 0.2, 1.0)  # of the training steps, after which snapshots are taken


class SnapshotTaker:
    """A progress callback that takes snapshots at some steps of a training."""

    def __init__(
        self,
        model: EarlyExitModel,
        tokenizer: PreTrainedTokenizerBase,
        texts: Texts,
        path: Path,
        on_progress: OnProgress,
    ) -> None:
        """Choose the texts, and load the snapshots of an interrupted training.

        Args:
            model: The model, which is trained in place.
            tokenizer: Its tokenizer.
            texts: The first of these are used.
            path: The file to keep the snapshots in.
            on_progress: The next callback.
        """
        self.model, self.tokenizer, self.path, self.on_progress = model, tokenizer, path, on_progress
        first = texts.select(np.arange(min(TEXTS, len(texts))))
        self.texts = tokenize(first, tokenizer, model.config.max_length)
        self.snapshots: dict[str, NDArray] = load_file(path) if path.exists() else {}  # by step

    def __call__(self, progress: Progress) -> None:
        """Take a snapshot if this is one of the steps, and call the next callback."""
        steps = [max(1, round(share * (progress.total or 1))) for share in SHARES]
        step = str(progress.done)
        if progress.task in ("all", "alternating") and progress.done in steps and step not in self.snapshots:
            self.snapshots[step] = record_all_features(self.model, self.texts, self.tokenizer)
            write_bytes(self.path, save({LABELS: np.asarray(self.texts.labels), **self.snapshots}))
        self.on_progress(progress)
