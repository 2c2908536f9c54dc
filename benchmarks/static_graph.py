"""A static model as one ONNX graph: all texts run to one exit. It is what early exit is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from exitpoll.engine.manifest import Manifest
from exitpoll.export.builder import FLOAT, INT64, GraphBuilder, tensor_type

if TYPE_CHECKING:
    from onnx import ModelProto


def join_static(parts: Path, exit_number: int) -> ModelProto:
    """Join the parts of an export into a graph without decisions.

    Args:
        parts: An export whose parts are separate files.
        exit_number: The exit whose head answers, counted from 0.

    Returns:
        A graph from token ids to the logits of that exit.
    """
    import onnx

    manifest, builder = Manifest.load(parts), GraphBuilder()
    columns = [*manifest.padding, "attention_mask"]

    def inline(file: str, inputs: dict[str, str]) -> list[str]:
        return builder.inline(onnx.load(parts / file), inputs, file.removesuffix(".onnx"))

    [hidden] = inline(manifest.embedding, {name: name for name in columns})
    outputs = [value.name for value in onnx.load(parts / manifest.context).graph.output]
    names = inline(manifest.context, {"mask": "attention_mask"})
    context = {"mask": "attention_mask", "input_ids": "input_ids", **dict(zip(outputs, names, strict=True))}
    for file in manifest.layers[: manifest.exit_layers[exit_number]]:
        [hidden] = inline(file, {"hidden": hidden, **context})
    [logits] = inline(manifest.heads[exit_number], {"hidden": hidden, **context})
    builder.graph.node.add(op_type="Identity", name="logits", input=[logits], output=["logits"])
    inputs = [tensor_type(name, INT64, ["texts", "tokens"]) for name in columns]
    return builder.build("static", inputs, [tensor_type("logits", FLOAT, ["texts", len(manifest.label_names)])])
