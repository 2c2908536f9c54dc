"""The heads: what answers at an exit."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel


class MLPHead(nn.Module):
    """A classifier with one hidden layer: the paper's internal classifier."""

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        """Make the two maps.

        Args:
            width: Width of what is read, and of the hidden layer.
            classes: How many logits to give.
            dropout: Dropout before the last map.
        """
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, classes)

    def forward(self, pooled: Tensor) -> Tensor:
        """Map (texts, width) to (texts, classes)."""
        # One text through small maps: what modules add to calling them would take as long as the maps themselves.
        hidden = torch.tanh(functional.linear(pooled, self.hidden.weight, self.hidden.bias))
        if self.training:
            hidden = self.dropout(hidden)
        return functional.linear(hidden, self.out.weight, self.out.bias)


class LinearHead(nn.Module):
    """A linear classifier."""

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        """Make the map.

        Args:
            width: Width of what is read.
            classes: How many logits to give.
            dropout: Dropout before the map.
        """
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, classes)

    def forward(self, pooled: Tensor) -> Tensor:
        """Map (texts, width) to (texts, classes)."""
        return self.out(self.dropout(pooled))


class NativeHead(nn.Module):
    """Whatever transformers' own classifier of a family puts on top of its encoder, weights and all."""

    def __init__(self, classifier: PreTrainedModel) -> None:
        """Take the parts of a classifier that are not its encoder.

        Args:
            classifier: An AutoModelForSequenceClassification.
        """
        super().__init__()
        for name, part in classifier.named_children():
            if part is not classifier.base_model:
                self.add_module(name, part)


HEAD_CLASSES = {"mlp": MLPHead, "linear": LinearHead}
