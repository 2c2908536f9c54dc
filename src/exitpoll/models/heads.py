"""Heads: the classifiers at the exits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel


class MLPHead(nn.Module):
    """A classifier with one hidden layer: the internal classifier of the paper."""

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        """Build the two linear layers.

        Args:
            width: Width of the input and of the hidden layer.
            classes: Number of logits.
            dropout: Dropout before the last layer.
        """
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, classes)

    def forward(self, pooled: Tensor) -> Tensor:
        """Compute logits: (texts, width) -> (texts, classes)."""
        # functional.linear: for a single text, calling modules would take as long as the matrix products themselves.
        hidden = torch.tanh(functional.linear(pooled, self.hidden.weight, self.hidden.bias))
        if self.training:
            hidden = self.dropout(hidden)
        return functional.linear(hidden, self.out.weight, self.out.bias)


class LinearHead(nn.Module):
    """A linear classifier."""

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        """Build the linear layer.

        Args:
            width: Width of the input.
            classes: Number of logits.
            dropout: Dropout before the layer.
        """
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, classes)

    def forward(self, pooled: Tensor) -> Tensor:
        """Compute logits: (texts, width) -> (texts, classes)."""
        return self.out(self.dropout(pooled))


class Attention(nn.Module):
    """Pools the tokens of a text by attention with one learned query."""

    def __init__(self, width: int) -> None:
        """Begin with the mean of the tokens.

        Args:
            width: Width of the hidden states.
        """
        super().__init__()
        self.query = nn.Parameter(torch.zeros(width))

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the weighted mean: (texts, tokens, width) -> (texts, width)."""
        scores = (hidden * self.query).sum(dim=2)  # (texts, tokens); a product of matrices would be quantized in int8
        if mask is not None:
            scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        return torch.bmm(scores.softmax(dim=1).unsqueeze(1), hidden).squeeze(1)


class NativeHead(nn.Module):
    """The classification head of transformers for a family of encoders, with its weights."""

    def __init__(self, classifier: PreTrainedModel) -> None:
        """Take the parts of a classifier that are not its encoder.

        Args:
            classifier: An AutoModelForSequenceClassification.
        """
        super().__init__()
        for name, part in classifier.named_children():
            if part is not classifier.base_model:
                self.add_module(name, part)


# Functions of width, classes and dropout. A new kind of head is one row here.
HEADS: dict[str, Callable[[int, int, float], nn.Module]] = {"mlp": MLPHead, "linear": LinearHead}
