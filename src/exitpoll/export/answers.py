"""The answers of a self-exiting graph: from what was noted at every exit to its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from exitpoll.decide.policy import Policy
from exitpoll.decide.steps import Step
from exitpoll.engine.exit_graph import Inputs, Outputs
from exitpoll.engine.manifest import Manifest
from exitpoll.export.builder import FLOAT, INT64, GraphBuilder, tensor_type
from exitpoll.export.onnx_operations import OnnxOperations, Value

if TYPE_CHECKING:
    from onnx import ValueInfoProto

PASSED = "passed"  # logits of an exit on the way, among what a branch returns


@dataclass
class Columns:
    """The columns of notes on texts: logits, where they left (exit number + 1, or 0), answer, what is remembered."""

    answer: int  # 0 where the logits say it
    classes: int
    remembered: int

    @property
    def results(self) -> int:
        """All columns but what is remembered."""
        return 1 + self.answer + self.classes

    @property
    def width(self) -> int:
        """All columns."""
        return self.results + self.remembered

    def split(self, builder: GraphBuilder, notes: str) -> tuple[str, str, str | None]:
        """Return logits of texts, where they left and their answers, (texts, columns of these)."""
        sizes = [size for size in (self.classes, 1, self.answer, self.remembered) if size]
        logits, left_at, *others = builder.nodes("Split", notes, builder.constant(sizes), outputs=len(sizes), axis=1)
        return logits, left_at, others[0] if self.answer else None


@dataclass(frozen=True)
class Stage:
    """What goes from one exit to the next: names of tensors."""

    number: int  # of the exit
    rows: str  # (texts inside,) their rows in the input
    notes: str  # (texts inside, columns)
    passed: Sequence[str] = ()  # (texts inside, classes) logits of the exits on the way, or of none if not wanted
    hidden: str = ""  # (texts inside, tokens, width); from here on, nothing at the last exit
    stays: str = ""  # (1 or 2, texts that stay) their places among those inside, in the first row
    goes_on: str = ""  # (1,) whether they go on to the next exit

    @classmethod
    def of(cls, number: int, tensors: Mapping[str, str]) -> Stage:
        """Put together what a branch returned, by name."""
        named = {name: tensor for name, tensor in tensors.items() if not name.startswith(PASSED)}
        return cls(number, **named, passed=[tensor for name, tensor in tensors.items() if name.startswith(PASSED)])

    @property
    def tensors(self) -> dict[str, str]:
        """What a branch returns, by name."""
        names = ("rows", "notes", "hidden", "stays", "goes_on")
        passed = {f"{PASSED} {place}": tensor for place, tensor in enumerate(self.passed)}
        return {name: getattr(self, name) for name in names} | passed


def answer_at(ops: OnnxOperations, policy: Policy, fired: Value, logits: Value, step: Step) -> Value:
    """Return the answers at an exit: the strategy's or the head's, as the policy says.

    Args:
        ops: The operations.
        policy: The policy.
        fired: Which texts leave because of their score.
        logits: Of the head, (texts, classes).
        step: The step of the strategy.

    Returns:
        The answers.
    """
    falls_back = policy.fallback if policy.threshold is not None else "head"
    if policy.answer == falls_back == "strategy":
        return step.answer
    by_head = _answer_of_head(ops, policy.problem_type, logits)
    if policy.answer == falls_back:
        return by_head
    chosen = (step.answer, by_head) if policy.answer == "strategy" else (by_head, step.answer)
    return ops.where(fired, *chosen)


def follows_from_logits(policy: Policy, logits: Value, step: Step) -> bool:
    """Return whether the answers are those of the heads, so that nothing but their logits has to be remembered.

    Args:
        policy: The policy.
        logits: Of a head, (texts, classes).
        step: The step of the strategy there.
    """
    by_head = policy.threshold is None or policy.answer == policy.fallback == "head"
    return by_head or (policy.problem_type == SINGLE_LABEL and step.answer.ranked == logits.name)


def _answer_of_head(ops: OnnxOperations, problem_type: str, logits: Value) -> Value:
    """Return the answers of a head."""
    if problem_type == REGRESSION:
        return ops.value(logits)
    return ops.argmax(ops.binary(logits) if problem_type == MULTI_LABEL else logits)


def name_outputs(
    ops: OnnxOperations, stages: Sequence[Stage], texts: str, columns: Columns, manifest: Manifest
) -> None:
    """Put together what all texts were answered, and name the outputs.

    Args:
        ops: The operations, in the outermost graph.
        stages: What is known behind every exit.
        texts: The number of texts, (1,).
        columns: The columns of the notes.
        manifest: What is exported.
    """
    builder, node, constant = ops.builder, ops.builder.node, ops.builder.constant
    notes = node("Concat", *(stage.notes for stage in stages), axis=0)  # (notes, columns)
    rows = node("Concat", *(stage.rows for stage in stages), axis=0)  # (notes,)
    logits, left_at, answer = columns.split(builder, _last_notes(builder, notes, rows, texts, columns))
    number = node("Sub", node("Cast", node("Squeeze", left_at, constant([1])), to=INT64), constant(1))
    outputs = {
        **_answers(ops, answer, Value(builder, logits, (columns.classes,)), manifest.problem_type),
        Outputs.DEPTH: node("Gather", constant(manifest.exit_layers), number),
        Outputs.LOGITS: logits,
        Outputs.EXIT_LOGITS: _exit_logits(builder, stages, rows, notes, texts, columns),
        Outputs.EXIT_NUMBER: number,
    }
    for name, value in outputs.items():
        builder.graph.node.add(op_type="Identity", name=str(name), input=[value], output=[str(name)])


def _last_notes(builder: GraphBuilder, notes: str, rows: str, texts: str, columns: Columns) -> str:
    """Return the notes of the exits at which texts left, in the order of the texts, (texts, columns).

    One text has its last note there; it takes fewer nodes to find it.
    """
    node, constant = builder.node, builder.constant
    choice = builder.choose(node("Equal", texts, constant([1])), [tensor_type("", FLOAT, [None, columns.width])])
    with choice.branch(True) as outputs:
        outputs.append(node("Gather", notes, constant([-1]), axis=0))
    with choice.branch(False) as outputs:
        left = node("Gather", node("NonZero", columns.split(builder, notes)[1]), constant(0), axis=0)
        places = node("Unsqueeze", node("Gather", rows, left), constant([1]))
        shape = node("Concat", texts, constant([columns.width]), axis=0)
        outputs.append(node("ScatterND", builder.filled(shape, 0.0), places, node("Gather", notes, left, axis=0)))
    return choice.names[0]


def _answers(ops: OnnxOperations, answer: str | None, logits: Value, problem_type: str) -> dict[Outputs, str]:
    """Return the outputs for an answer, by default the head's: label and probability, or a value."""
    node, flat, last = ops.builder.node, ops.builder.constant([-1]), ops.builder.constant([1])
    if problem_type == REGRESSION:
        return {Outputs.VALUE: node("Reshape", answer or ops.value(logits).name, flat)}
    if problem_type == MULTI_LABEL:
        labels = answer or _answer_of_head(ops, problem_type, logits).name
        return {Outputs.LABEL: node("Cast", labels, to=INT64), Outputs.PROBABILITY: node("Sigmoid", logits.name)}
    p = node("Softmax", logits.name, axis=-1)
    if answer is None:
        label, probability = node("ArgMax", logits.name, axis=-1, keepdims=0), node("ReduceMax", p, last, keepdims=0)
    else:
        chosen = node("Cast", answer, to=INT64)
        label, probability = (
            node("Squeeze", chosen, last),
            node("Squeeze", node("GatherElements", p, chosen, axis=1), last),
        )
    return {Outputs.LABEL: label, Outputs.PROBABILITY: probability}


def _exit_logits(
    builder: GraphBuilder, stages: Sequence[Stage], rows: str, notes: str, texts: str, columns: Columns
) -> str:
    """Return the logits of all exits passed, NaN for others, (texts, exits, classes); nothing unless asked for."""
    node, constant, exits = builder.node, builder.constant, stages[-1].number + 1
    between = [  # exits that no stage ends at: the rows of their texts, their numbers and their logits
        (stage.rows, stage.number - len(stage.passed) + place, logits)
        for stage in stages
        for place, logits in enumerate(stage.passed)
    ]
    choice = builder.choose(str(Inputs.WITH_LOGITS), [tensor_type("", FLOAT, [None] * 3)])
    with choice.branch(True) as outputs:
        numbered = [*((stage.rows, stage.number) for stage in stages), *((some, number) for some, number, _ in between)]
        numbers = [builder.filled(node("Shape", some), float(number)) for some, number in numbered]
        number = node("Cast", node("Concat", *numbers, axis=0), to=INT64)  # (notes and logits between,)
        rows = node("Concat", rows, *(some for some, _, _ in between), axis=0)
        column = constant([-1, 1])
        places = node("Concat", node("Reshape", rows, column), node("Reshape", number, column), axis=1)
        shape = node("Concat", texts, constant([exits, columns.classes]), axis=0)
        logits = node("Concat", columns.split(builder, notes)[0], *(some for _, _, some in between), axis=0)
        outputs.append(node("ScatterND", builder.filled(shape, float("nan")), places, logits))
    with choice.branch(False) as outputs:
        outputs.append(builder.local_constant(np.zeros((0, exits, columns.classes), np.float32)))
    return choice.names[0]


def output_types(columns: Columns, manifest: Manifest, stops: Sequence[int]) -> list[ValueInfoProto]:
    """Return the names and types of the outputs.

    Args:
        columns: The columns of the notes.
        manifest: What is exported.
        stops: The numbers of the exits at which a call may stop.

    Returns:
        The outputs, in their order.
    """
    exits, classes = len(manifest.exit_layers), columns.classes
    answer: list[str | int | None] = ["texts", classes] if manifest.problem_type == MULTI_LABEL else ["texts"]
    kinds: dict[str, tuple[int, list[str | int | None]]] = {Outputs.VALUE: (FLOAT, answer)}
    if manifest.problem_type != REGRESSION:
        kinds = {Outputs.LABEL: (INT64, answer), Outputs.PROBABILITY: (FLOAT, answer)}
    kinds |= {
        Outputs.DEPTH: (INT64, ["texts"]),
        Outputs.LOGITS: (FLOAT, ["texts", classes]),
        Outputs.EXIT_LOGITS: (FLOAT, [None, exits, classes]),
        Outputs.EXIT_NUMBER: (INT64, ["texts"]),
    }
    for number in stops[:-1]:
        kinds[Outputs.hidden_at(number)] = FLOAT, [None, None, None]
        kinds[Outputs.notes_at(number)] = FLOAT, [None, columns.width]
    return [tensor_type(str(name), *kind) for name, kind in kinds.items()]
