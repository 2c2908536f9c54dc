"""Put the layers of an export into one graph, so that one pool of threads runs them all.

As graphs of their own, twelve layers have twelve pools, each of which has to be woken for a millisecond of work. In one
graph every layer is a branch, and the number of the branch to take is an input: a tree of `If` nodes finds it. It is
built in place, a layer at a time, so that it takes little more memory than it has weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.splits import Texts
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.onnx_runtime import load_exported
from exitpoll.engine.record import exit_logits
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError

Graph = Any  # an onnx.GraphProto
Model = Any  # an onnx.ModelProto

MOST_BYTES = 1 << 30  # in a file; protobuf ends at 2 GiB
BRANCH = "branch"  # the input that says which layer to run
PROBES = ["a", "one two three", "as many words as it takes to have a longer text than the others"]
TOLERANCE = 1e-4


def assemble(folder: Path) -> LoadedModel:
    """Replace the layers of an export by as few files as will hold them, and make sure that they say the same.

    Args:
        folder: The folder of the export, every layer still a file of its own.

    Returns:
        The export, loaded.
    """
    manifest, expected = Manifest.load(folder), _answers(load_exported(folder))
    files = sorted(set(manifest.layers))
    places = {}
    for number, names in enumerate(_shares(folder, files), start=1):
        joined = f"layers-{number}.onnx"
        (folder / joined).write_bytes(_join([folder / name for name in names]).SerializeToString())
        places.update({name: (joined, branch) for branch, name in enumerate(names)})
    replace(
        manifest,
        layers=[places[name][0] for name in manifest.layers],
        branches=[places[name][1] for name in manifest.layers],
    ).save(folder)
    for name in files:
        (folder / name).unlink()
    loaded = load_exported(folder)
    if not np.allclose(_answers(loaded), expected, rtol=TOLERANCE, atol=TOLERANCE):
        raise InputError("the layers say something else in one graph than on their own")
    return loaded


def _answers(loaded: LoadedModel) -> NDArray:
    """Ask every exit about a few texts."""
    return exit_logits(loaded.runtime, loaded.tokenize(Texts(PROBES)))


def _shares(folder: Path, files: Sequence[str]) -> Iterator[list[str]]:
    """Deal out files in their order, no share larger than a file may be."""
    share: list[str] = []
    size = 0
    for name in files:
        more = (folder / name).stat().st_size
        if share and size + more > MOST_BYTES:
            yield share
            share, size = [], 0
        share, size = [*share, name], size + more
    yield share


@dataclass
class _Whole:
    """What the layers of one graph have in common."""

    inputs: dict[str, Any] = field(default_factory=dict)  # by name
    versions: dict[str, int] = field(default_factory=dict)  # of each domain of operators
    form: int = 0  # version of the file format


def _join(files: Sequence[Path]) -> Model:
    """Make one graph of several that take and give the same."""
    from onnx import ModelProto, TensorProto, helper

    model, whole = ModelProto(), _Whole()
    last = _fill(model.graph, files, 0, whole)
    model.graph.name, model.ir_version = "layers", whole.form
    model.graph.node.append(helper.make_node("Identity", [last], ["hidden_out"]))
    model.graph.output[0].name = "hidden_out"
    model.graph.input.extend(whole.inputs.values())
    model.graph.input.append(helper.make_tensor_value_info(BRANCH, TensorProto.INT64, []))
    model.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in whole.versions.items())
    return model


def _fill(graph: Graph, files: Sequence[Path], first: int, whole: _Whole) -> str:
    """Put layers into a graph, halving them until one is left; the name of what it gives."""
    from onnx import AttributeProto, TensorProto, helper

    if len(files) == 1:
        return _fill_with_layer(graph, files[0], f"{first}/", whole)
    half = len(files) // 2
    middle = first + half
    given = f"from {middle}"
    graph.name = f"tree {middle}"
    graph.initializer.append(helper.make_tensor(f"middle {middle}", TensorProto.INT64, [], [middle]))
    graph.node.append(helper.make_node("Less", [BRANCH, f"middle {middle}"], [f"below {middle}"]))
    choice = graph.node.add(op_type="If", input=[f"below {middle}"], output=[given])
    for name, part, start in (("then_branch", files[:half], first), ("else_branch", files[half:], middle)):
        branch = choice.attribute.add(name=name, type=AttributeProto.GRAPH).g
        _fill(branch, part, start, whole)
    graph.output.append(choice.attribute[0].g.output[0])
    graph.output[0].name = given
    return given


def _fill_with_layer(graph: Graph, file: Path, prefix: str, whole: _Whole) -> str:
    """Put one layer into a graph, all names but those of its inputs, which come from outside, made its own.

    Its weights stay beside it: ONNX Runtime packs them for its products only there.
    """
    import onnx
    from onnx import inliner

    layer = inliner.inline_local_functions(onnx.load(file))
    _note(layer, file, whole)

    def renamed(name: str) -> str:
        return name if not name or name in whole.inputs else prefix + name

    for node in layer.graph.node:
        if any(attribute.HasField("g") for attribute in node.attribute):
            raise InputError(f"'{file.name}' has graphs within its graph; its layers cannot be put together")
        node.name = prefix + node.name
        node.input[:] = [renamed(name) for name in node.input]
        node.output[:] = [renamed(name) for name in node.output]
    for named in (*layer.graph.initializer, *layer.graph.output):
        named.name = renamed(named.name)
    del layer.graph.input[:], layer.graph.value_info[:]
    graph.CopyFrom(layer.graph)
    graph.name = f"layer {prefix}"
    return graph.output[0].name


def _note(layer: Model, file: Path, whole: _Whole) -> None:
    """Note what a layer takes, and refuse one that another version of the operators is meant for."""
    for each in layer.graph.input:
        whole.inputs.setdefault(each.name, each)
    for each in layer.opset_import:
        if whole.versions.setdefault(each.domain, each.version) != each.version:
            raise InputError(f"'{file.name}' is of other operators than the layers before it")
    whole.form = max(whole.form, layer.ir_version)
