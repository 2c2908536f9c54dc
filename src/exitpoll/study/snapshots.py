"""What the heads read of some texts at three moments of a training: the material of a figure."""

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

WATCHED = 128  # texts
SHARES = (0.02, 0.2, 1.0)  # of the steps


class Watch:
    """Keeps what the heads read of some texts at three moments of a training."""

    def __init__(
        self,
        model: EarlyExitModel,
        tokenizer: PreTrainedTokenizerBase,
        texts: Texts,
        path: Path,
        on_progress: OnProgress,
    ) -> None:
        """Choose the texts.

        Args:
            model: The model, which is trained in place.
            tokenizer: Its tokenizer.
            texts: The first of these are looked at.
            path: The file to keep it in.
            on_progress: Called as well.
        """
        self.model, self.tokenizer, self.path, self.on_progress = model, tokenizer, path, on_progress
        some = texts.select(np.arange(min(WATCHED, len(texts))))
        self.texts = tokenize(some, tokenizer, model.config.max_length)
        self.kept: dict[str, NDArray] = load_file(path) if path.exists() else {}  # by step

    def __call__(self, progress: Progress) -> None:
        """Look, if this is one of the moments, and pass on."""
        steps = [max(1, round(share * (progress.total or 1))) for share in SHARES]
        if progress.task in ("all", "alternating") and progress.done in steps and str(progress.done) not in self.kept:
            self.kept[str(progress.done)] = record_all_features(self.model, self.texts, self.tokenizer)
            write_bytes(self.path, save({LABELS: np.asarray(self.texts.labels), **self.kept}))
        self.on_progress(progress)
