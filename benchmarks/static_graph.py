"""A static model as one ONNX graph: all texts run to one exit. It is what early exit is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from exitpoll.engine.manifest import Manifest
from exitpoll.export.builder import FLOAT, INT64, GraphBuilder, tensor_type

if TYPE_CHECKING:
    from onnx import ModelProto


def join_static(parts: Path, exit_number: int, on_the_way: Sequence[int] = ()) -> ModelProto:
    """Join the parts of an export into a graph without decisions.

    Args:
        parts: An export whose parts are separate files.
        exit_number: The exit whose head answers, counted from 0.
        on_the_way: Exits below it whose heads are asked too; nothing comes of their answers.

    Returns:
        A graph from token ids to the logits of these exits, one below the other.
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
    asked = {manifest.exit_layers[number]: manifest.heads[number] for number in (*on_the_way, exit_number)}
    logits: list[str] = []
    for layer in range(manifest.exit_layers[exit_number] + 1):  # 0 is an exit before the first layer
        if layer:
            [hidden] = inline(manifest.layers[layer - 1], {"hidden": hidden, **context})
        if layer in asked:
            logits += inline(asked[layer], {"hidden": hidden, **context})
    together = logits[0] if len(logits) == 1 else builder.node("Concat", *logits, axis=0)
    builder.graph.node.add(op_type="Identity", name="logits", input=[together], output=["logits"])
    inputs = [tensor_type(name, INT64, ["texts", "tokens"]) for name in columns]
    return builder.build("static", inputs, [tensor_type("logits", FLOAT, [None, len(manifest.label_names)])])
