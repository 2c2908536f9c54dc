"""The answers of a self-exiting graph: from what was noted at every exit to its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION
from exitpoll.decide.policy import Policy
from exitpoll.decide.steps import Step
from exitpoll.engine.exit_graph import Inputs, Outputs
from exitpoll.engine.manifest import Manifest
from exitpoll.export.builder import FLOAT, INT64, GraphBuilder, tensor_type
from exitpoll.export.onnx_operations import OnnxOperations, Value

if TYPE_CHECKING:
    from onnx import ValueInfoProto


@dataclass
class Columns:
    """The columns of notes on texts: where they left (exit number + 1, or 0), answer, logits, what is remembered."""

    answer: int
    classes: int
    remembered: int = 0  # known once the first exit is built

    @property
    def results(self) -> int:
        """All columns but what is remembered."""
        return 1 + self.answer + self.classes

    @property
    def width(self) -> int:
        """All columns."""
        return self.results + self.remembered

    def split(self, builder: GraphBuilder, notes: str) -> list[str]:
        """Return where texts left, their answers and their logits, (texts, columns of these)."""
        sizes = [1, self.answer, self.classes, *([self.remembered] if self.remembered else [])]
        return builder.nodes("Split", notes, builder.constant(sizes), outputs=len(sizes), axis=1)[:3]


@dataclass(frozen=True)
class Stage:
    """What goes from one exit to the next: names of tensors."""

    number: int  # of the exit
    hidden: str  # (texts inside, tokens, width)
    rows: str  # (texts inside,) their rows in the input
    notes: str  # (texts inside, columns)
    stays: str  # (texts that stay,) their places among those inside
    goes_on: str  # () whether they go on to the next exit
    passed: Sequence[str] = ()  # (texts inside, classes) logits of the exits on the way, or of none if not wanted


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


def _answer_of_head(ops: OnnxOperations, problem_type: str, logits: Value) -> Value:
    """Return the answers of a head."""
    if problem_type == REGRESSION:
        return ops.value(logits)
    return ops.argmax(ops.binary(logits) if problem_type == MULTI_LABEL else logits)


def name_outputs(
    builder: GraphBuilder, stages: Sequence[Stage], texts: str, columns: Columns, manifest: Manifest
) -> None:
    """Put together what all texts were answered, and name the outputs.

    Args:
        builder: The graph.
        stages: What is known behind every exit.
        texts: The number of texts, (1,).
        columns: The columns of the notes.
        manifest: What is exported.
    """
    node, constant = builder.node, builder.constant
    notes = node("Concat", *(stage.notes for stage in stages), axis=0)  # (notes, columns)
    rows = node("Concat", *(stage.rows for stage in stages), axis=0)  # (notes,)
    leaving = node("Gather", node("NonZero", columns.split(builder, notes)[0]), constant(0), axis=0)
    places = node("Unsqueeze", node("Gather", rows, leaving), constant([1]))
    shape = node("Concat", texts, constant([columns.width]), axis=0)
    final = node("ScatterND", builder.filled(shape, 0.0), places, node("Gather", notes, leaving, axis=0))
    left_at, answer, logits = columns.split(builder, final)
    number = node("Sub", node("Cast", node("Reshape", left_at, constant([-1])), to=INT64), constant(1))
    outputs = {
        **_answers(builder, answer, logits, manifest.problem_type),
        Outputs.DEPTH: node("Gather", constant(manifest.exit_layers), number),
        Outputs.LOGITS: logits,
        Outputs.EXIT_LOGITS: _exit_logits(builder, stages, rows, notes, texts, columns),
        Outputs.EXIT_NUMBER: number,
    }
    for name, value in outputs.items():
        builder.graph.node.add(op_type="Identity", name=str(name), input=[value], output=[str(name)])


def _answers(builder: GraphBuilder, answer: str, logits: str, problem_type: str) -> dict[Outputs, str]:
    """Return the outputs for an answer: label and probability, or a value."""
    node, flat = builder.node, builder.constant([-1])
    if problem_type == REGRESSION:
        return {Outputs.VALUE: node("Reshape", answer, flat)}
    label = node("Cast", answer, to=INT64)
    if problem_type == MULTI_LABEL:
        return {Outputs.LABEL: label, Outputs.PROBABILITY: node("Sigmoid", logits)}
    probability = node("GatherElements", node("Softmax", logits, axis=-1), label, axis=1)
    return {Outputs.LABEL: node("Reshape", label, flat), Outputs.PROBABILITY: node("Reshape", probability, flat)}


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
        logits = node("Concat", columns.split(builder, notes)[2], *(some for _, _, some in between), axis=0)
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
