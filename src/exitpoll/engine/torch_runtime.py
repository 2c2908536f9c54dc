"""Run embeddings, layers and heads with torch, one layer at a time, on batches that shrink and join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from exitpoll.data.batching import Tokens, lengths_of, mask_of, padded
from exitpoll.engine.runtime import LoadedModel
from exitpoll.models.encoders import Context
from exitpoll.models.fingerprint import fingerprint_of, runtime_name
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import encode, load_tokenizer, padding_of, readable_length


@dataclass(frozen=True)
class TorchState:
    """The rows of a batch between two layers."""

    hidden: Tensor  # (texts, tokens, width)
    lengths: NDArray  # (texts,) real tokens; padding stands on the right
    mask: Tensor | None  # (texts, tokens), None where nothing is padded
    context: Context  # what every layer needs beside the hidden states


class TorchRuntime:
    """An early-exit model as a runtime."""

    def __init__(self, model: EarlyExitModel, padding: Mapping[str, int]) -> None:
        """Take a model.

        Args:
            model: The model; it is put into evaluation mode.
            padding: What to pad each kind of tokens with.
        """
        self.model, self.padding = model.eval(), padding
        config = model.config
        self.name = runtime_name(model.dtype)
        self.packages: Sequence[str] = ("torch", "transformers")
        self.exit_layers: Sequence[int] = tuple(config.exit_layers)
        self.classes, self.problem_type = config.num_labels, config.problem_type
        self.shares_layers = model.family.shares_layers(config.encoder)

    @cached_property
    def fingerprint(self) -> str:
        """A fingerprint of the weights."""
        return fingerprint_of(self.model)

    @property
    def threads(self) -> int:
        """How many threads torch uses."""
        return torch.get_num_threads()

    @property
    def device(self) -> str:
        """Where the model runs."""
        return str(self.model.device)

    @torch.inference_mode()
    def embed(self, tokens: Tokens) -> TorchState:
        """Pad texts to the longest and embed them."""
        lengths = lengths_of(tokens)
        longest, device = int(lengths.max()), self.model.device
        given = {
            name: torch.from_numpy(padded(column, longest, self.padding[name])).to(device)
            for name, column in tokens.items()
        }
        return self._state(self.model.family.embed(self.model.encoder, given), lengths)

    @torch.inference_mode()
    def advance(self, state: TorchState, layers: Sequence[int]) -> TorchState:
        """Run some layers, counted from 1, one after another."""
        hidden, run, encoder = state.hidden, self.model.family.layer, self.model.encoder
        for layer in layers:
            hidden = run(encoder, hidden, state.context, layer - 1)
        return TorchState(hidden, state.lengths, state.mask, state.context)

    @torch.inference_mode()
    def logits_at(self, state: TorchState, exit_number: int, rows: NDArray | None = None) -> NDArray:
        """Ask the head of an exit about all rows, or some."""
        read = self.model.family.read(self.model.encoder, _rows(state.hidden, rows))
        mask = None if state.mask is None else _rows(state.mask, rows)
        return self.model.logits_at(exit_number, read, mask).float().cpu().numpy()

    @torch.inference_mode()
    def gather(self, parts: Sequence[tuple[TorchState, NDArray | None]]) -> TorchState:
        """Put rows of several states into one, no longer than the longest of them."""
        lengths = [state.lengths if rows is None else state.lengths[rows] for state, rows in parts]
        longest = int(max(each.max() for each in lengths))
        pieces = [_rows(state.hidden, rows)[:, :longest] for state, rows in parts]
        if len(pieces) > 1:
            pieces = [functional.pad(piece, (0, 0, 0, longest - piece.shape[1])) for piece in pieces]
        return self._state(torch.cat(pieces) if len(pieces) > 1 else pieces[0], np.concatenate(lengths))

    def _state(self, hidden: Tensor, lengths: NDArray) -> TorchState:
        """Work out mask and context, once for all layers that these rows go through together."""
        mask = None
        if lengths.min() < hidden.shape[1]:
            mask = torch.from_numpy(mask_of(lengths, hidden.shape[1])).to(hidden.device)
        return TorchState(hidden, lengths, mask, self.model.family.context(self.model.encoder, hidden, mask))


def _rows(tensor: Tensor, rows: NDArray | None) -> Tensor:
    """Pick some rows, or all."""
    return tensor if rows is None else tensor[torch.from_numpy(rows).to(tensor.device)]


def load_trained(
    folder: str | Path, threads: int | None, device: str, training: Mapping[str, Any] | None = None
) -> LoadedModel:
    """Load a trained folder, or a trained model on the hub.

    Args:
        folder: Its path or name.
        threads: How many threads torch is to use.
        device: Where it is to run.
        training: The summary of its training.

    Returns:
        The model.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    model = EarlyExitModel.from_pretrained(str(folder))
    return loaded_model(model.to(device), load_tokenizer(folder), training)


def loaded_model(
    model: EarlyExitModel, tokenizer: PreTrainedTokenizerBase, training: Mapping[str, Any] | None = None
) -> LoadedModel:
    """Make a model in memory ready to read texts.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        training: The summary of its training.

    Returns:
        What `load_model` gives for a folder.
    """
    config = model.config
    return LoadedModel(
        TorchRuntime(model, padding_of(tokenizer)),
        partial(encode, tokenizer=tokenizer, max_length=readable_length(config.encoder, config.max_length)),
        [config.id2label[number] for number in range(config.num_labels)],
        training or {},
    )
