"""A whole model as one ONNX graph that exits by itself: it runs only the layers that its texts need.

Between two exits that the policy asks there is an `If` node: where texts stay, its branch picks their rows, runs the
layers up to the next of these exits, asks its head and decides. The branches follow one another and are not nested, and
matrices belong to the outermost graph: so ONNX Runtime keeps each once, and prepacks it. Every node takes time, so a
branch that is not taken has one, and what texts were answered is put together once, at the end.

The levels that scores must reach and the most layers to run are inputs with the policy's as defaults. The engine uses
more inputs, with which a call starts behind an exit and stops at one, or where too few texts stay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.incremental import BROKEN, take_step
from exitpoll.decide.metrics import MULTI_LABEL
from exitpoll.decide.policy import Policy
from exitpoll.decide.strategies import STATIC
from exitpoll.engine.exit_graph import Inputs, Outputs, asked_by, depth_cap, levels_at, stops_of
from exitpoll.engine.manifest import Manifest
from exitpoll.export.answers import (
    PASSED,
    Columns,
    Stage,
    answer_at,
    follows_from_logits,
    name_outputs,
    output_types,
)
from exitpoll.export.builder import BOOL, FLOAT, INT64, GraphBuilder, tensor_type
from exitpoll.export.onnx_operations import OnnxOperations, Shape, Value

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

MANY = 1 << 40  # more layers than there are


class SelfExitingGraph:
    """A self-exiting graph under construction."""

    def __init__(self, folder: Path, manifest: Manifest, policy: Policy, stops: Sequence[int] | None = None) -> None:
        """Prepare to join the graphs of an export.

        Args:
            folder: An export whose parts are separate files.
            manifest: How its files go together.
            policy: When to exit.
            stops: The numbers of the exits at which a call may stop: those that the policy asks, and the last, by
                default.
        """
        self.folder, self.manifest = folder, manifest
        self.stops = list(stops or stops_of(policy, manifest.exit_layers))
        self.asked = asked_by(policy, manifest.exit_layers)
        # Where no text exits early the head answers, whatever the strategy.
        self.policy = policy if policy.threshold is not None else replace(policy, strategy=STATIC, settings={})
        self.builder = GraphBuilder()
        self.ops = OnnxOperations(self.builder)
        self.classes, self.exits = len(manifest.label_names), len(manifest.exit_layers)
        self.models: dict[str, ModelProto] = {}
        self.context: dict[str, str] = {}  # what layers and heads need beside the hidden states, by name
        self.per_text: set[str] = set()  # what of it has a row for every text
        self.remembered, self.columns = self._plan_notes()
        self.tokens = [*manifest.padding, "attention_mask"]

    def _plan_notes(self) -> tuple[dict[str, Shape], Columns]:
        """Return what the strategy remembers from exit to exit, with its shapes, and the columns of the notes."""
        scratch = GraphBuilder()
        logits, policy = Value(scratch, "logits", (self.classes,)), self.policy
        step = take_step(OnnxOperations(scratch), policy.strategy, logits, {}, 0, policy.settings, policy.problem_type)
        remembered = {name: value.shape for name, value in step.memory.items()} | {BROKEN: ()}
        answers = self.classes if policy.problem_type == MULTI_LABEL else 1
        answers = 0 if follows_from_logits(policy, logits, step) else answers
        size = sum(math.prod(shape) for shape in remembered.values())
        return remembered, Columns(answers, self.classes, size)

    def build(self) -> ModelProto:
        """Return the graph."""
        self._compute_context()
        self._prepare_inputs()
        stages: list[Stage] = []
        for number in self.stops:
            stages.append(self._add_stage(number, stages[-1] if stages else None))
        name_outputs(self.ops, stages, self.texts, self.columns, self.manifest)
        outputs = output_types(self.columns, self.manifest, self.stops)
        return self.builder.build("exitpoll", self._input_types(), outputs)

    # ---- inputs -----------------------------------------------------------------------------------------------------

    def _input_types(self) -> list[ValueInfoProto]:
        """Return the inputs: tokens, and those with default values."""
        tokens = [tensor_type(name, INT64, ["texts", "tokens"]) for name in self.tokens]
        width = self.columns.width
        defaults: dict[Inputs, tuple[int, object, list[int | None]]] = {
            Inputs.LEVELS: (FLOAT, levels_at(self.policy, self.manifest.exit_layers), [self.exits]),
            Inputs.MAX_DEPTH: (INT64, depth_cap(self.policy, self.manifest.exit_layers), []),
            Inputs.WITH_LOGITS: (BOOL, False, []),
            Inputs.FIRST: (INT64, 0, []),
            Inputs.ENOUGH: (INT64, 1, []),
            Inputs.HIDDEN: (FLOAT, np.zeros((0, 0, 0), np.float32), [None, None, None]),
            Inputs.NOTES: (FLOAT, np.zeros((0, width), np.float32), [None, width]),
        }
        for name, (_, value, _) in defaults.items():
            self.builder.initializer(str(name), np.asarray(value))
        return tokens + [tensor_type(str(name), kind, shape) for name, (kind, _, shape) in defaults.items()]

    def _prepare_inputs(self) -> None:
        """Number the texts, and find out at which exits all of them leave."""
        node, constant = self.builder.node, self.builder.constant
        self.texts = node("Shape", "attention_mask", start=0, end=1)  # (1,)
        self.all_rows = node("Range", constant(0), node("Squeeze", self.texts), constant(1))  # (texts,)
        layers = [*(self.manifest.exit_layers[number] for number in self.asked), MANY]
        following = [next(after for after in layers if after > layer) for layer in self.manifest.exit_layers]
        self.capped = node("Less", str(Inputs.MAX_DEPTH), constant(following))  # (exits,) where all texts leave

    def _compute_context(self) -> None:
        """Compute what layers and heads need beside the hidden states, and note what has a row for every text."""
        names = self._inline(self.manifest.context, {"mask": "attention_mask"})
        outputs = self.models[self.manifest.context].graph.output
        self.context = {"mask": "attention_mask", "input_ids": "input_ids"} | {
            value.name: name for value, name in zip(outputs, names, strict=True)
        }
        batched = (value for value in outputs if value.type.tensor_type.shape.dim[0].dim_param == "texts")
        self.per_text = {"mask", "input_ids", *(value.name for value in batched)}

    def _inline(self, file: str, inputs: Mapping[str, str]) -> list[str]:
        """Put a graph of the export into the file."""
        return self.builder.inline(self._model(file), inputs, file.removesuffix(".onnx"))

    def _model(self, file: str) -> ModelProto:
        """Load a graph of the export."""
        import onnx

        if file not in self.models:
            self.models[file] = onnx.load(self.folder / file)
        return self.models[file]

    # ---- from exit to exit ------------------------------------------------------------------------------------------

    def _add_stage(self, number: int, before: Stage | None) -> Stage:
        """Add the branch up to an exit, which is taken where texts go on, or start behind the exit before."""
        passed = range(0 if before is None else before.number + 1, number)  # exits on the way that nobody asks
        if before is None and number == self.stops[-1]:  # all texts take this way
            return self._start(passed, number)
        returned = self._returned_by_branch(number, len(passed))
        goes_on = self._starts_at(0) if before is None else before.goes_on
        choice = self.builder.choose(goes_on, [kind for kind, _ in returned.values()])
        with choice.branch(True) as outputs:
            later = self._start(passed, number) if before is None else self._continue(passed, number, before)
            outputs += [later.tensors[name] for name in returned]
        with choice.branch(False) as outputs:
            outputs += [
                self._starts_at(number + 1) if nothing is None else self.builder.local_constant(nothing)
                for _, nothing in returned.values()
            ]
        return Stage.of(number, dict(zip(returned, choice.names, strict=True)))

    def _returned_by_branch(self, number: int, passed: int) -> dict[str, tuple[ValueInfoProto, NDArray | None]]:
        """Return the types of what a branch returns, and what it is where no texts take it, if that is known."""
        # Hidden states and notes are outputs of the whole graph too, under these names.
        returned: dict[str, tuple[ValueInfoProto, NDArray | None]] = {
            "notes": _nothing(Outputs.notes_at(number), FLOAT, 0, self.columns.width),
            "rows": _nothing("", INT64, 0),
        }
        if number != self.stops[-1]:
            returned["hidden"] = _nothing(Outputs.hidden_at(number), FLOAT, 0, 0, 0)
            returned["stays"] = _nothing("", INT64, 0, 0)
            returned["goes_on"] = tensor_type("", BOOL, [None]), None
        return returned | {f"{PASSED} {place}": _nothing("", FLOAT, 0, self.classes) for place in range(passed)}

    def _starts_at(self, number: int) -> str:
        """Return whether the texts of this call start before the layers that lead to an exit, (1,)."""
        return self.builder.node("Equal", str(Inputs.FIRST), self.builder.constant([number]))

    def _start(self, passed: Sequence[int], number: int) -> Stage:
        """Embed all texts and run them to the first exit."""
        [hidden] = self._inline(self.manifest.embedding, {name: name for name in self.tokens})
        return self._run_to_exit(passed, number, hidden, self.all_rows, None)

    def _continue(self, passed: Sequence[int], number: int, before: Stage) -> Stage:
        """Pick the texts that stay, or take those that start here, and run them to the next exit."""
        kinds = [tensor_type("", kind, [None] * axes) for kind, axes in ((FLOAT, 3), (INT64, 1), (FLOAT, 2))]
        choice = self.builder.choose(self._starts_at(before.number + 1), kinds)
        with choice.branch(True) as outputs:
            outputs += [str(Inputs.HIDDEN), self.all_rows, str(Inputs.NOTES)]
        with choice.branch(False) as outputs:
            places = self.builder.node("Gather", before.stays, self.builder.constant(0))
            outputs += [self._pick(name, places) for name in (before.hidden, before.rows, before.notes)]
        hidden, rows, notes = choice.names
        return self._run_to_exit(passed, number, hidden, rows, notes)

    def _run_to_exit(self, passed: Sequence[int], number: int, hidden: str, rows: str, notes: str | None) -> Stage:
        """Add the layers up to an exit, and its head and decision, or nothing more where the policy does not ask it."""
        layers, picked, logits_passed = self.manifest.exit_layers, dict[str, str](), list[str]()
        for on_way in (*passed, number):
            for layer in range(layers[on_way - 1] if on_way else 0, layers[on_way]):
                hidden = self._inline_with(self.manifest.layers[layer], hidden, rows, picked)
            if on_way != number:
                logits_passed.append(self._logits_if_wanted(on_way, hidden, rows))
        if number not in self.asked:
            return replace(self._pass_by(number, hidden, rows, notes), passed=logits_passed)
        logits = Value(
            self.builder, self._inline_with(self.manifest.heads[number], hidden, rows, picked), (self.classes,)
        )
        written, stays, goes_on = self._decide(number, logits, notes)
        return Stage(number, rows, written, logits_passed, hidden, stays, goes_on)

    def _logits_if_wanted(self, number: int, hidden: str, rows: str) -> str:
        """Ask the head of an exit that texts pass, if the logits of all exits are wanted: (texts or none, classes)."""
        choice = self.builder.choose(str(Inputs.WITH_LOGITS), [tensor_type("", FLOAT, [None] * 2)])
        with choice.branch(True) as outputs:
            outputs.append(self._inline_with(self.manifest.heads[number], hidden, rows, {}))
        with choice.branch(False) as outputs:
            outputs.append(self.builder.local_constant(np.zeros((0, self.classes), np.float32)))
        return choice.names[0]

    def _pass_by(self, number: int, hidden: str, rows: str, notes: str | None) -> Stage:
        """Leave all texts inside; the head is asked only if the logits of all exits are wanted."""
        node, constant = self.builder.node, self.builder.constant
        texts = node("Shape", rows)
        choice = self.builder.choose(str(Inputs.WITH_LOGITS), [tensor_type("", FLOAT, [None] * 2)])
        with choice.branch(True) as outputs:
            logits = self._inline_with(self.manifest.heads[number], hidden, rows, {})
            size = self.columns.width - self.classes
            behind = self.builder.filled(node("Concat", texts, constant([size]), axis=0), 0.0)
            if notes is not None:
                behind = self.builder.nodes("Split", notes, constant([self.classes, size]), outputs=2, axis=1)[1]
            outputs.append(node("Concat", logits, behind, axis=1))
        with choice.branch(False) as outputs:
            nothing = node("Concat", texts, constant([self.columns.width]), axis=0)
            outputs.append(self.builder.filled(nothing, 0.0) if notes is None else notes)
        count = node("Squeeze", texts)  # ()
        everyone = node("Unsqueeze", node("Range", constant(0), count, constant(1)), constant([0]))
        goes_on = node("GreaterOrEqual", count, str(Inputs.ENOUGH))
        return Stage(number, rows, choice.names[0], hidden=hidden, stays=everyone, goes_on=goes_on)

    def _inline_with(self, file: str, hidden: str, rows: str, picked: dict[str, str]) -> str:
        """Put a layer or a head into the file, with the rows of what it needs beside the hidden states."""
        needed = {name for node in self._model(file).graph.node for name in node.input} & self.context.keys()
        for name in sorted(needed - picked.keys()):
            batched = name in self.per_text and rows != self.all_rows
            picked[name] = self._pick(self.context[name], rows) if batched else self.context[name]
        [output] = self._inline(file, {"hidden": hidden, **{name: picked[name] for name in needed}})
        return output

    def _pick(self, name: str, rows: str) -> str:
        """Pick rows."""
        return self.builder.node("Gather", name, rows, axis=0)

    def _at(self, vector: str, number: int) -> str:
        """Return the entry of a vector for one exit, ()."""
        return self.builder.node("Gather", vector, self.builder.constant(number))

    # ---- decisions --------------------------------------------------------------------------------------------------

    def _decide(self, number: int, logits: Value, notes: str | None) -> tuple[str, str, str]:
        """Decide at an exit: notes on the texts inside, the places of those that stay, and whether these go on."""
        policy, is_last = self.policy, number == self.exits - 1
        memory = {} if notes is None else self.ops.split(notes, self.columns.results, self.remembered)
        place = self.asked.index(number)  # among the exits that the policy asks
        # NaN from the first exit on whose logits are not finite, 0 before.
        broken = self.ops.sum_of_zeros(logits, memory.get(BROKEN))
        step = take_step(self.ops, policy.strategy, logits, memory, place, policy.settings, policy.problem_type)
        leaves, fired = self._leaves(number, step.score + broken)
        if is_last:  # all texts leave
            left_at = Value(self.builder, self.builder.filled(self.builder.node("Shape", broken.name), number + 1.0))
        else:
            left_at = self.ops.where(leaves, self.ops.number(number + 1.0), self.ops.number(0.0))
        columns = {"logits": logits, "left_at": left_at}
        if self.columns.answer:
            columns["answer"] = answer_at(self.ops, policy, fired, logits, step)
        columns |= {**step.memory, BROKEN: broken}
        written = self.builder.node("Concat", *self.ops.columns(columns), axis=1)
        return written, *(("", "") if is_last else self._stays(leaves))

    def _leaves(self, number: int, score: Value) -> tuple[Value, Value]:
        """Return which texts leave, and which of them because of their score, as NaN does not."""
        fired = score >= Value(self.builder, self._at(str(Inputs.LEVELS), number))
        return Value(self.builder, self.builder.node("Or", fired.name, self._at(self.capped, number))), fired

    def _stays(self, leaves: Value) -> tuple[str, str]:
        """Return the places of the texts that stay, and whether these are enough to go on."""
        node = self.builder.node
        places = node("NonZero", node("Not", leaves.name))  # (2, texts that stay), rows and columns
        return places, node("GreaterOrEqual", node("Shape", places, start=1), str(Inputs.ENOUGH))


def _nothing(name: str, kind: int, *shape: int) -> tuple[ValueInfoProto, NDArray]:
    """Return the type of a tensor whose axes that are 0 here may have any size, and one without any texts."""
    dtype = {FLOAT: np.float32, INT64: np.int64}[kind]
    return tensor_type(name, kind, [size or None for size in shape]), np.zeros(shape, dtype)
