"""Run a model with torch, one layer at a time, on batches that shrink and join."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from exitpoll.data.batching import Tokens, lengths_of, mask_of, padded
from exitpoll.engine.runtime import LoadedModel
from exitpoll.models.device import choose_device
from exitpoll.models.encoders import Context
from exitpoll.models.fingerprint import fingerprint_of, runtime_name
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import encode, load_tokenizer, padding_of, readable_length


@dataclass(frozen=True)
class TorchState:
    """The rows of a batch between two layers."""

    hidden: Tensor  # (texts, tokens, width)
    lengths: NDArray  # (texts,) tokens without padding, which is on the right
    mask: Tensor | None  # (texts, tokens); None where nothing is padded
    context: Context  # the other inputs of every layer
    input_ids: Tensor | None = None  # (texts, tokens) before layer 1, where a head reads them


class TorchRuntime:
    """An early-exit model as a runtime."""

    exits_by_itself = False

    def __init__(self, model: EarlyExitModel, tokenizer: PreTrainedTokenizerBase, threads: int | None = None) -> None:
        """Make a runtime of a model.

        Args:
            model: The model; it is put into evaluation mode.
            tokenizer: Its tokenizer, which knows the padding value of every column of tokens.
            threads: How many threads to use; as many as the rest of the process by default.
        """
        self.model, self._tokenizer, self._threads = model.eval(), tokenizer, threads
        self.padding = padding_of(tokenizer)
        config = model.config
        self.name = runtime_name(model.dtype)
        self.packages: Sequence[str] = ("torch", "transformers")
        self.exit_layers: Sequence[int] = tuple(config.exit_layers)
        self.classes, self.problem_type = config.num_labels, config.problem_type
        self.shares_layers = model.family.shares_layers(config.encoder)

    @cached_property
    def fingerprint(self) -> str:
        """The hash of weights, exits and tokenizer."""
        return fingerprint_of(self.model, self._tokenizer)

    @property
    def threads(self) -> int:
        """The number of threads that it uses."""
        return torch.get_num_threads() if self._threads is None else self._threads

    @property
    def device(self) -> str:
        """The device that it runs on."""
        return str(self.model.device)

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Run a block in inference mode, with the number of threads of this runtime."""
        with _threads.limited_to(self._threads), torch.inference_mode():
            yield

    def embed(self, tokens: Tokens) -> TorchState:
        """Pad texts to the longest and embed them."""
        lengths = lengths_of(tokens)
        longest, device = int(lengths.max()), self.model.device
        with self.inference():
            columns = {
                name: torch.from_numpy(padded(column, longest, self.padding[name])).to(device)
                for name, column in tokens.items()
            }
            state = self._state(self.model.family.embed(self.model.encoder, columns), lengths)
        return replace(state, input_ids=columns["input_ids"]) if self.model.has_exit_zero else state

    def advance(self, state: TorchState, layers: Sequence[int]) -> TorchState:
        """Run some layers, counted from 1, one after another."""
        if not layers:
            return state
        hidden, run, encoder = state.hidden, self.model.family.layer, self.model.encoder
        with self.inference():
            for layer in layers:
                hidden = run(encoder, hidden, state.context, layer - 1)
        return TorchState(hidden, state.lengths, state.mask, state.context)

    def logits_at(self, state: TorchState, exit_number: int, rows: NDArray | None = None) -> NDArray:
        """Compute the logits of an exit for all rows, or some: (texts, classes)."""
        with self.inference():
            read = self.model.read(self.exit_layers[exit_number], _rows(state.hidden, rows))
            mask, ids = (None if part is None else _rows(part, rows) for part in (state.mask, state.input_ids))
            return self.model.logits_at(exit_number, read, mask, ids).float().cpu().numpy()

    def gather(self, parts: Sequence[tuple[TorchState, NDArray | None]]) -> TorchState:
        """Join rows of several states (None for all rows), padded to the longest of them."""
        lengths = np.concatenate([state.lengths if rows is None else state.lengths[rows] for state, rows in parts])
        longest = int(lengths.max())
        with self.inference():
            pieces = [_rows(state.hidden, rows)[:, :longest] for state, rows in parts]
            if len(pieces) > 1:
                pieces = [functional.pad(piece, (0, 0, 0, longest - piece.shape[1])) for piece in pieces]
            return self._state(torch.cat(pieces) if len(pieces) > 1 else pieces[0], lengths)

    def _state(self, hidden: Tensor, lengths: NDArray) -> TorchState:
        """Compute mask and context, once for all layers that these rows run through together."""
        mask = None
        if lengths.min() < hidden.shape[1]:
            mask = torch.from_numpy(mask_of(lengths, hidden.shape[1])).to(hidden.device)
        return TorchState(hidden, lengths, mask, self.model.family.context(self.model.encoder, hidden, mask))


def _rows(tensor: Tensor, rows: NDArray | None) -> Tensor:
    """Pick some rows, or all."""
    return tensor if rows is None else tensor[torch.from_numpy(rows).to(tensor.device)]


class _Threads:
    """The number of torch's threads inside some blocks of code; the rest of the process keeps its own.

    torch has one number for every thread of Python, and one that new threads of Python start with. Both are restored to
    what they were before the first of the blocks that run at the same time.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocks = 0  # that are running, in any thread of Python
        self._outside = 1  # the number outside them

    @contextmanager
    def limited_to(self, threads: int | None) -> Iterator[None]:
        """Run a block with so many threads; blocks must not be nested."""
        if threads is None:
            yield
            return
        with self._lock:
            if not self._blocks:
                self._outside = torch.get_num_threads()
            self._blocks += 1
            _set_threads(threads)
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                _set_threads(self._outside)


def _set_threads(threads: int) -> None:
    """Change the number of torch's threads, if it is another."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


_threads = _Threads()


def load_trained(folder: str | Path, threads: int | None = None, device: str = "auto") -> LoadedModel:
    """Load a trained folder, or a trained model on the hub.

    Args:
        folder: Its path or name.
        threads: How many threads to use; as many as the rest of the process by default.
        device: The device to run on.

    Returns:
        The model.
    """
    chosen = choose_device(device)
    model = EarlyExitModel.from_pretrained(str(folder))
    return loaded_model(model.to(chosen), load_tokenizer(folder), threads)


def loaded_model(model: EarlyExitModel, tokenizer: PreTrainedTokenizerBase, threads: int | None = None) -> LoadedModel:
    """Make a model in memory ready to read texts.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        threads: How many threads to use; as many as the rest of the process by default.

    Returns:
        The same as `load_model` returns for a folder.
    """
    config = model.config
    return LoadedModel(
        TorchRuntime(model, tokenizer, threads),
        partial(encode, tokenizer=tokenizer, max_length=readable_length(config.encoder, config.max_length)),
        [config.id2label[number] for number in range(config.num_labels)],
    )
