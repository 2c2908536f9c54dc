"""Heads trained on the output of a frozen encoder, which is computed once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from exitpoll.errors import InputError
from exitpoll.models.config import ExitConfig
from exitpoll.models.model import EarlyExitModel, EarlyExitOutput


@dataclass(frozen=True)
class FrozenTexts:
    """The output of a frozen encoder for labelled texts, as a dataset for Trainer."""

    features: NDArray  # (texts, exits - 1, width) that the heads below the last read
    last_logits: NDArray  # (texts, classes)
    labels: NDArray  # as in Texts

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.features)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        """Return one text, as the arguments of `HeadsOnly`."""
        return {
            "features": torch.from_numpy(np.array(self.features[row])),
            "last_logits": torch.from_numpy(self.last_logits[row]),
            "labels": torch.as_tensor(self.labels[row]),
        }

    @property
    def lengths(self) -> NDArray:
        """Lengths by which to group the texts, all alike: (texts,)."""
        return np.ones(len(self), dtype=np.int64)


def check_heads_below(config: ExitConfig) -> None:
    """Refuse a model without heads that can be trained while the last head stays unchanged.

    Args:
        config: The model's configuration.
    """
    if config.shared_head and not config.native_head:
        raise InputError("a shared head is the last head too, which must stay unchanged: use own heads")
    if config.exit_layers is not None and len(config.exit_layers) < 2:
        raise InputError(
            f"exits {config.exit_layers} leave no head to train below the last: add exits or train jointly"
        )


class HeadsOnly(nn.Module):
    """The heads below the last as a module; its parameters are those of the model."""

    def __init__(self, model: EarlyExitModel) -> None:
        """Take the heads of a model.

        Args:
            model: The model, whose last head is not shared with the other exits.
        """
        super().__init__()
        check_heads_below(model.config)
        self.heads = model.heads if model.config.native_head else model.heads[:-1]
        self.shared = model.config.shared_head

    def forward(self, features: Tensor, last_logits: Tensor, labels: Tensor | None = None) -> EarlyExitOutput:
        """Compute the logits of the heads.

        Args:
            features: (texts, exits - 1, width)
            last_logits: (texts, classes)
            labels: Unused; Trainer looks for this argument in the signature.

        Returns:
            Logits of all exits; those of the last are `last_logits`.
        """
        below = [
            self.heads[0 if self.shared else number](vectors) for number, vectors in enumerate(features.unbind(dim=1))
        ]
        exit_logits = torch.stack([*below, last_logits], dim=1)  # (texts, exits, classes)
        return EarlyExitOutput(logits=last_logits, exit_logits=exit_logits)
