"""Run an exported model with ONNX Runtime, one layer at a time; needs onnxruntime, tokenizers and NumPy only."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Tokens, lengths_of, mask_of, padded_columns
from exitpoll.data.splits import Texts
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError, MissingExtraError
from exitpoll.models.folder import TOKENIZER

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # ONNX Runtime 1.29 and later would report their use

CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # microseconds of CPU time in a period, and the period

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions


@dataclass(frozen=True)
class OnnxState:
    """The rows of a batch between two layers."""

    hidden: NDArray  # (texts, tokens, width)
    lengths: NDArray  # (texts,) tokens without padding, which is on the right
    mask: NDArray  # (texts, tokens)
    context: Mapping[str, NDArray]  # the other inputs of every layer, by name


class OnnxRuntime:
    """The graphs of an export as a runtime."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int | None) -> None:
        """Load the graphs.

        Args:
            folder: The folder of the export.
            manifest: How its files go together.
            threads: How many threads to use; as many as there are cores by default.
        """
        self.threads, self.device = threads or _cores(), "cpu"
        self.name, self.fingerprint, self.padding = manifest.runtime, manifest.fingerprint, manifest.padding
        self.packages: Sequence[str] = ("onnxruntime",)
        self.exit_layers: Sequence[int] = tuple(manifest.exit_layers)
        self.classes, self.problem_type = len(manifest.label_names), manifest.problem_type
        places = list(zip(manifest.layers, manifest.branches, strict=True))
        self.shares_layers = len(places) > 1 and len(set(places)) == 1
        small = _session_options(1)  # small graphs take less time than waking up threads
        large = _session_options(self.threads, only=len(set(manifest.layers)) == 1)

        @cache
        def load(name: str, output: str, options: SessionOptions) -> _Graph:
            return _Graph(folder / name, output, options)

        self._embedding = load(manifest.embedding, "hidden", small)
        self._context = load(manifest.context, "context_0", small)
        self._layers = [(load(name, "hidden_out", large), np.array(branch)) for name, branch in places]
        self._heads = [load(name, "logits", small) for name in manifest.heads]
        if any(head.width not in (self.classes, None) for head in self._heads):
            raise InputError(f"the heads of '{folder}' do not have {self.classes} classes; export the model again")

    def embed(self, tokens: Tokens) -> OnnxState:
        """Pad texts to the longest and embed them."""
        columns = padded_columns(tokens, self.padding)
        return self._state(self._embedding(columns)[0], lengths_of(tokens), columns["attention_mask"])

    def advance(self, state: OnnxState, layers: Sequence[int]) -> OnnxState:
        """Run some layers, counted from 1, one after another."""
        hidden = state.hidden
        for layer in layers:
            graph, branch = self._layers[layer - 1]
            [hidden] = graph({"hidden": hidden, "branch": branch, **state.context})
        return OnnxState(hidden, state.lengths, state.mask, state.context)

    def logits_at(self, state: OnnxState, exit_number: int, rows: NDArray | None = None) -> NDArray:
        """Compute the logits of an exit for all rows, or some: (texts, classes)."""
        hidden, mask = (state.hidden, state.mask) if rows is None else (state.hidden[rows], state.mask[rows])
        return self._heads[exit_number]({"hidden": hidden, "mask": mask})[0]

    def gather(self, parts: Sequence[tuple[OnnxState, NDArray | None]]) -> OnnxState:
        """Join rows of several states (None for all rows), padded to the longest of them."""
        lengths = np.concatenate([state.lengths if rows is None else state.lengths[rows] for state, rows in parts])
        longest = int(lengths.max())
        hidden = np.zeros((len(lengths), longest, parts[0][0].hidden.shape[2]), dtype=np.float32)
        start = 0
        for state, rows in parts:
            piece = state.hidden[:, :longest] if rows is None else state.hidden[rows, :longest]
            hidden[start : start + len(piece), : piece.shape[1]] = piece
            start += len(piece)
        return self._state(hidden, lengths, mask_of(lengths, longest))

    def _state(self, hidden: NDArray, lengths: NDArray, mask: NDArray) -> OnnxState:
        """Compute the context, once for all layers that these rows run through together."""
        context = self._context({"hidden": hidden, "mask": mask})
        return OnnxState(hidden, lengths, mask, dict(zip(self._context.outputs, context, strict=True)))


class _Graph:
    """One ONNX graph."""

    def __init__(self, path: Path, output: str, options: SessionOptions) -> None:
        """Load the graph, and check the name of its first output."""
        from onnxruntime import InferenceSession

        if not path.is_file():
            raise InputError(f"'{path}' is missing; export the model again")
        try:
            session: InferenceSession = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime has a class of its own for every way in which a file can be broken
            raise InputError(f"'{path}' cannot be loaded: {error}; export the model again") from error
        self._run: Callable[[None, Mapping[str, NDArray]], list[NDArray]] = session.run
        self._inputs = [tensor.name for tensor in session.get_inputs()]
        self.outputs = [tensor.name for tensor in session.get_outputs()]
        if self.outputs[0] != output:
            raise InputError(f"'{path}' computes {self.outputs[0]}, not {output}; export the model again")
        last = session.get_outputs()[0].shape[-1]
        self.width = last if isinstance(last, int) else None  # None where it is dynamic

    def __call__(self, tensors: Mapping[str, NDArray]) -> list[NDArray]:
        """Run the graph on those of the tensors that are inputs of it."""
        return self._run(None, {name: tensors[name] for name in self._inputs})


def _cores() -> int:
    """Return the number of cores that this process may use, which a container may limit by time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = map(int, CPU_LIMIT.read_text(encoding="utf-8").split())
    except (OSError, ValueError):  # there is no limit
        return cores
    return max(1, min(cores, math.ceil(quota / max(1, period))))


def _session_options(threads: int, *, only: bool = False) -> SessionOptions:
    """Return the options of a graph; unless it is the only one with threads, these must not spin when it is done.

    By default they spin for work while those of the next graph need the cores, which is up to ten times slower.
    """
    try:
        from onnxruntime import SessionOptions
    except ImportError as error:
        raise MissingExtraError("running an exported model", "onnx") from error
    options = SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False  # planning memory for every new length costs more than it saves
    if not only:
        options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def load_exported(folder: Path, threads: int | None = None, *, verify: bool = True) -> LoadedModel:
    """Load an export.

    Args:
        folder: Its folder.
        threads: How many threads to use; as many as there are cores by default.
        verify: Whether to check that its files are those that were exported.

    Returns:
        The model.
    """
    manifest = Manifest.load(folder)
    with manifest.checking_files(folder) if verify else nullcontext():
        runtime = OnnxRuntime(folder, manifest, threads)
        return LoadedModel(runtime, _tokenize_with(folder, manifest), manifest.label_names)


def _tokenize_with(folder: Path, manifest: Manifest) -> Callable[[Texts], Tokens]:
    """Load a tokenizer that gives the same token ids as transformers."""
    from tokenizers import Tokenizer

    path = folder / TOKENIZER
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises no other class
        raise InputError(f"'{path}' cannot be read: {error}; export the model again") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(manifest.max_length, direction=manifest.truncation_side)
    with_types = "token_type_ids" in manifest.padding

    def tokenize(texts: Texts) -> Tokens:
        encoded = tokenizer.encode_batch_fast(list(texts))
        tokens = {"input_ids": [encoding.ids for encoding in encoded]}
        return {**tokens, "token_type_ids": [encoding.type_ids for encoding in encoded]} if with_types else tokens

    return tokenize
