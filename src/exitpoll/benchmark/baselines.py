"""What a user would run instead of the engine, to be timed beside it: the same texts, answered in other ways.

All of them tokenise all texts at once and take them in batches of like length, as the engine does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Text, Tokens, batches, lengths_of, mask_of, padded, pick
from exitpoll.errors import InputError
from exitpoll.decide.policy import Policy
from exitpoll.engine.runtime import Opened

Way = Callable[[Sequence[Text], int], Any]  # answers texts, at most so many in a call; gives logits, or predictions


def plain_transformers(opened: Opened, *, compiled: bool = False) -> Way:
    """Run the encoder by its own forward, as transformers does, and ask the last head.

    Args:
        opened: A model that torch runs.
        compiled: Whether to compile the encoder first.

    Returns:
        The way.
    """
    import torch

    from exitpoll.engine.torch_runtime import TorchRuntime

    runtime = opened.runtime
    if not isinstance(runtime, TorchRuntime):
        raise InputError("plain transformers needs a model that torch runs")
    model, last = runtime.weights, len(runtime.layers) - 1
    if model.config.encoder.num_hidden_layers != runtime.layers[-1]:
        return truncated(opened, last)  # layers above the last exit that share their weights with those below
    encoder = torch.compile(model.encoder, dynamic=True) if compiled else model.encoder

    @torch.inference_mode()
    def answer(tokens: Tokens) -> NDArray:
        columns = _columns(tokens, runtime.padding)
        given = {name: torch.from_numpy(column).to(model.device) for name, column in columns.items()}
        hidden = encoder(**given).last_hidden_state
        return model.answer(last, hidden, given["attention_mask"]).float().cpu().numpy()

    return _one_batch_after_another(opened, answer)


def full_graph(opened: Opened, *, int8: bool = False, threads: int | None = None) -> Way:
    """Run the model as one ONNX graph, as other exporters write it; in int8 by ONNX Runtime's dynamic quantisation.

    Args:
        opened: A model that torch runs.
        int8: Whether to quantise.
        threads: How many threads to use.

    Returns:
        The way.
    """
    from onnxruntime import InferenceSession, SessionOptions

    from exitpoll.export.graphs import translate_whole
    from exitpoll.export.quantize import with_int8_weights
    from exitpoll.engine.torch_runtime import TorchRuntime

    assert isinstance(opened.runtime, TorchRuntime)
    padding, names = opened.runtime.padding, list(opened.tokenise(["a"]))
    options = SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = threads or opened.runtime.threads
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "whole.onnx"
        path.write_bytes(translate_whole(opened.runtime.weights, names).SerializeToString())
        if int8:
            path.write_bytes(with_int8_weights(path).SerializeToString())
        session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    wanted = [each.name for each in session.get_inputs()]

    def answer(tokens: Tokens) -> NDArray:
        given = _columns(tokens, padding)
        return session.run(None, {name: given[name] for name in wanted})[0]

    return _one_batch_after_another(opened, answer)


def truncated(opened: Opened, exit_number: int) -> Way:
    """Run the layers below one exit for every text: a static model of that depth.

    Args:
        opened: The model.
        exit_number: The exit, counted from 0.

    Returns:
        The way.
    """
    runtime = opened.runtime
    layers = range(1, runtime.layers[exit_number] + 1)

    def answer(tokens: Tokens) -> NDArray:
        return runtime.answer(runtime.advance(runtime.embed(tokens), layers), exit_number)

    return _one_batch_after_another(opened, answer)


def whole_batch_waits(opened: Opened, policy: Policy) -> Way:
    """Take exits as published code does: a batch goes on, whole, until the last of its texts may leave.

    Args:
        opened: The model.
        policy: When to leave.

    Returns:
        The way.
    """
    runtime = opened.runtime
    levels, ends = policy.levels(len(runtime.layers)), policy.ends(runtime.layers)

    def answer(tokens: Tokens) -> NDArray:
        state, depth = runtime.embed(tokens), 0
        history = np.zeros((len(tokens["input_ids"]), len(runtime.layers), runtime.classes), dtype=np.float32)
        left = np.zeros(len(history), dtype=bool)
        for number, layer in enumerate(runtime.layers):
            state, depth = runtime.advance(state, range(depth + 1, layer + 1)), layer
            history[:, number] = runtime.answer(state, number)
            left |= policy.opinion(history[:, : number + 1]).score[:, -1] >= levels[number]
            if ends[number] or left.all():
                break
        return history[:, number]

    return _one_batch_after_another(opened, answer)


def _one_batch_after_another(opened: Opened, answer: Callable[[Tokens], NDArray]) -> Way:
    """Answer texts in batches of like length."""

    def run(texts: Sequence[Text], batch_size: int) -> NDArray:
        logits = np.zeros((len(texts), opened.runtime.classes), dtype=np.float32)
        tokens = opened.tokenise(texts)
        for rows in batches(lengths_of(tokens), batch_size):
            logits[rows] = answer(pick(tokens, rows))
        return logits

    return run


def _columns(tokens: Tokens, padding: Any) -> dict[str, NDArray]:
    """Pad a batch, mask included."""
    lengths = lengths_of(tokens)
    longest = int(lengths.max())
    columns = {name: padded(column, longest, padding[name]) for name, column in tokens.items()}
    return {**columns, "attention_mask": mask_of(lengths, longest)}
