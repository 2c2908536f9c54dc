"""Run an export of separate graphs with ONNX Runtime, one layer at a time.

Models whose layers share their weights are exported so: one graph is all their layers, and texts at different depths
run through it in one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Tokens, lengths_of, mask_of, padded_columns
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.onnx_session import Graph, session_options, usable_cores
from exitpoll.errors import InputError

if TYPE_CHECKING:
    from onnxruntime import SessionOptions


IDS = "input_ids"  # among the inputs of a head before the first layer


@dataclass(frozen=True)
class PartsState:
    """The rows of a batch between two layers."""

    hidden: NDArray  # (texts, tokens, width)
    lengths: NDArray  # (texts,) tokens without padding, which is on the right
    context: Mapping[str, NDArray]  # the other inputs of layers and heads, by name; the mask is one of them


class OnnxParts:
    """The graphs of an export as a runtime."""

    exits_by_itself = False

    def __init__(self, folder: Path, manifest: Manifest, threads: int | None) -> None:
        """Load the graphs.

        Args:
            folder: The folder of the export.
            manifest: How its files go together.
            threads: How many threads to use; as many as there are cores by default.
        """
        self.threads, self.device = threads or usable_cores(), "cpu"
        self.name, self.fingerprint, self.padding = manifest.runtime, manifest.fingerprint, manifest.padding
        self.packages: Sequence[str] = ("onnxruntime",)
        self.exit_layers: Sequence[int] = tuple(manifest.exit_layers)
        self.classes, self.problem_type = len(manifest.label_names), manifest.problem_type
        self.shares_layers = manifest.shares_layers
        small = session_options(1)  # small graphs take less time than waking up threads
        large = session_options(self.threads, only=len(set(manifest.layers)) == 1)

        @cache
        def load(name: str, output: str, options: SessionOptions) -> Graph:
            return Graph(folder / name, output, options)

        self._embedding = load(manifest.embedding, "hidden", small)
        self._context = load(manifest.context, "context_0", small)
        self._layers = [load(name, "hidden_out", large) for name in manifest.layers]
        self._heads = [load(name, "logits", small) for name in manifest.heads]
        if any(head.shapes["logits"][-1] != self.classes for head in self._heads):
            raise InputError(f"the heads of '{folder}' do not have {self.classes} classes; export the model again")

    def embed(self, tokens: Tokens) -> PartsState:
        """Pad texts to the longest and embed them."""
        columns = padded_columns(tokens, self.padding)
        state = self._state(self._embedding(columns)[0], lengths_of(tokens), columns["attention_mask"])
        return replace(state, context={IDS: columns[IDS], **state.context}) if 0 in self.exit_layers else state

    def advance(self, state: PartsState, layers: Sequence[int]) -> PartsState:
        """Run some layers, counted from 1, one after another."""
        hidden = state.hidden
        for layer in layers:
            [hidden] = self._layers[layer - 1]({"hidden": hidden, **state.context})
        return PartsState(hidden, state.lengths, state.context)

    def logits_at(self, state: PartsState, exit_number: int, rows: NDArray | None = None) -> NDArray:
        """Compute the logits of an exit for all rows, or some: (texts, classes)."""
        head = self._heads[exit_number]
        tensors = {"hidden": state.hidden, **state.context}
        if rows is not None:
            tensors |= {name: tensors[name][rows] for name in head.inputs}  # all of them have a row for every text
        return head(tensors)[0]

    def gather(self, parts: Sequence[tuple[PartsState, NDArray | None]]) -> PartsState:
        """Join rows of several states (None for all rows), padded to the longest of them."""
        lengths = np.concatenate([state.lengths if rows is None else state.lengths[rows] for state, rows in parts])
        longest = int(lengths.max())
        hidden = join_hidden([(state.hidden, rows) for state, rows in parts], len(lengths), longest)
        return self._state(hidden, lengths, mask_of(lengths, longest))

    def _state(self, hidden: NDArray, lengths: NDArray, mask: NDArray) -> PartsState:
        """Compute the context, once for all layers that these rows run through together."""
        context = dict(zip(self._context.outputs, self._context({"mask": mask}), strict=True))
        return PartsState(hidden, lengths, {"mask": mask, **context})


def join_hidden(parts: Sequence[tuple[NDArray, NDArray | None]], texts: int, longest: int) -> NDArray:
    """Join rows of hidden states, padded to one length.

    Args:
        parts: Hidden states, (texts, tokens, width), with the rows to take; None for all.
        texts: How many rows there are in all.
        longest: The number of tokens to pad to, or to cut padding to.

    Returns:
        Hidden states, (texts, longest, width).
    """
    hidden = np.zeros((texts, longest, parts[0][0].shape[2]), dtype=np.float32)
    start = 0
    for states, rows in parts:
        piece = states[:, :longest] if rows is None else states[rows, :longest]
        hidden[start : start + len(piece), : piece.shape[1]] = piece
        start += len(piece)
    return hidden
