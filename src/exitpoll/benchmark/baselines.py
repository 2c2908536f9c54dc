"""What a user would run instead of the engine, to be timed beside it: the same texts, answered in other ways.

All of them tokenize all texts at once and take them in batches of like length, as the engine does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Text, Tokens, batches, lengths_of, mask_of, padded, pick
from exitpoll.data.splits import Texts
from exitpoll.decide.policy import Policy
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError

Way = Callable[[Sequence[Text], int], Any]  # answers texts, at most so many in a call; gives logits, or predictions


def plain_transformers(loaded: LoadedModel, *, compiled: bool = False) -> Way:
    """Run the encoder by its own forward, as transformers does, and ask the last head.

    Args:
        loaded: A model that torch runs.
        compiled: Whether to compile the encoder first.

    Returns:
        The way.
    """
    import torch

    from exitpoll.engine.torch_runtime import TorchRuntime

    runtime = loaded.runtime
    if not isinstance(runtime, TorchRuntime):
        raise InputError("plain transformers needs a model that torch runs")
    model, last = runtime.model, len(runtime.exit_layers) - 1
    if model.config.encoder.num_hidden_layers != runtime.exit_layers[-1]:
        return truncated(loaded, last)  # layers above the last exit that share their weights with those below
    encoder = torch.compile(model.encoder, dynamic=True) if compiled else model.encoder

    @torch.inference_mode()
    def answer(tokens: Tokens) -> NDArray:
        columns = _columns(tokens, runtime.padding)
        given = {name: torch.from_numpy(column).to(model.device) for name, column in columns.items()}
        hidden = encoder(**given).last_hidden_state
        return model.logits_at(last, hidden, given["attention_mask"]).float().cpu().numpy()

    return _one_batch_after_another(loaded, answer)


def full_graph(loaded: LoadedModel, *, int8: bool = False, threads: int | None = None) -> Way:
    """Run the model as one ONNX graph, as other exporters write it; in int8 by ONNX Runtime's dynamic quantization.

    Args:
        loaded: A model that torch runs.
        int8: Whether to quantize.
        threads: How many threads to use.

    Returns:
        The way.
    """
    from onnxruntime import InferenceSession, SessionOptions

    from exitpoll.engine.torch_runtime import TorchRuntime
    from exitpoll.export.graphs import translate_whole
    from exitpoll.export.quantize import with_int8_weights

    assert isinstance(loaded.runtime, TorchRuntime)
    padding, names = loaded.runtime.padding, list(loaded.tokenize(Texts(["a"])))
    options = SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = threads or loaded.runtime.threads
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "whole.onnx"
        path.write_bytes(translate_whole(loaded.runtime.model, names).SerializeToString())
        if int8:
            path.write_bytes(with_int8_weights(path).SerializeToString())
        session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    wanted = [each.name for each in session.get_inputs()]

    def answer(tokens: Tokens) -> NDArray:
        given = _columns(tokens, padding)
        return session.run(None, {name: given[name] for name in wanted})[0]

    return _one_batch_after_another(loaded, answer)


def truncated(loaded: LoadedModel, exit_number: int) -> Way:
    """Run the layers below one exit for every text: a static model of that depth.

    Args:
        loaded: The model.
        exit_number: The exit, counted from 0.

    Returns:
        The way.
    """
    runtime = loaded.runtime
    layers = range(1, runtime.exit_layers[exit_number] + 1)

    def answer(tokens: Tokens) -> NDArray:
        return runtime.logits_at(runtime.advance(runtime.embed(tokens), layers), exit_number)

    return _one_batch_after_another(loaded, answer)


def whole_batch_waits(loaded: LoadedModel, policy: Policy) -> Way:
    """Take exits as published code does: a batch goes on, whole, until the last of its texts may leave.

    Args:
        loaded: The model.
        policy: When to leave.

    Returns:
        The way.
    """
    runtime = loaded.runtime
    levels, ends = policy.levels(len(runtime.exit_layers)), policy.ends(runtime.exit_layers)

    def answer(tokens: Tokens) -> NDArray:
        state, depth = runtime.embed(tokens), 0
        history = np.zeros((len(tokens["input_ids"]), len(runtime.exit_layers), runtime.classes), dtype=np.float32)
        left = np.zeros(len(history), dtype=bool)
        for number, layer in enumerate(runtime.exit_layers):
            state, depth = runtime.advance(state, range(depth + 1, layer + 1)), layer
            history[:, number] = runtime.logits_at(state, number)
            left |= policy.opinion(history[:, : number + 1]).score[:, -1] >= levels[number]
            if ends[number] or left.all():
                break
        return history[:, number]

    return _one_batch_after_another(loaded, answer)


def _one_batch_after_another(loaded: LoadedModel, answer: Callable[[Tokens], NDArray]) -> Way:
    """Answer texts in batches of like length."""

    def run(texts: Sequence[Text], batch_size: int) -> NDArray:
        logits = np.zeros((len(texts), loaded.runtime.classes), dtype=np.float32)
        tokens = loaded.tokenize(Texts.of(texts))
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
