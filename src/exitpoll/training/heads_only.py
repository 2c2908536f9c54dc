"""Heads alone, trained on features that a frozen encoder computed once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from exitpoll.errors import InputError
from exitpoll.models.config import ExitConfig
from exitpoll.models.model import EarlyExitModel, EarlyExitOutput


@dataclass(frozen=True)
class FrozenTexts:
    """Texts as a frozen encoder sees them: what the heads read, what the last head says, the labels."""

    features: NDArray  # (texts, exits - 1, width)
    last_logits: NDArray  # (texts, classes)
    labels: NDArray  # as in Texts

    def __len__(self) -> int:
        """Count the texts."""
        return len(self.features)

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Give one text."""
        return {
            "features": torch.from_numpy(np.array(self.features[row])),
            "last_logits": torch.from_numpy(self.last_logits[row]),
            "labels": torch.as_tensor(self.labels[row]),
        }

    @property
    def lengths(self) -> NDArray:
        """Every text costs the same, (texts,)."""
        return np.ones(len(self), dtype=np.int64)


def check_heads_below(config: ExitConfig) -> None:
    """Refuse a model without heads that can be trained while the last one stays as it is.

    Args:
        config: The model's configuration.
    """
    if config.shared_head and not config.native_head:
        raise InputError("a shared head cannot be trained while the last head stays as it is: use own heads")
    if config.exit_layers is not None and len(config.exit_layers) < 2:
        raise InputError(
            f"exits {config.exit_layers} leave no head to train below the last: add exits or train jointly"
        )


class HeadsOnly(nn.Module):
    """The heads below the last, as a model of their own; training it trains the heads of the whole model."""

    def __init__(self, model: EarlyExitModel) -> None:
        """Borrow a model's heads.

        Args:
            model: The whole model; it needs a last head that the others do not share.
        """
        super().__init__()
        check_heads_below(model.config)
        self.heads = model.heads if model.config.native_head else model.heads[:-1]
        self.shared = model.config.shared_head

    def forward(self, features: Tensor, last_logits: Tensor, labels: Tensor | None = None) -> EarlyExitOutput:
        """Ask the heads.

        Args:
            features: (texts, exits - 1, width)
            last_logits: (texts, classes)
            labels: Taken so that trainers see that there are some; the objective is theirs.

        Returns:
            Logits of all exits, the last one's as given.
        """
        below = [self.heads[0 if self.shared else number](read) for number, read in enumerate(features.unbind(dim=1))]
        exit_logits = torch.stack([*below, last_logits], dim=1)  # (texts, exits, classes)
        return EarlyExitOutput(logits=last_logits, exit_logits=exit_logits)
