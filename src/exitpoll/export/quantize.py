"""Quantize an export to int8: weights of eight bits, and activations by ranges that are measured once.

ONNX Runtime's own dynamic quantization scales every tensor by its values, so the answer to a text would depend on the
other texts of its batch. Here the ranges are measured on some texts and then fixed: results do not depend on batch
composition, and no time is spent on finding the range. Weights have one scale per column and use seven of their eight
bits, because sums would overflow on processors without VNNI otherwise.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import batches, lengths_of, pick
from exitpoll.data.progress import OnProgress, Progress, ignore
from exitpoll.data.splits import Texts
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.onnx_parts import OnnxParts
from exitpoll.engine.onnx_runtime import load_exported
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError
from exitpoll.export.simplify import fold_constants
from exitpoll.models.folder import TOKENIZER

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

MOST_TEXTS = 512  # on which ranges are measured
BATCH_SIZE = 16
SMALLEST_RANGE = 1e-8  # of activations that are constant


def quantize(source: Path, folder: Path, texts: Texts, *, on_progress: OnProgress = ignore) -> LoadedModel:
    """Write an int8 export of a float32 export.

    Args:
        source: The folder of the float32 export, its layers in separate files.
        folder: An existing folder to write to.
        texts: Texts like those to come; the ranges of activations are measured on up to 512 of them.
        on_progress: Called after every batch of texts.

    Returns:
        The export, loaded.
    """
    if not len(texts):
        raise InputError("there are no texts to measure the ranges of activations on")
    manifest = Manifest.load(source)
    sample = texts.select(np.linspace(0, len(texts) - 1, min(MOST_TEXTS, len(texts))).astype(int))
    observers = {file: _RangeObserver(source / file) for file in {*manifest.layers, *manifest.heads}}
    _observe(observers, load_exported(source), manifest, sample, on_progress)
    for file, observer in observers.items():
        (folder / file).write_bytes(observer.quantized().SerializeToString())
    for file in (TOKENIZER, manifest.embedding, manifest.context):
        shutil.copy(source / file, folder / file)
    replace(manifest, precision="int8", parts={}).save(folder)
    return load_exported(folder)


def with_int8_weights(path: Path) -> ModelProto:
    """Quantize the weights of all matrix products, after ONNX Runtime has folded constants.

    Args:
        path: A graph in float32.

    Returns:
        A graph with dynamic quantization: activations are scaled by the values in a tensor.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = fold_constants(onnx.load(path))
    _mark_as_preprocessed(graph)
    with tempfile.TemporaryDirectory() as scratch:
        quantized = f"{scratch}/quantized.onnx"
        quantize_dynamic(
            graph,
            quantized,
            op_types_to_quantize=["MatMul"],
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
        )
        return onnx.load(quantized)


def _mark_as_preprocessed(graph: ModelProto) -> None:
    """Add the metadata by which the quantizer knows that constants were folded; it logs advice on that otherwise."""
    graph.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")


class _RangeObserver:
    """A graph with int8 weights that records the ranges of its activations."""

    def __init__(self, path: Path) -> None:
        """Quantize the weights of a float32 graph."""
        from onnx import TensorProto, helper
        from onnxruntime import InferenceSession

        self.model = with_int8_weights(path)
        self.nodes = [node for node in self.model.graph.node if node.op_type == "DynamicQuantizeLinear"]
        self.ranges = {node.input[0]: (0.0, 0.0) for node in self.nodes}  # lowest and highest value so far
        observed = type(self.model)()
        observed.CopyFrom(self.model)
        del observed.graph.output[:]
        for node in self.nodes:
            _, scale, zero = node.output
            observed.graph.output.append(helper.make_tensor_value_info(scale, TensorProto.FLOAT, []))
            observed.graph.output.append(helper.make_tensor_value_info(zero, TensorProto.UINT8, []))
        self.session = InferenceSession(observed.SerializeToString(), providers=["CPUExecutionProvider"])
        self.inputs = [value.name for value in self.session.get_inputs()]

    def observe(self, tensors: Mapping[str, NDArray]) -> None:
        """Widen the ranges to the values of a batch."""
        outputs = self.session.run(None, {name: tensors[name] for name in self.inputs})
        for name, scale, zero in zip(self.ranges, outputs[::2], outputs[1::2], strict=True):
            low, high = self.ranges[name]
            self.ranges[name] = min(low, -float(zero) * float(scale)), max(high, (255.0 - float(zero)) * float(scale))

    def quantized(self) -> ModelProto:
        """Return the graph with fixed ranges, every matrix product with its scales, cast and bias in one node."""
        from onnx import helper, numpy_helper

        graph = self.model.graph
        for node in self.nodes:
            low, high = self.ranges[node.input[0]]
            scale = np.float32(max(high - low, SMALLEST_RANGE) / 255)
            zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
            graph.initializer.append(numpy_helper.from_array(np.array(scale), node.output[1]))
            graph.initializer.append(numpy_helper.from_array(np.array(zero), node.output[2]))
            node.op_type = "QuantizeLinear"
            node.input.extend(node.output[1:])
            del node.output[1:]
        for product in [node for node in graph.node if node.op_type == "MatMulInteger"]:
            _fuse(graph, product)
        self.model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        return self.model


def _observe(
    observers: Mapping[str, _RangeObserver],
    loaded: LoadedModel,
    manifest: Manifest,
    texts: Texts,
    on_progress: OnProgress,
) -> None:
    """Run texts through all layers and heads, and let the observers see the inputs of their graphs."""
    runtime, tokens, done = loaded.runtime, loaded.tokenize(texts), 0
    assert isinstance(runtime, OnnxParts)
    heads = dict(zip(manifest.exit_layers, manifest.heads, strict=True))  # by layer
    for rows in batches(lengths_of(tokens), BATCH_SIZE):
        state = runtime.embed(pick(tokens, rows))
        if 0 in heads:
            observers[heads[0]].observe({"hidden": state.hidden, **state.context})
        for layer, file in enumerate(manifest.layers, start=1):
            observers[file].observe({"hidden": state.hidden, **state.context})
            state = runtime.advance(state, [layer])
            if layer in heads:
                observers[heads[layer]].observe({"hidden": state.hidden, **state.context})
        done += len(rows)
        on_progress(Progress("measuring ranges", done, len(texts)))


def _fuse(graph: GraphProto, product: NodeProto) -> None:
    """Replace an integer matrix product, its cast to float, its scales and its bias by one node."""
    from onnx import helper

    [cast] = _consumers(graph, product)
    [scaled] = _consumers(graph, cast)
    scales = next(node for node in graph.node if set(node.output) & set(scaled.input) - set(cast.output))
    replaced, bias = [product, cast, scales, scaled], []
    following = _consumers(graph, scaled)
    if [node.op_type for node in following] == ["Add"]:
        vectors = {tensor.name for tensor in graph.initializer if len(tensor.dims) == 1}
        bias = [name for name in following[0].input if name in vectors]
        if bias:
            replaced += following
    left, right, left_zero, right_zero = product.input
    fused = helper.make_node(
        "MatMulIntegerToFloat",
        [left, right, *scales.input, left_zero, right_zero, *bias],
        [replaced[-1].output[0]],
        name=product.name,
        domain="com.microsoft",
    )
    graph.node.insert(list(graph.node).index(replaced[-1]), fused)
    for node in replaced:
        graph.node.remove(node)


def _consumers(graph: GraphProto, producer: NodeProto) -> list[NodeProto]:
    """Return the nodes that take the first output of a node as an input."""
    return [node for node in graph.node if producer.output[0] in node.input]
