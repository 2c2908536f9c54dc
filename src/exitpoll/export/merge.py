"""Merge the layers of an export into one graph, so that one thread pool runs them all.

As separate graphs, twelve layers have twelve thread pools, and waking one takes longer than the millisecond of work it
gets. In the merged graph every layer is a branch of a binary tree of `If` nodes, and the number of the branch is an
input. The tree is built in place, one layer at a time, so that it needs little more memory than its weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.splits import Texts
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.onnx_runtime import load_exported
from exitpoll.engine.record import exit_logits
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, ValueInfoProto

MOST_BYTES = 1 << 30  # of weights in a file; protobuf allows 2 GiB
BRANCH = "branch"  # the input that selects the layer
_TEXT = "a text that is much longer than the others, to see that its padding is not read: not by any layer"
CHECKED_TEXTS = [_TEXT[:length] for length in range(1, len(_TEXT), 5)]
# How far logits may be from those of the separate layers: the root mean square, relative to their standard deviation.
# ONNX Runtime fuses other nodes in a branch. A last bit of difference is a whole step once activations are rounded to
# eight bits, which moves the logits of some texts by a percent or so; layers in a wrong order move all by 15 or more.
TOLERANCES = {"float32": 1e-4, "int8": 0.05}
SMALLEST_DEVIATION = 0.1  # of logits that hardly differ from each other
MOST_OTHER_ANSWERS = 0.1  # share of answers, of all exits, that may differ


def merge_layers(folder: Path) -> LoadedModel:
    """Merge the layers of an export into as few files as possible, and check that the logits stay the same.

    Args:
        folder: The folder of an export whose layers are separate files.

    Returns:
        The export, loaded.
    """
    manifest, expected = Manifest.load(folder), _logits(load_exported(folder))
    files = sorted(set(manifest.layers))
    places: dict[str, tuple[str, int]] = {}  # by file of a layer: the merged file, and the branch in it
    for number, part in enumerate(_split_by_size(folder, files), start=1):
        merged = f"layers-{number}.onnx"
        (folder / merged).write_bytes(_merge([folder / file for file in part]).SerializeToString())
        places.update({file: (merged, branch) for branch, file in enumerate(part)})
    replace(
        manifest,
        layers=[places[file][0] for file in manifest.layers],
        branches=[places[file][1] for file in manifest.layers],
    ).save(folder)
    for file in files:
        (folder / file).unlink()
    loaded = load_exported(folder)
    _check_same(expected, _logits(loaded), manifest.precision)
    return loaded


def _logits(loaded: LoadedModel) -> NDArray:
    """Compute the logits of all exits for a few texts, (texts, exits, classes)."""
    return exit_logits(loaded.runtime, loaded.tokenize(Texts(CHECKED_TEXTS)))


def _check_same(expected: NDArray, logits: NDArray, precision: str) -> None:
    """Refuse merged layers whose logits, (texts, exits, classes), are not those of the separate layers."""
    error = float(np.sqrt(np.mean((logits - expected) ** 2))) / max(float(expected.std()), SMALLEST_DEVIATION)
    others = float((logits.argmax(axis=-1) != expected.argmax(axis=-1)).mean())
    if error <= TOLERANCES[precision] and others <= MOST_OTHER_ANSWERS:  # NaN is not
        return
    raise InputError(
        f"the merged layers do not match the separate layers: logits differ by {100 * error:.2g} % of their standard "
        f"deviation, where {100 * TOLERANCES[precision]:.2g} % is usual for {precision}, by up to "
        f"{np.abs(logits - expected).max():.2g}; {100 * others:.2g} % of the answers differ"
    )


def _split_by_size(folder: Path, files: Sequence[str]) -> Iterator[list[str]]:
    """Split files, in their order, into parts that fit into one file."""
    part: list[str] = []
    size = 0
    for file in files:
        more = (folder / file).stat().st_size
        if part and size + more > MOST_BYTES:
            yield part
            part, size = [], 0
        part, size = [*part, file], size + more
    yield part


@dataclass
class _Common:
    """What the layers of one merged graph have in common."""

    inputs: dict[str, ValueInfoProto] = field(default_factory=dict)  # by name
    opsets: dict[str, int] = field(default_factory=dict)  # version of the operators, by domain
    ir_version: int = 0

    def add(self, layer: ModelProto, file: Path) -> None:
        """Add the inputs and versions of a layer; all layers must use the same versions of the operators."""
        for value in layer.graph.input:
            self.inputs.setdefault(value.name, value)
        for opset in layer.opset_import:
            version = self.opsets.setdefault(opset.domain, opset.version)
            if version != opset.version:
                raise InputError(f"'{file.name}' uses opset {opset.version}, and the layers before it opset {version}")
        self.ir_version = max(self.ir_version, layer.ir_version)


def _merge(files: Sequence[Path]) -> ModelProto:
    """Make one graph of several that have the same inputs and outputs."""
    from onnx import ModelProto, TensorProto, helper

    model, common = ModelProto(), _Common()
    output = _add_tree(model.graph, files, 0, common)
    model.graph.name, model.ir_version = "layers", common.ir_version
    model.graph.node.append(helper.make_node("Identity", [output], ["hidden_out"]))
    model.graph.output[0].name = "hidden_out"
    model.graph.input.extend(common.inputs.values())
    model.graph.input.append(helper.make_tensor_value_info(BRANCH, TensorProto.INT64, []))
    model.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in common.opsets.items())
    return model


def _add_tree(graph: GraphProto, files: Sequence[Path], first: int, common: _Common) -> str:
    """Add layers to a graph as a binary tree of branches, and return the name of its output."""
    from onnx import AttributeProto, TensorProto, helper

    if len(files) == 1:
        return _add_layer(graph, files[0], f"{first}/", common)
    half = len(files) // 2
    middle = first + half
    output = f"from {middle}"
    graph.name = f"tree {middle}"
    graph.initializer.append(helper.make_tensor(f"middle {middle}", TensorProto.INT64, [], [middle]))
    graph.node.append(helper.make_node("Less", [BRANCH, f"middle {middle}"], [f"below {middle}"]))
    choice = graph.node.add(op_type="If", input=[f"below {middle}"], output=[output])
    for name, part, start in (("then_branch", files[:half], first), ("else_branch", files[half:], middle)):
        branch = choice.attribute.add(name=name, type=AttributeProto.GRAPH).g
        _add_tree(branch, part, start, common)
    graph.output.append(choice.attribute[0].g.output[0])
    graph.output[0].name = output
    return output


def _add_layer(graph: GraphProto, file: Path, prefix: str, common: _Common) -> str:
    """Add one layer to a graph, and return the name of its output.

    All names but those of the inputs get a prefix. The weights stay inside the branch: ONNX Runtime prepacks them for
    matrix products only there.
    """
    import onnx
    from onnx import inliner

    layer = inliner.inline_local_functions(onnx.load(file))
    common.add(layer, file)

    def renamed(name: str) -> str:
        return name if not name or name in common.inputs else prefix + name

    for node in layer.graph.node:
        if any(attribute.HasField("g") for attribute in node.attribute):
            raise InputError(f"'{file.name}' contains nested graphs; its layers cannot be merged")
        node.name = prefix + node.name
        node.input[:] = [renamed(name) for name in node.input]
        node.output[:] = [renamed(name) for name in node.output]
    for value in (*layer.graph.initializer, *layer.graph.output):
        value.name = renamed(value.name)
    del layer.graph.input[:], layer.graph.value_info[:]
    graph.CopyFrom(layer.graph)
    graph.name = f"layer {prefix}"
    return graph.output[0].name
