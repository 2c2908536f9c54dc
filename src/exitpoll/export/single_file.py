"""One ONNX file that exits by itself: it runs only the layers that its texts need, without exitpoll.

Every exit is an `If` node: while a text stays, its branch runs the layers up to the next exit, on the rows of the texts
that stay, and puts their results back into their places. Weights belong to the outermost graph, so every weight is in
the file once. The levels that scores must reach and the most layers to run are inputs with the policy's as defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from exitpoll.decide.incremental import take_step
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION
from exitpoll.decide.policy import Policy
from exitpoll.decide.steps import Step
from exitpoll.engine.manifest import Manifest
from exitpoll.export.builder import GraphBuilder
from exitpoll.export.onnx_operations import OnnxOperations, Value

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

LARGEST = 3e38  # a sum of absolute logits above this is not finite
FLOAT, INT64, BOOL = 1, 7, 9  # data types of ONNX


@dataclass(frozen=True)
class Texts:
    """What the texts that are still inside carry from exit to exit: names of tensors, texts first."""

    hidden: str  # (texts, tokens, width)
    mask: str  # (texts, tokens)
    context: Mapping[str, str]  # the other inputs of layers, by name
    memory: Mapping[str, Value]  # of the strategy
    history: str | None = None  # (texts, exits so far · classes) logits
    sane: str | None = None  # (texts,) whether all logits so far are finite


class SingleFile:
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
        self.answer_width = self.classes if policy.problem_type == MULTI_LABEL else 1
        self.width = self.answer_width + 1 + self.exits * self.classes  # of a result: answer, exit, logits
        self.models: dict[str, ModelProto] = {}
        self.per_text: set[str] = set()  # inputs of layers that have a row for every text

    def build(self) -> ModelProto:
        """Return the graph."""
        from onnx import helper

        builder, columns = self.builder, [*self.manifest.padding, "attention_mask"]
        tokens = {name: name for name in columns}
        [hidden] = self._inline(self.manifest.embedding, tokens)
        context = self._context(hidden)
        self.levels = builder.nodes("Split", "levels", outputs=self.exits, axis=0, num_outputs=self.exits)
        result = self._run_to_exit(0, Texts(hidden, "attention_mask", context, {}))
        self._outputs(result)
        default = self.policy.levels(self.exits).astype(np.float32)
        builder.initializer("levels", default)
        depth = self.policy.max_depth or self.manifest.exit_layers[-1]
        builder.initializer("max_depth", np.array(depth, dtype=np.int64))
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

    def _context(self, hidden: str) -> dict[str, str]:
        """Compute what layers need beside the hidden states, and note what of it has a row for every text."""
        names = self._inline(self.manifest.context, {"hidden": hidden, "mask": "attention_mask"})
        outputs = self.models[self.manifest.context].graph.output
        for value in outputs:
            if value.type.tensor_type.shape.dim[0].dim_param == "texts":
                self.per_text.add(value.name)
        return {value.name: name for value, name in zip(outputs, names, strict=True)}

    # ---- from exit to exit ------------------------------------------------------------------------------------------

    def _run_to_exit(self, number: int, texts: Texts) -> str:
        """Add the layers up to an exit, its head and its decision, and all that follows; return the results."""
        layers = self.manifest.exit_layers
        hidden = texts.hidden
        for layer in range(layers[number - 1] if number else 0, layers[number]):
            [hidden] = self._inline(self.manifest.layers[layer], {"hidden": hidden, **texts.context})
        [head] = self._inline(self.manifest.heads[number], {"hidden": hidden, "mask": texts.mask})
        logits = Value(self.builder, head, self.classes)
        step = self._step(number, logits, texts)
        sane = self._sane(logits, texts)
        history = head if texts.history is None else self.builder.node("Concat", texts.history, head, axis=1)
        score = self.builder.node("Where", sane, step.score.name, self.builder.constant(-np.inf, np.float32))
        if number == self.exits - 1:
            return self._result(number, logits, step, score, history)
        stays = self._stays(number, score)
        now = Texts(hidden, texts.mask, texts.context, step.memory, history, sane)
        choice = self.builder.choose(self._any(stays), [self._result_type()])
        with choice.branch(True) as results:
            rows = self.builder.node("NonZero", stays)  # (1, texts that stay)
            later = self._run_to_exit(number + 1, self._pick(now, self._squeeze(rows, 0)))
            here = self._result(number, logits, step, score, history)
            results.append(self.builder.node("ScatterND", here, self.builder.node("Transpose", rows), later))
        with choice.branch(False) as results:
            results.append(self._result(number, logits, step, score, history))
        return choice.names[0]

    def _step(self, number: int, logits: Value, texts: Texts) -> Step:
        """Take the strategy's step."""
        policy = self.policy
        return take_step(self.ops, policy.strategy, logits, texts.memory, number, policy.settings, policy.problem_type)

    def _sane(self, logits: Value, texts: Texts) -> str:
        """Return which texts have had finite logits so far; the others never exit early."""
        axis = self.builder.constant([-1], np.int64)
        size = self.builder.node("ReduceL1", logits.name, axis, keepdims=0)
        sane = self.builder.node("Less", size, self.builder.constant(LARGEST, np.float32))
        return sane if texts.sane is None else self.builder.node("And", sane, texts.sane)

    def _stays(self, number: int, score: str) -> str:
        """Return which texts stay: their score is too low, and more layers are allowed."""
        following = self.builder.constant(self.manifest.exit_layers[number + 1], np.int64)
        allowed = self.builder.node("GreaterOrEqual", "max_depth", following)
        low = self.builder.node("Less", score, self.levels[number])
        return self.builder.node("And", low, allowed)

    def _any(self, flags: str) -> str:
        """Return whether a condition holds for any text."""
        highest = self.builder.node("ReduceMax", self.builder.node("Cast", flags, to=FLOAT), keepdims=0)
        return self.builder.node("Cast", highest, to=BOOL)

    def _pick(self, texts: Texts, rows: str) -> Texts:
        """Keep the rows of some texts."""

        def pick(name: str) -> str:
            return self.builder.node("Gather", name, rows, axis=0)

        assert texts.history is not None
        assert texts.sane is not None
        return Texts(
            pick(texts.hidden),
            pick(texts.mask),
            {name: pick(value) if name in self.per_text else value for name, value in texts.context.items()},
            {name: Value(self.builder, pick(value.name), value.width) for name, value in texts.memory.items()},
            pick(texts.history),
            pick(texts.sane),
        )

    # ---- results ----------------------------------------------------------------------------------------------------

    def _result(self, number: int, logits: Value, step: Step, score: str, history: str) -> str:
        """Return the results of all texts here as if they left here: answer, exit and logits, (texts, width)."""
        answer = self._answer(number, logits, step, score)
        if self.answer_width == 1 and self.policy.problem_type != MULTI_LABEL:
            answer = self.builder.node("Unsqueeze", answer, self.builder.constant([1], np.int64))
        with_exit = self._pad(answer, 1, float(number))
        missing = (self.exits - 1 - number) * self.classes
        complete = self._pad(history, missing, np.nan) if missing else history
        return self.builder.node("Concat", with_exit, complete, axis=1)

    def _answer(self, number: int, logits: Value, step: Step, score: str) -> str:
        """Return the answers at an exit: the strategy's or the head's, as the policy says."""
        policy = self.policy
        falls_back = policy.fallback if policy.threshold is not None else "head"
        if policy.answer == falls_back == "strategy":
            return step.answer.name
        by_head = self._answer_of_head(logits)
        if policy.answer == falls_back:
            return by_head
        fired = self.builder.node("GreaterOrEqual", score, self.levels[number])
        if policy.problem_type == MULTI_LABEL:
            fired = self.builder.node("Unsqueeze", fired, self.builder.constant([1], np.int64))
        chosen = (step.answer.name, by_head) if policy.answer == "strategy" else (by_head, step.answer.name)
        return self.builder.node("Where", fired, *chosen)

    def _answer_of_head(self, logits: Value) -> str:
        """Return the answers of a head."""
        if self.policy.problem_type == REGRESSION:
            return self.ops.value(logits).name
        if self.policy.problem_type == MULTI_LABEL:
            positive = self.builder.node("Greater", logits.name, self.builder.constant(0.0, np.float32))
            return self.builder.node("Cast", positive, to=FLOAT)
        return self.ops.argmax(logits).name

    def _pad(self, matrix: str, columns: int, value: float) -> str:
        """Append columns of one value to a matrix."""
        pads = self.builder.constant([0, 0, 0, columns], np.int64)
        return self.builder.node("Pad", matrix, pads, self.builder.constant(value, np.float32))

    def _squeeze(self, name: str, axis: int) -> str:
        """Remove an axis of size 1."""
        return self.builder.node("Squeeze", name, self.builder.constant([axis], np.int64))

    def _result_type(self) -> ValueInfoProto:
        """Return the type of results."""
        from onnx import helper

        return helper.make_tensor_value_info("result", FLOAT, [None, self.width])

    # ---- outputs ----------------------------------------------------------------------------------------------------

    def _outputs(self, result: str) -> None:
        """Turn results into the outputs of the file: label, probability, depth, logits."""
        node, constant = self.builder.node, self.builder.constant
        sizes = constant([self.answer_width, 1, self.exits * self.classes], np.int64)
        answer, number, flat = self.builder.nodes("Split", result, sizes, outputs=3, axis=1)
        place = node("Cast", number, to=INT64)  # (texts, 1)
        shape = constant([-1, self.exits, self.classes], np.int64)
        self._name("logits", node("Reshape", flat, shape))
        self._name("depth", node("Gather", constant(self.manifest.exit_layers, np.int64), self._squeeze(place, 1)))
        at_exit = node("GatherND", "logits", place, batch_dims=1)  # (texts, classes)
        if self.policy.problem_type == MULTI_LABEL:
            self._name("label", node("Cast", answer, to=INT64))
            self._name("probability", node("Sigmoid", at_exit))
        elif self.policy.problem_type == REGRESSION:
            self._name("value", self._squeeze(answer, 1))
        else:
            label = node("Cast", answer, to=INT64)  # (texts, 1)
            self._name("label", self._squeeze(label, 1))
            self._name("probability", node("GatherND", node("Softmax", at_exit, axis=-1), label, batch_dims=1))

    def _name(self, name: str, value: str) -> None:
        """Give the output of a node the name of an output of the file."""
        self.builder.graph.node[-1].output[0] = name
        assert value != name

    def _output_types(self) -> list[ValueInfoProto]:
        """Return the names and types of the outputs."""
        from onnx import helper

        several: Sequence[str | int] = ["texts", self.classes] if self.policy.problem_type == MULTI_LABEL else ["texts"]
        kinds: dict[str, tuple[int, Sequence[str | int]]] = {"value": (FLOAT, ["texts"])}
        if self.policy.problem_type != REGRESSION:
            kinds = {"label": (INT64, several), "probability": (FLOAT, several)}
        kinds |= {"depth": (INT64, ["texts"]), "logits": (FLOAT, ["texts", self.exits, self.classes])}
        return [helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()]
