"""Build an ONNX graph node by node: constants once, branches inside, other graphs put into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from exitpoll.errors import InputError

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, ValueInfoProto

IR_VERSION = 10
FLOAT, INT64, BOOL = 1, 7, 9  # data types of ONNX
Attribute = int | float | str | Sequence[int]


def tensor_type(name: str, kind: int, shape: Sequence[str | int | None]) -> ValueInfoProto:
    """Return the name and type of a tensor.

    Args:
        name: Its name.
        kind: Its data type.
        shape: Sizes, names of sizes, or None for any size.

    Returns:
        As ONNX states it.
    """
    from onnx import helper

    return helper.make_tensor_value_info(name, kind, list(shape))


def remove_unused(graph: GraphProto) -> set[str]:
    """Remove nodes and constants that no output needs, in branches too.

    Args:
        graph: The graph, whose nodes are in the order in which they run.

    Returns:
        The names of what is used, in it or from outside.
    """
    used = {value.name for value in graph.output}
    for node in reversed(list(graph.node)):
        if used.isdisjoint(node.output):
            graph.node.remove(node)
            continue
        used.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                used |= remove_unused(attribute.g)
    inputs = {value.name for value in graph.input}  # with default values
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in used | inputs]:
        graph.initializer.remove(tensor)
    return used


class GraphBuilder:
    """A graph under construction.

    Matrices belong to the outermost graph, whatever branch uses them, so that they are stored and loaded once. Vectors
    and numbers belong to the branch that uses them: ONNX Runtime hands everything that a branch takes from outside to
    it in every call, which takes longer than adding a vector.
    """

    def __init__(self) -> None:
        """Start with no nodes."""
        from onnx import GraphProto

        self.graph = GraphProto()  # the graph that nodes are added to: the outermost, or a branch
        self.outermost = self.graph
        self.opsets: dict[str, int] = {}  # version of the operators, by domain
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}  # of the graph that nodes are added to
        self._weights: set[str] = set()  # names of the matrices of other graphs
        self._numbers = count()

    def node(self, operator: str, *inputs: str, domain: str = "", **attributes: Attribute) -> str:
        """Add a node with one output, and return the name of the output."""
        return self.nodes(operator, *inputs, outputs=1, domain=domain, **attributes)[0]

    def nodes(self, operator: str, *inputs: str, outputs: int, domain: str = "", **attributes: Attribute) -> list[str]:
        """Add a node with several outputs, and return their names."""
        from onnx import helper

        names = [f"{operator}_{next(self._numbers)}" for _ in range(outputs)]
        self.graph.node.append(helper.make_node(operator, list(inputs), names, names[0], domain=domain, **attributes))
        return names

    def filled(self, shape: str, value: float | bool) -> str:
        """Add a node that makes a tensor of one value, and return the name of the tensor."""
        from onnx import helper, numpy_helper

        name = f"ConstantOfShape_{next(self._numbers)}"
        filler = numpy_helper.from_array(np.array([value], dtype=np.bool_ if isinstance(value, bool) else np.float32))
        self.graph.node.append(helper.make_node("ConstantOfShape", [shape], [name], name, value=filler))
        return name

    def constant(self, value: ArrayLike, dtype: type[np.generic] | None = None) -> str:
        """Return the name of a constant; in one branch, equal constants are one."""
        array = np.asarray(value, dtype=dtype)
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = self.local_constant(array)
        return self._constants[key]

    def initializer(self, name: str, array: NDArray) -> str:
        """Add an array to the outermost graph, and return its name."""
        from onnx import numpy_helper

        self.outermost.initializer.append(numpy_helper.from_array(array, name))
        return name

    def local_constant(self, array: NDArray) -> str:
        """Add an array to the current branch, whose output it may then be, and return its name."""
        from onnx import numpy_helper

        name = f"local_{next(self._numbers)}"
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    @contextmanager
    def inside(self, graph: GraphProto) -> Iterator[None]:
        """Add nodes to a branch."""
        outside = self.graph, self._constants
        self.graph, self._constants = graph, {}
        try:
            yield
        finally:
            self.graph, self._constants = outside

    def choose(self, condition: str, outputs: Sequence[ValueInfoProto]) -> Choice:
        """Add an `If` node whose branches are still empty; outputs without a name get one."""
        names = [output.name or f"If_{next(self._numbers)}" for output in outputs]
        node = self.graph.node.add(op_type="If", name=names[0], input=[condition], output=names)
        return Choice(self, [node.attribute.add(name=name) for name in ("then_branch", "else_branch")], names, outputs)

    def inline(self, model: ModelProto, inputs: Mapping[str, str], source: str) -> list[str]:
        """Put another graph into this one.

        Args:
            model: The other graph, without branches and functions.
            inputs: What its inputs are called here.
            source: A name for it; graphs of one name share their matrices.

        Returns:
            The names of its outputs.
        """
        self.add_opsets(model)
        prefix, names = f"{next(self._numbers)}/", dict(inputs)
        for tensor in model.graph.initializer:
            names[tensor.name] = self._add_weight(tensor, source, prefix)

        def renamed(name: str) -> str:
            return names.get(name, prefix + name) if name else name

        for place, node in enumerate(model.graph.node):
            if any(attribute.HasField("g") for attribute in node.attribute):
                raise InputError(f"the graph '{model.graph.name}' contains branches and cannot be put into another")
            added = self.graph.node.add()
            added.CopyFrom(node)
            del added.metadata_props[:]  # where in the source of torch it comes from: longer than the node
            added.name = f"{prefix}{place}"
            added.input[:] = [renamed(name) for name in node.input]
            added.output[:] = [renamed(name) for name in node.output]
        return [renamed(value.name) for value in model.graph.output]

    def _add_weight(self, tensor: TensorProto, source: str, prefix: str) -> str:
        """Add a weight of another graph, unless it is there already, and return its name."""
        is_matrix = len(tensor.dims) > 1
        name = f"{source if is_matrix else prefix.rstrip('/')}/{tensor.name}"
        if name in self._weights:
            return name
        if is_matrix:
            self._weights.add(name)
        added = (self.outermost if is_matrix else self.graph).initializer.add()
        added.CopyFrom(tensor)
        added.name = name
        return name

    def add_opsets(self, model: ModelProto) -> None:
        """Take over the versions of operators of another graph, which must be those of the graphs before."""
        for opset in model.opset_import:
            version = self.opsets.setdefault(opset.domain, opset.version)
            if version != opset.version:
                raise InputError(f"'{model.graph.name}' uses opset {opset.version}, and graphs before it {version}")

    def build(self, name: str, inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto]) -> ModelProto:
        """Return the finished model."""
        from onnx import ModelProto, helper

        model = ModelProto(ir_version=IR_VERSION, producer_name="exitpoll")
        self.outermost.name = name
        self.outermost.input.extend(inputs)
        self.outermost.output.extend(outputs)
        model.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in self.opsets.items())
        model.graph.CopyFrom(self.outermost)
        remove_unused(model.graph)
        return model


class Choice:
    """An `If` node under construction."""

    def __init__(
        self,
        builder: GraphBuilder,
        branches: Sequence[AttributeProto],
        names: Sequence[str],
        outputs: Sequence[ValueInfoProto],
    ) -> None:
        """Keep the node's parts.

        Args:
            builder: The builder.
            branches: Where the graphs of the branch for true and for false go.
            names: The names of the outputs.
            outputs: Their types.
        """
        self.builder, self.branches, self.names, self.outputs = builder, branches, names, outputs

    @contextmanager
    def branch(self, taken: bool) -> Iterator[list[str]]:
        """Add nodes to the branch for true or for false.

        Yields:
            A list to be filled with the names of its outputs.
        """
        from onnx import AttributeProto

        attribute = self.branches[0 if taken else 1]
        attribute.type = AttributeProto.GRAPH
        attribute.g.name = f"{self.names[0]} {'then' if taken else 'else'}"
        results: list[str] = []
        with self.builder.inside(attribute.g):
            yield results
            made = {name for node in attribute.g.node for name in node.output}
            made.update(tensor.name for tensor in attribute.g.initializer)
            for place, (result, kind) in enumerate(zip(results, self.outputs, strict=True)):
                added = attribute.g.output.add()
                added.CopyFrom(kind)
                is_own = result in made and result not in results[:place]
                added.name = result if is_own else self.builder.node("Identity", result)
