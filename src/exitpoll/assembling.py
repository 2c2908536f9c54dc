"""Put the layers of an export into one graph, so that one pool of threads runs them all.

As graphs of their own, twelve layers have twelve pools, each of which has to be woken for a millisecond of work. In one
graph every layer is a branch, and the number of the branch to take is an input: a tree of `If` nodes finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from exitpoll.exported import Manifest
from exitpoll.onnx_runtime import open_exported
from exitpoll.runtime import Opened

Graph = Any  # an onnx.ModelProto or an onnx.GraphProto

MOST_BYTES = 1 << 30  # in a file; protobuf ends at 2 GiB
BRANCH = "branch"  # the input that says which layer to run


def assemble(folder: Path) -> Opened:
    """Replace the layers of an export by as few files as will hold them.

    Args:
        folder: The folder of the export, every layer still a file of its own.

    Returns:
        The export, opened.
    """
    import onnx

    manifest = Manifest.load(folder)
    files = sorted(set(manifest.layers))
    places = {}
    for number, names in enumerate(_shares(folder, files), start=1):
        joined = f"layers-{number}.onnx"
        graph = _join([onnx.load(folder / name) for name in names])
        (folder / joined).write_bytes(graph.SerializeToString())
        places.update({name: (joined, branch) for branch, name in enumerate(names)})
    replace(
        manifest,
        layers=[places[name][0] for name in manifest.layers],
        branches=[places[name][1] for name in manifest.layers],
    ).save(folder)
    for name in files:
        (folder / name).unlink()
    return open_exported(folder)


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


def _join(layers: Sequence[Graph]) -> Graph:
    """Make one graph of several that take and give the same."""
    from onnx import TensorProto, helper, inliner

    layers = [inliner.inline_local_functions(layer) for layer in layers]
    inputs = {each.name: each for layer in layers for each in layer.graph.input}
    branches = [_as_branch(layer.graph, f"{number}/", set(inputs)) for number, layer in enumerate(layers)]
    tree = _tree(branches, 0)
    graph = helper.make_graph(
        [*tree.node, helper.make_node("Identity", [tree.output[0].name], ["hidden_out"])],
        "layers",
        [*inputs.values(), helper.make_tensor_value_info(BRANCH, TensorProto.INT64, [])],
        [layers[0].graph.output[0]],
        initializer=tree.initializer,
    )
    versions = {each.domain: each for layer in layers for each in layer.opset_import}
    return helper.make_model(graph, opset_imports=list(versions.values()), ir_version=layers[0].ir_version)


def _as_branch(graph: Graph, prefix: str, inputs: set[str]) -> Graph:
    """Make all names but those of the inputs, which come from outside, a branch's own.

    The weights stay in the branch: ONNX Runtime packs them for its products only there.
    """
    from onnx import NodeProto, TensorProto, ValueInfoProto, helper

    def renamed(name: str) -> str:
        return name if not name or name in inputs else prefix + name

    def copied(kind: type, of: Any, **changed: Any) -> Any:
        made = kind()
        made.CopyFrom(of)
        for field, value in changed.items():
            if isinstance(value, str):
                setattr(made, field, value)
            else:
                getattr(made, field)[:] = value
        return made

    nodes = [
        copied(
            NodeProto, node, name=prefix + node.name, input=map(renamed, node.input), output=map(renamed, node.output)
        )
        for node in graph.node
    ]
    weights = [copied(TensorProto, each, name=renamed(each.name)) for each in graph.initializer]
    given = [copied(ValueInfoProto, each, name=renamed(each.name)) for each in graph.output]
    return helper.make_graph(nodes, f"layer {prefix}", [], given, initializer=weights)


def _tree(branches: Sequence[Graph], first: int) -> Graph:
    """Halve the branches until one is left."""
    from onnx import TensorProto, ValueInfoProto, helper

    if len(branches) == 1:
        return branches[0]
    half = len(branches) // 2
    middle = first + half
    below, above = _tree(branches[:half], first), _tree(branches[half:], middle)
    given = ValueInfoProto()
    given.CopyFrom(below.output[0])
    given.name = f"from {middle}"
    nodes = [
        helper.make_node("Less", [BRANCH, f"middle {middle}"], [f"below {middle}"]),
        helper.make_node("If", [f"below {middle}"], [given.name], then_branch=below, else_branch=above),
    ]
    middles = [helper.make_tensor(f"middle {middle}", TensorProto.INT64, [], [middle])]
    return helper.make_graph(nodes, f"tree {middle}", [], [given], initializer=middles)
