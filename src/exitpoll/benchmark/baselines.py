"""Baselines for the engine: what a user would run instead on the same texts.

Like the engine, all of them tokenize all texts at once and batch those of similar length.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Text, Tokens, batches, lengths_of, mask_of, padded, pick
from exitpoll.data.splits import Texts
from exitpoll.decide.policy import Policy
from exitpoll.engine.exit_graph import asked_by
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError

Baseline = Callable[[Sequence[Text], int], NDArray]  # texts, batch size -> logits, (texts, classes)


def plain_transformers(loaded: LoadedModel, *, compiled: bool = False) -> Baseline:
    """Return a baseline that runs the encoder by its own forward, as transformers does, and the last head.

    Args:
        loaded: A model in torch.
        compiled: Whether to compile the encoder with torch.compile.

    Returns:
        The baseline.
    """
    import torch

    from exitpoll.engine.torch_runtime import TorchRuntime

    runtime = loaded.runtime
    if not isinstance(runtime, TorchRuntime):
        raise InputError(f"plain transformers needs a model in torch, not {runtime.name}")
    model, last = runtime.model, len(runtime.exit_layers) - 1
    if model.config.encoder.num_hidden_layers != runtime.exit_layers[-1]:
        return static_model(loaded, last)  # forward would run layers above the last exit
    encoder = torch.compile(model.encoder, dynamic=True) if compiled else model.encoder

    def compute(tokens: Tokens) -> NDArray:
        with runtime.inference():
            columns = _padded_columns(tokens, runtime.padding)
            tensors = {name: torch.from_numpy(column).to(model.device) for name, column in columns.items()}
            hidden = encoder(**tensors).last_hidden_state
            return model.logits_at(last, hidden, tensors["attention_mask"]).float().cpu().numpy()

    return _in_batches(loaded, compute)


def single_graph(loaded: LoadedModel, *, int8: bool = False, exit_number: int | None = None) -> Baseline:
    """Return a baseline that runs the model as one ONNX graph without exits, as other exporters write it.

    Args:
        loaded: A model in torch; the graph gets as many threads.
        int8: Whether to quantize it, by the dynamic quantization of ONNX Runtime.
        exit_number: The exit at which it ends, counted from 0: a static model; the last by default.

    Returns:
        The baseline.
    """
    from onnxruntime import InferenceSession, SessionOptions

    from exitpoll.engine.torch_runtime import TorchRuntime
    from exitpoll.export.graphs import translate_whole
    from exitpoll.export.quantize import with_int8_weights

    runtime = loaded.runtime
    if not isinstance(runtime, TorchRuntime):
        raise InputError(f"a graph without exits is made of a model in torch, not {runtime.name}")
    names = list(loaded.tokenize(Texts(["a"])))
    options = SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = runtime.threads
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.onnx"
        path.write_bytes(translate_whole(runtime.model, names, exit_number).SerializeToString())
        if int8:
            path.write_bytes(with_int8_weights(path).SerializeToString())
        session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs = [tensor.name for tensor in session.get_inputs()]

    def compute(tokens: Tokens) -> NDArray:
        columns = _padded_columns(tokens, runtime.padding)
        return session.run(None, {name: columns[name] for name in inputs})[0]

    return _in_batches(loaded, compute)


def static_model(loaded: LoadedModel, exit_number: int) -> Baseline:
    """Return a baseline that runs all texts through the layers below one exit: a static model of that depth.

    Args:
        loaded: The model.
        exit_number: The exit, counted from 0.

    Returns:
        The baseline.
    """
    runtime = loaded.runtime
    layers = range(1, runtime.exit_layers[exit_number] + 1)

    def compute(tokens: Tokens) -> NDArray:
        return runtime.logits_at(runtime.advance(runtime.embed(tokens), layers), exit_number)

    return _in_batches(loaded, compute)


def batch_level_exit(loaded: LoadedModel, policy: Policy) -> Baseline:
    """Return a baseline that exits as published code does: a whole batch, once the last of its texts may exit.

    Args:
        loaded: The model.
        policy: When to exit.

    Returns:
        The baseline.
    """
    runtime = loaded.runtime
    heads = asked_by(policy, runtime.exit_layers)
    layers = [runtime.exit_layers[number] for number in heads]
    levels, ends = policy.levels(len(layers)), policy.ends(layers)

    def compute(tokens: Tokens) -> NDArray:
        state, depth = runtime.embed(tokens), 0
        history = np.zeros((len(tokens["input_ids"]), len(layers), runtime.classes), dtype=np.float32)
        fired = np.zeros(len(history), dtype=bool)
        for number, layer in enumerate(layers):
            state, depth = runtime.advance(state, range(depth + 1, layer + 1)), layer
            history[:, number] = runtime.logits_at(state, heads[number])
            fired |= policy.opinion(history[:, : number + 1]).score[:, -1] >= levels[number]
            if ends[number] or fired.all():
                break
        return history[:, number]

    return _in_batches(loaded, compute)


def _in_batches(loaded: LoadedModel, compute: Callable[[Tokens], NDArray]) -> Baseline:
    """Return a baseline that computes logits one batch after another, of texts of similar length."""

    def run(texts: Sequence[Text], batch_size: int) -> NDArray:
        logits = np.zeros((len(texts), loaded.runtime.classes), dtype=np.float32)
        tokens = loaded.tokenize(Texts.of(texts))
        for rows in batches(lengths_of(tokens), batch_size):
            logits[rows] = compute(pick(tokens, rows))
        return logits

    return run


def _padded_columns(tokens: Tokens, padding: Mapping[str, int]) -> dict[str, NDArray]:
    """Return the columns of a batch, padded to the longest text, with the attention mask."""
    lengths = lengths_of(tokens)
    longest = int(lengths.max())
    columns = {name: padded(column, longest, padding[name]) for name, column in tokens.items()}
    return {**columns, "attention_mask": mask_of(lengths, longest)}
