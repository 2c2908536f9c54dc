"""One ONNX file that exits by itself: it runs only the layers that its texts need, without exitpoll.

Behind every exit there is an `If` node: where a text stays, its branch picks the rows of the texts that stay, runs the
layers up to the next exit and puts the new results in place of the old. The branches follow one another and are not
nested, and weights belong to the outermost graph: so ONNX Runtime keeps every weight once, and prepacks it. The levels
that scores must reach and the most layers to run are inputs, with the policy's as defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.incremental import take_step
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION
from exitpoll.decide.policy import Policy
from exitpoll.decide.steps import Step
from exitpoll.engine.manifest import Manifest
from exitpoll.export.builder import GraphBuilder
from exitpoll.export.onnx_operations import FLOAT, OnnxOperations, Shape, Value

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

INT64, BOOL = 7, 9  # data types of ONNX
HISTORY = "history"  # the logits so far
POISON = "poison"  # 0 while all logits are finite, else NaN, which reaches no level


@dataclass(frozen=True)
class Stage:
    """What goes from one exit to the next: names of tensors."""

    hidden: str  # (texts inside, tokens, width)
    rows: str | None  # (texts inside,) their rows in the input; None for all
    carried: str  # (texts inside, columns): what the strategy remembers, logits so far
    shapes: Mapping[str, Shape]  # of what is carried
    stays: str  # (texts inside,) which of them stay; undefined behind the last exit
    any_stays: str  # () whether one does
    results: str  # (texts, width) of all texts: answer, exit number, logits


class SelfExitingGraph:
    """A self-exiting graph under construction."""

    def __init__(self, folder: Path, manifest: Manifest, policy: Policy) -> None:
        """Prepare to join the graphs of an export.

        Args:
            folder: An export whose layers are separate files.
            manifest: How its files go together.
            policy: When to exit.
        """
        self.folder, self.manifest, self.policy = folder, manifest, policy
        self.builder = GraphBuilder()
        self.ops = OnnxOperations(self.builder)
        self.classes, self.exits = len(manifest.label_names), len(manifest.exit_layers)
        self.answer_shape: Shape = (self.classes,) if policy.problem_type == MULTI_LABEL else ()
        self.models: dict[str, ModelProto] = {}
        self.context: dict[str, str] = {}  # the other inputs of layers, by name
        self.per_text: set[str] = set()  # those that have a row for every text

    def build(self) -> ModelProto:
        """Return the graph."""
        from onnx import helper

        builder, columns = self.builder, [*self.manifest.padding, "attention_mask"]
        [hidden] = self._inline(self.manifest.embedding, {name: name for name in columns})
        self._compute_context(hidden)
        self.levels = builder.nodes("Split", "levels", outputs=self.exits, axis=0, num_outputs=self.exits)
        stage = self._run_to_exit(0, hidden, None, {})
        for number in range(1, self.exits):
            stage = self._continue(number, stage)
        self._name_outputs(stage.results)
        builder.initializer("levels", self.policy.levels(self.exits).astype(np.float32))
        most = self.policy.max_depth or self.manifest.exit_layers[-1]
        builder.initializer("max_depth", np.array(most, dtype=np.int64))
        inputs = [helper.make_tensor_value_info(name, INT64, ["texts", "tokens"]) for name in columns]
        inputs.append(helper.make_tensor_value_info("levels", FLOAT, [self.exits]))
        inputs.append(helper.make_tensor_value_info("max_depth", INT64, []))
        return builder.build("exitpoll", inputs, self._output_types())

    def _inline(self, file: str, inputs: Mapping[str, str]) -> list[str]:
        """Put a graph of the export into the file."""
        import onnx

        if file not in self.models:
            self.models[file] = onnx.load(self.folder / file)
        return self.builder.inline(self.models[file], inputs, file.removesuffix(".onnx"))

    def _compute_context(self, hidden: str) -> None:
        """Compute what layers need beside the hidden states, and note what of it has a row for every text."""
        names = self._inline(self.manifest.context, {"hidden": hidden, "mask": "attention_mask"})
        for value, name in zip(self.models[self.manifest.context].graph.output, names, strict=True):
            self.context[value.name] = name
            if value.type.tensor_type.shape.dim[0].dim_param == "texts":
                self.per_text.add(value.name)

    # ---- from exit to exit ------------------------------------------------------------------------------------------

    def _continue(self, number: int, stage: Stage) -> Stage:
        """Add the branch to the next exit, which runs where a text stays."""
        kinds = [(FLOAT, 3), (INT64, 1), (FLOAT, 2), (BOOL, 1), (BOOL, 0), (FLOAT, 2)]
        choice = self.builder.choose(stage.any_stays, [_tensor_type(*kind) for kind in kinds])
        with choice.branch(True) as outputs:
            later = self._run_branch(number, stage)
            assert later.rows is not None
            outputs += [later.hidden, later.rows, later.carried, later.stays, later.any_stays, later.results]
        with choice.branch(False) as outputs:
            empty: list[NDArray] = [
                np.zeros((0, 0, 0), np.float32),
                np.zeros(0, np.int64),
                np.zeros((0, 0), np.float32),
            ]
            empty += [np.zeros(0, np.bool_), np.array(False)]
            outputs += [*map(self.builder.constant, empty), stage.results]
        hidden, rows, carried, stays, any_stays, results = choice.names
        return Stage(hidden, rows, carried, later.shapes, stays, any_stays, results)

    def _run_branch(self, number: int, stage: Stage) -> Stage:
        """Pick the texts that stay, run them to the next exit, and put their results in place of the old."""
        builder = self.builder
        inside = builder.node("Squeeze", builder.node("NonZero", stage.stays), builder.constant([0], np.int64))
        rows = inside if stage.rows is None else self._pick(stage.rows, inside)
        remembered = self.ops.unpack(self._pick(stage.carried, inside), stage.shapes)
        later = self._run_to_exit(number, self._pick(stage.hidden, inside), rows, remembered)
        places = builder.node("Unsqueeze", rows, builder.constant([1], np.int64))
        results = builder.node("ScatterND", stage.results, places, later.results)
        return Stage(later.hidden, rows, later.carried, later.shapes, later.stays, later.any_stays, results)

    def _run_to_exit(self, number: int, hidden: str, rows: str | None, remembered: Mapping[str, Value]) -> Stage:
        """Add the layers up to an exit, its head and its decision; the results are of the texts inside."""
        hidden = self._run_layers(number, hidden, rows)
        mask = "attention_mask" if rows is None else self._pick("attention_mask", rows)
        [name] = self._inline(self.manifest.heads[number], {"hidden": hidden, "mask": mask})
        logits, memory = Value(self.builder, name, (self.classes,)), dict(remembered)
        history, poison = memory.pop(HISTORY, None), memory.pop(POISON, None)
        step = take_step(
            self.ops, self.policy.strategy, logits, memory, number, self.policy.settings, self.policy.problem_type
        )
        nothing = self.ops.sum(logits * 0.0)
        poison = nothing if poison is None else poison + nothing
        history = logits if history is None else self._joined(history, logits)
        score = step.score + poison
        kept = {**step.memory, HISTORY: history, POISON: poison}
        carried, shapes = self.ops.pack(kept), {name: value.shape for name, value in kept.items()}
        results = self._results(number, logits, step, score, history)
        return Stage(hidden, rows, carried, shapes, *self._stays(number, score), results)

    def _run_layers(self, number: int, hidden: str, rows: str | None) -> str:
        """Add the layers from the exit before."""
        context = {
            name: value if rows is None or name not in self.per_text else self._pick(value, rows)
            for name, value in self.context.items()
        }
        layers = self.manifest.exit_layers
        for layer in range(layers[number - 1] if number else 0, layers[number]):
            [hidden] = self._inline(self.manifest.layers[layer], {"hidden": hidden, **context})
        return hidden

    def _stays(self, number: int, score: Value) -> tuple[str, str]:
        """Return which texts stay, because their score is too low and more layers are allowed, and whether one does."""
        node = self.builder.node
        if number == self.exits - 1:
            return self.builder.constant(np.zeros(0, np.bool_)), self.builder.constant(np.bool_(False))
        following = self.builder.constant(self.manifest.exit_layers[number + 1], np.int64)
        allowed = node("GreaterOrEqual", "max_depth", following)
        low = node("Not", node("GreaterOrEqual", score.name, self.levels[number]))  # NaN is low
        stays = node("And", low, allowed)
        highest = node("ReduceMax", node("Cast", stays, to=FLOAT), keepdims=0)
        return stays, node("Cast", highest, to=BOOL)

    def _pick(self, name: str, rows: str) -> str:
        """Pick rows."""
        return self.builder.node("Gather", name, rows, axis=0)

    def _joined(self, first: Value, second: Value) -> Value:
        """Put two matrices side by side."""
        name = self.builder.node("Concat", first.name, second.name, axis=1)
        return Value(self.builder, name, (first.shape[0] + second.shape[0],))

    # ---- results ----------------------------------------------------------------------------------------------------

    def _results(self, number: int, logits: Value, step: Step, score: Value, history: Value) -> str:
        """Return the results of the texts here as if all left here: answer, exit number, logits, (texts, width)."""
        answer = self._answer(number, logits, step, score)
        if not self.answer_shape:
            answer = self.builder.node("Unsqueeze", answer, self.builder.constant([1], np.int64))
        with_exit = self._pad(answer, 1, float(number))
        missing = (self.exits - 1 - number) * self.classes
        complete = self._pad(history.name, missing, np.nan) if missing else history.name
        return self.builder.node("Concat", with_exit, complete, axis=1)

    def _answer(self, number: int, logits: Value, step: Step, score: Value) -> str:
        """Return the answers at an exit: the strategy's or the head's, as the policy says."""
        policy = self.policy
        falls_back = policy.fallback if policy.threshold is not None else "head"
        if policy.answer == falls_back == "strategy":
            return step.answer.name
        by_head = self._answer_of_head(logits)
        if policy.answer == falls_back:
            return by_head.name
        fired = Value(self.builder, self.builder.node("GreaterOrEqual", score.name, self.levels[number]))
        chosen = (step.answer, by_head) if policy.answer == "strategy" else (by_head, step.answer)
        return self.ops.where(fired, *chosen).name

    def _answer_of_head(self, logits: Value) -> Value:
        """Return the answers of a head."""
        if self.policy.problem_type == REGRESSION:
            return self.ops.value(logits)
        if self.policy.problem_type == MULTI_LABEL:
            return self.ops.argmax(self.ops.binary(logits))
        return self.ops.argmax(logits)

    def _pad(self, matrix: str, columns: int, value: float) -> str:
        """Append columns of one value to a matrix."""
        pads = self.builder.constant([0, 0, 0, columns], np.int64)
        return self.builder.node("Pad", matrix, pads, self.builder.constant(value, np.float32))

    # ---- outputs ----------------------------------------------------------------------------------------------------

    def _name_outputs(self, results: str) -> None:
        """Turn results into the outputs of the file: label, probability, depth, logits."""
        node, constant = self.builder.node, self.builder.constant
        sizes = constant([self.classes if self.answer_shape else 1, 1, self.exits * self.classes], np.int64)
        answer, number, flat = self.builder.nodes("Split", results, sizes, outputs=3, axis=1)
        place = node("Cast", number, to=INT64)  # (texts, 1)
        first = constant([1], np.int64)
        depth = node("Gather", constant(self.manifest.exit_layers, np.int64), node("Squeeze", place, first))
        logits = node("Reshape", flat, constant([-1, self.exits, self.classes], np.int64))
        at_exit = node("GatherND", logits, place, batch_dims=1)  # (texts, classes)
        outputs = {"depth": depth, "logits": logits}
        if self.policy.problem_type == REGRESSION:
            outputs["value"] = node("Squeeze", answer, first)
        else:
            label = node("Cast", answer, to=INT64)
            several = bool(self.answer_shape)
            p = node("Sigmoid", at_exit) if several else node("Softmax", at_exit, axis=-1)
            outputs["label"] = label if several else node("Squeeze", label, first)
            outputs["probability"] = p if several else node("GatherND", p, label, batch_dims=1)
        for name, value in outputs.items():
            self.builder.graph.node.add(op_type="Identity", name=name, input=[value], output=[name])

    def _output_types(self) -> list[ValueInfoProto]:
        """Return the names and types of the outputs."""
        from onnx import helper

        answer: Sequence[str | int] = ["texts", *self.answer_shape]
        kinds: dict[str, tuple[int, Sequence[str | int]]] = {"value": (FLOAT, answer)}
        if self.policy.problem_type != REGRESSION:
            kinds = {"label": (INT64, answer), "probability": (FLOAT, answer)}
        kinds |= {"depth": (INT64, ["texts"]), "logits": (FLOAT, ["texts", self.exits, self.classes])}
        return [helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()]


def _tensor_type(kind: int, axes: int) -> ValueInfoProto:
    """Return the type of a tensor of any size."""
    from onnx import helper

    return helper.make_tensor_value_info("", kind, [None] * axes)
