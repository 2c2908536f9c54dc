"""Turn an export into int8: weights of eight bits, and activations by ranges that are measured once.

ONNX Runtime's own dynamic quantization scales every tensor by what is in it, so what a text is answered would depend on
which others are in its batch. Here the ranges are measured on some texts and then fixed: a text is answered the same in
any company, and no time is spent on looking for the range. Weights have a scale for each column, and seven of their
eight bits are used, for the sums of processors without VNNI would overflow otherwise.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import batches, lengths_of, pick
from exitpoll.data.progress import OnProgress, Progress, ignore
from exitpoll.data.splits import Texts
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.onnx_runtime import OnnxRuntime, load_exported
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError
from exitpoll.models.folder import TOKENIZER

Graph = Any  # an onnx.ModelProto
Node = Any  # an onnx.NodeProto

TEXTS = 512  # on which ranges are measured, at most
BATCH = 16


def quantize(source: Path, folder: Path, texts: Texts, *, on_progress: OnProgress = ignore) -> LoadedModel:
    """Write an int8 export of a float32 export.

    Args:
        source: The folder of the float32 export.
        folder: The folder to write to, which exists.
        texts: Texts like those to come; the ranges of activations are measured on up to 512 of them.
        on_progress: Called after every batch of texts.

    Returns:
        The export, loaded.
    """
    if not len(texts):
        raise InputError("there are no texts to measure the ranges of activations on")
    manifest = Manifest.load(source)
    loaded = load_exported(source)
    assert isinstance(loaded.runtime, OnnxRuntime)
    stages = {name: _Measured(source / name) for name in {*manifest.layers, *manifest.heads}}
    chosen = texts.select(np.linspace(0, len(texts) - 1, min(TEXTS, len(texts))).astype(int))
    tokens, done = loaded.tokenize(chosen), 0
    for rows in batches(lengths_of(tokens), BATCH):
        state = loaded.runtime.embed(pick(tokens, rows))
        for layer, name in enumerate(manifest.layers, start=1):
            stages[name].see({"hidden": state.hidden, **state.context})
            state = loaded.runtime.advance(state, [layer])
            for number, head in enumerate(manifest.heads):
                if manifest.exit_layers[number] == layer:
                    stages[head].see({"hidden": state.hidden, "mask": state.mask})
        done += len(rows)
        on_progress(Progress("measuring ranges", done, len(chosen)))
    for name, stage in stages.items():
        (folder / name).write_bytes(stage.frozen().SerializeToString())
    for name in (TOKENIZER, manifest.embedding, manifest.context):
        shutil.copy(source / name, folder / name)
    replace(manifest, precision="int8").save(folder)
    return load_exported(folder)


class _Measured:
    """A graph with int8 weights that looks for the ranges of its activations."""

    def __init__(self, path: Path) -> None:
        """Quantize the weights of a float32 graph."""
        from onnx import TensorProto, helper
        from onnxruntime import InferenceSession

        self.graph = with_int8_weights(path)
        self.scaled = [node for node in self.graph.graph.node if node.op_type == "DynamicQuantizeLinear"]
        self.ranges = {node.input[0]: (0.0, 0.0) for node in self.scaled}  # lowest and highest value seen
        looking = type(self.graph)()
        looking.CopyFrom(self.graph)
        del looking.graph.output[:]
        for node in self.scaled:
            looking.graph.output.append(helper.make_tensor_value_info(node.output[1], TensorProto.FLOAT, []))
            looking.graph.output.append(helper.make_tensor_value_info(node.output[2], TensorProto.UINT8, []))
        self.session = InferenceSession(looking.SerializeToString(), providers=["CPUExecutionProvider"])
        self.inputs = [each.name for each in self.session.get_inputs()]

    def see(self, given: dict[str, NDArray]) -> None:
        """Widen the ranges to what is in a batch."""
        found = self.session.run(None, {name: given[name] for name in self.inputs})
        for name, scale, zero in zip(self.ranges, found[::2], found[1::2], strict=True):
            low, high = self.ranges[name]
            self.ranges[name] = min(low, -float(zero) * float(scale)), max(high, (255.0 - float(zero)) * float(scale))

    def frozen(self) -> Graph:
        """Give the graph with the ranges fixed, and with each product, its scales and its cast as one node."""
        from onnx import helper, numpy_helper

        graph = self.graph.graph
        for node in self.scaled:
            low, high = self.ranges[node.input[0]]
            scale = np.float32(max(high - low, 1e-8) / 255)
            zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
            graph.initializer.append(numpy_helper.from_array(np.array(scale), node.output[1]))
            graph.initializer.append(numpy_helper.from_array(np.array(zero), node.output[2]))
            node.op_type = "QuantizeLinear"
            node.input.extend(node.output[1:])
            del node.output[1:]
        for product in [node for node in graph.node if node.op_type == "MatMulInteger"]:
            _fuse(graph, product)
        self.graph.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        return self.graph


def with_int8_weights(path: Path) -> Graph:
    """Let ONNX Runtime fold constants, then quantize the weights of all products.

    Args:
        path: A graph in float32.

    Returns:
        A graph that scales activations by what is in each tensor.
    """
    import onnx
    from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as scratch:
        folded, quantized = f"{scratch}/folded.onnx", f"{scratch}/quantized.onnx"
        options = SessionOptions()
        options.log_severity_level = 3  # errors
        options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = folded
        InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        graph = onnx.load(folded)
        del graph.graph.value_info[:]  # shapes that the quantizer would take for those after its own changes
        logging.getLogger().addFilter(_is_worth_saying)
        try:
            quantize_dynamic(
                graph,
                quantized,
                op_types_to_quantize=["MatMul"],
                weight_type=QuantType.QInt8,
                per_channel=True,
                reduce_range=True,
            )
        finally:
            logging.getLogger().removeFilter(_is_worth_saying)
        return onnx.load(quantized)


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Whether a message is more than the quantizer's advice on how to prepare a model."""
    return record.levelno >= logging.ERROR


def _fuse(graph: Any, product: Node) -> None:
    """Make one node of an integer product, its cast to floats, its scales and its bias."""
    from onnx import helper

    cast = _user(graph, product.output[0])
    scaled = _user(graph, cast.output[0])
    scales = next(node for node in graph.node if set(node.output) & set(scaled.input) - set(cast.output))
    parts, bias = [product, cast, scales, scaled], []
    last = _user(graph, scaled.output[0])
    if last is not None and last.op_type == "Add":
        weights = {tensor.name for tensor in graph.initializer if len(tensor.dims) == 1}
        bias = [name for name in last.input if name in weights]
        parts += [last] * len(bias)
    left, right, left_zero, right_zero = product.input
    fused = helper.make_node(
        "MatMulIntegerToFloat",
        [left, right, *scales.input, left_zero, right_zero, *bias],
        [parts[-1].output[0]],
        name=product.name,
        domain="com.microsoft",
    )
    graph.node.insert(list(graph.node).index(parts[-1]), fused)
    for node in parts:
        graph.node.remove(node)


def _user(graph: Any, name: str) -> Node:
    """Find the node that takes a tensor; None if it is an output."""
    return next((node for node in graph.node if name in node.input), None)
