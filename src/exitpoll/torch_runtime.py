"""Run embeddings, layers and heads with torch, one layer at a time, on batches that shrink and join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from exitpoll.encoders import Context
from exitpoll.flow import Tokens
from exitpoll.model import EarlyExitModel


@dataclass(frozen=True)
class TorchState:
    """The rows of a batch between two layers."""

    hidden: Tensor  # (texts, tokens, width)
    lengths: NDArray  # (texts,) real tokens; padding stands on the right
    mask: Tensor | None  # (texts, tokens), None where nothing is padded
    context: Context  # what every layer needs beside the hidden states


class TorchRuntime:
    """An early-exit model as a runtime; it holds no state of its own, so threads may share it."""

    def __init__(self, model: EarlyExitModel, padding: dict[str, int]) -> None:
        """Take a model.

        Args:
            model: The model; it is put into evaluation mode.
            padding: What to pad each kind of tokens with.
        """
        self.model, self.padding = model.eval(), padding
        config = model.config
        self.layers: Sequence[int] = tuple(config.exits)
        self.classes, self.problem_type = config.num_labels, config.problem_type
        self.shares_layers = getattr(config.encoder, "num_hidden_groups", 0) == 1

    @torch.inference_mode()
    def embed(self, tokens: Tokens) -> TorchState:
        """Pad texts to the longest and embed them."""
        lengths = np.array([len(ids) for ids in tokens["input_ids"]])
        longest = int(lengths.max())
        padded = {
            name: torch.tensor([[*row, *[self.padding[name]] * (longest - len(row))] for row in rows])
            for name, rows in tokens.items()
        }
        on_device = {name: ids.to(self.model.device) for name, ids in padded.items()}
        return self._state(self.model.family.embed(self.model.encoder, on_device), lengths)

    @torch.inference_mode()
    def advance(self, state: TorchState, layer: int) -> TorchState:
        """Run a layer, counted from 1."""
        hidden = self.model.family.layer(self.model.encoder, state.hidden, state.context, layer - 1)
        return TorchState(hidden, state.lengths, state.mask, state.context)

    @torch.inference_mode()
    def answer(self, state: TorchState, exit_number: int) -> NDArray:
        """Ask the head of an exit."""
        read = self.model.family.read(self.model.encoder, state.hidden)
        return self.model.answer(exit_number, read, state.mask).float().cpu().numpy()

    @torch.inference_mode()
    def take(self, state: TorchState, rows: NDArray) -> TorchState:
        """Keep some rows, trimmed to the longest of them."""
        lengths = state.lengths[rows]
        kept = torch.from_numpy(rows).to(state.hidden.device)
        return self._state(state.hidden[kept, : int(lengths.max())], lengths)

    @torch.inference_mode()
    def join(self, states: Sequence[TorchState]) -> TorchState:
        """Put several states into one, padded to the longest."""
        longest = max(state.hidden.shape[1] for state in states)
        parts = [functional.pad(state.hidden, (0, 0, 0, longest - state.hidden.shape[1])) for state in states]
        return self._state(torch.cat(parts), np.concatenate([state.lengths for state in states]))

    def tokens_in(self, state: TorchState) -> int:
        """Count the tokens of the longest row."""
        return state.hidden.shape[1]

    def _state(self, hidden: Tensor, lengths: NDArray) -> TorchState:
        """Work out mask and context, once for all layers that these rows go through together."""
        mask = None
        if lengths.min() < hidden.shape[1]:
            real = np.arange(hidden.shape[1]) < lengths[:, None]
            mask = torch.from_numpy(real.astype(np.int64)).to(hidden.device)
        return TorchState(hidden, lengths, mask, self.model.family.context(self.model.encoder, hidden, mask))
