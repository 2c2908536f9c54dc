"""Simplify exported graphs: constants are folded and reshapes get constant shapes, so that fewer nodes run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from exitpoll.export.builder import remove_unused

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

KEPT = 0  # in the shape of a Reshape: the size of the input's axis at the same place
DIMENSION_OPERATORS = ("Reshape", "Squeeze", "Unsqueeze", "Identity")  # between a Shape and a shape made of sizes


def simplify(model: ModelProto) -> ModelProto:
    """Fold constants, and make the shapes of reshapes constant where texts and tokens stay in their places.

    Args:
        model: A graph in float32 whose inputs have texts and tokens as their first axes.

    Returns:
        A graph with the same outputs.
    """
    folded = fold_constants(model)
    while _fix_shapes(folded):  # a constant shape may be what is needed to know that of a later tensor
        pass
    remove_unused(folded.graph)
    return folded


def fold_constants(model: ModelProto) -> ModelProto:
    """Let ONNX Runtime fold constants and remove nodes that do nothing.

    Args:
        model: A graph.

    Returns:
        The graph, with operators of ONNX only.
    """
    import onnx
    from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "folded.onnx"
        options = SessionOptions()
        options.log_severity_level = 3  # errors
        options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(path)
        InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        folded = onnx.load(path)
    del folded.graph.value_info[:]  # shapes would be kept for tensors that change
    return folded


def _fix_shapes(model: ModelProto) -> bool:
    """Replace the computed shapes of reshapes that keep texts and tokens in their places; return whether one was."""
    from onnx import numpy_helper

    known, fixed = _Known(model), False
    for node in (node for node in model.graph.node if node.op_type == "Reshape"):
        shape = known.producers.get(node.input[1])
        if shape is None or shape.op_type != "Concat":
            continue
        sizes = [known.size(name, node.input[0], place) for place, name in enumerate(shape.input)]
        if None not in sizes:
            name, fixed = f"fixed_shape_{len(model.graph.initializer)}", True
            model.graph.initializer.append(numpy_helper.from_array(np.array(sizes, dtype=np.int64), name))
            node.input[1] = name
            del node.attribute[:]  # allowzero, with which 0 would be a size
    return fixed


class _Known:
    """What is known of the sizes in a graph before it runs."""

    def __init__(self, model: ModelProto) -> None:
        """Read the graph: which node makes what, constants, and names of axes."""
        from onnx import numpy_helper, shape_inference

        graph = shape_inference.infer_shapes(model).graph
        self.producers: dict[str, NodeProto] = {output: node for node in graph.node for output in node.output}
        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self.axes = {
            value.name: [axis.dim_param for axis in value.type.tensor_type.shape.dim]
            for value in (*graph.input, *graph.value_info)
        }

    def size(self, name: str, reshaped: str, place: int) -> int | None:
        """Return one size of a shape: a constant, 0 where an axis of the reshaped tensor stays, None if not known."""
        if name in self.constants:
            return int(self.constants[name].item()) if self.constants[name].size == 1 else None
        node = self.producers.get(name)
        while node is not None and node.op_type in DIMENSION_OPERATORS:
            node = self.producers.get(node.input[0])
        if node is None or node.op_type != "Shape":
            return None
        start = next((attribute.i for attribute in node.attribute if attribute.name == "start"), 0)
        size, axis = self._axis(node.input[0], start), self._axis(reshaped, place)
        return KEPT if size and size == axis else None

    def _axis(self, name: str, place: int) -> str:
        """Return the name of an axis; empty if it has none."""
        axes = self.axes.get(name, [])
        return axes[place] if place < len(axes) else ""
