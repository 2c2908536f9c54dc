"""Run a self-exiting ONNX graph: one call takes texts past as many exits as pays, and decides inside."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Tokens, lengths_of, mask_of, padded_columns
from exitpoll.decide.metrics import REGRESSION
from exitpoll.decide.policy import Policy
from exitpoll.engine.exit_graph import Inputs, Outputs, asked_by, check_stops, decisions_of
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.onnx_parts import join_hidden
from exitpoll.engine.onnx_session import Graph, session_options, usable_cores
from exitpoll.engine.runtime import Passage
from exitpoll.errors import InputError

MASK = "attention_mask"


@dataclass(frozen=True)
class GraphState:
    """Texts before the first exit, or behind one."""

    lengths: NDArray  # (texts,) tokens without padding, which is on the right
    columns: Mapping[str, NDArray]  # token ids, …: (texts, tokens); behind an exit the mask alone
    passed: int = 0  # exits
    hidden: NDArray | None = None  # (texts, tokens, width) behind an exit
    notes: NDArray | None = None  # (texts, columns) behind an exit: what the graph remembers of these texts
    logits: NDArray | None = None  # (texts, classes) of the exit that was passed last


class OnnxGraph:
    """A self-exiting graph as a runtime."""

    shares_layers, exits_by_itself = False, True

    def __init__(self, folder: Path, manifest: Manifest, threads: int | None) -> None:
        """Load the graph.

        Args:
            folder: The folder of the export.
            manifest: How its files go together.
            threads: How many threads to use; as many as there are cores by default.
        """
        assert manifest.graph is not None
        self.threads, self.device = threads or usable_cores(), "cpu"
        self.name, self.fingerprint, self.padding = manifest.runtime, manifest.fingerprint, manifest.padding
        self.packages: Sequence[str] = ("onnxruntime",)
        self.exit_layers: Sequence[int] = tuple(manifest.exit_layers)
        self.classes, self.problem_type = len(manifest.label_names), manifest.problem_type
        answer = str(Outputs.VALUE if self.problem_type == REGRESSION else Outputs.LABEL)
        self._graph = Graph(folder / manifest.graph, answer, session_options(self.threads, only=True))
        has_classes = self._graph.shapes.get(Outputs.LOGITS, [])[1:] == [self.classes]
        if not has_classes or self._graph.metadata.get("exit_layers") != json.dumps(list(self.exit_layers)):
            stated = f"exits after layers {list(self.exit_layers)} and {self.classes} classes"
            raise InputError(f"'{folder / manifest.graph}' does not have {stated}; export the model again")
        policy = _policy_in(self._graph.metadata, folder / manifest.graph)
        self.decisions, self.asked = decisions_of(policy), asked_by(policy, self.exit_layers)
        self.load_last_alone: Callable[[], OnnxGraph] | None = None
        self.stops: Sequence[int] = json.loads(self._graph.metadata.get("stops", "[]")) or range(len(self.exit_layers))
        self._never = np.full(len(self.exit_layers), np.inf, dtype=np.float32)  # levels
        answers = [Outputs.VALUE] if self.problem_type == REGRESSION else [Outputs.LABEL, Outputs.PROBABILITY]
        self._result_names = [str(name) for name in (Outputs.EXIT_NUMBER, Outputs.LOGITS, *answers)]
        self._state_names = [name for number in self.stops[:-1] for name in _state_names(number)]

    # ---- exit by exit, for decisions that the graph does not make ---------------------------------------------------

    def embed(self, tokens: Tokens) -> GraphState:
        """Pad texts to the longest; they are embedded on the way to the first exit."""
        return GraphState(lengths_of(tokens), padded_columns(tokens, self.padding))

    def advance(self, state: GraphState, layers: Sequence[int]) -> GraphState:
        """Run layers that end at an exit, and ask its head; no layers lead to an exit before the first."""
        number = self.exit_layers.index(layers[-1] if layers else 0)
        self.check_stops([number])
        is_last = number == len(self.exit_layers) - 1
        names = [str(Outputs.EXIT_LOGITS), *([] if is_last else _state_names(number))]
        stop = {**self._stop_at(number), Inputs.WITH_LOGITS: np.array(True)}
        exit_logits, *states = self._run(names, state, stop)
        hidden, notes = states or (None, None)
        return GraphState(state.lengths, state.columns, number + 1, hidden, notes, exit_logits[:, number])

    def check_stops(self, numbers: Sequence[int]) -> None:
        """Refuse to stop at exits that the policy inside does not ask."""
        check_stops(numbers, self.stops, self.exit_layers)

    def logits_at(self, state: GraphState, exit_number: int, rows: NDArray | None = None) -> NDArray:
        """Return the logits of the exit that was passed last, for all rows, or some: (texts, classes)."""
        assert state.logits is not None
        assert exit_number == state.passed - 1
        return state.logits if rows is None else state.logits[rows]

    def gather(self, parts: Sequence[tuple[GraphState, NDArray | None]]) -> GraphState:
        """Join rows of several states (None for all rows), padded to the longest of them."""
        first = parts[0][0]
        if first.hidden is None:
            raise InputError("texts can be joined behind an exit only")
        lengths = _joined([(state.lengths, rows) for state, rows in parts])
        longest = int(lengths.max())
        pieces = [(state.hidden, rows) for state, rows in parts if state.hidden is not None]
        hidden = join_hidden(pieces, len(lengths), longest)
        notes = _joined([(state.notes, rows) for state, rows in parts if state.notes is not None])
        return GraphState(lengths, {MASK: mask_of(lengths, longest)}, first.passed, hidden, notes)

    # ---- past several exits in one call -----------------------------------------------------------------------------

    def decides(self, policy: Policy) -> bool:
        """Return whether the graph makes the decisions of a policy; levels and depth may be others."""
        return decisions_of(policy) == self.decisions

    def pass_exits(self, state: GraphState, levels: NDArray, max_depth: NDArray, enough: int) -> Passage:
        """Run texts past exits until they have left, or fewer than `enough` of them stay."""
        settings: dict[str, NDArray] = {Inputs.LEVELS: levels, Inputs.MAX_DEPTH: max_depth}
        if enough <= 1:  # all texts leave in this call
            return self._all_left(self._run(self._result_names, state, settings))
        settings[Inputs.ENOUGH] = np.array(enough)
        outputs = self._run(self._result_names + self._state_names, state, settings)
        results = self._results(*outputs[: len(self._result_names)])
        numbers, states = results[0], outputs[len(self._result_names) :]
        left, stay = (numbers >= 0).nonzero()[0], (numbers < 0).nonzero()[0]
        numbers, logits, answer, probability = (array[left] for array in results)
        if not len(stay):
            return self._all_left(outputs[: len(self._result_names)])
        return Passage(left, numbers, answer, probability, logits, stay, *self._stopped(state, results[0], states))

    def pass_alone(self, tokens: Tokens, levels: NDArray, max_depth: NDArray) -> Passage:
        """Run one text past exits until it has left: what `embed` and `pass_exits` do, in fewer steps."""
        feed = padded_columns(tokens, self.padding)
        feed[Inputs.LEVELS], feed[Inputs.MAX_DEPTH] = levels, max_depth
        return self._all_left(self._graph.run(self._result_names, feed))

    def _all_left(self, outputs: Sequence[NDArray]) -> Passage:
        """Describe a call in which all texts left."""
        numbers, logits, answer, probability = self._results(*outputs)
        return Passage(None, numbers, answer, probability, logits)

    def _results(self, numbers: NDArray, logits: NDArray, answer: NDArray, *probability: NDArray) -> list[NDArray]:
        """Add the probability, which values do not have."""
        return [numbers, logits, answer, *(probability or [np.full(len(answer), np.nan)])]

    def _stopped(
        self, state: GraphState, numbers: NDArray, states: Sequence[NDArray]
    ) -> tuple[GraphState, NDArray, int]:
        """Return the state behind the exit at which a call stopped, the rows of texts that stay, and the exits passed.

        It stopped at the last exit that texts have reached; these are the texts that stay, and those that left there.
        """
        place = max(place for place in range(len(self.stops) - 1) if len(states[2 * place]))
        stopped = self.stops[place]
        inside = ((numbers < 0) | (numbers == stopped)).nonzero()[0]
        hidden, notes = states[2 * place : 2 * place + 2]
        columns = {MASK: state.columns[MASK][inside]}
        after = GraphState(state.lengths[inside], columns, stopped + 1, hidden, notes)
        return after, (numbers[inside] < 0).nonzero()[0], stopped + 1

    def run_to(self, tokens: Tokens, exit_number: int) -> None:
        """Run texts to an exit, and ask the exits on the way that the policy inside asks."""
        self._run([str(Outputs.EXIT_NUMBER)], self.embed(tokens), self._stop_at(exit_number))

    def _stop_at(self, exit_number: int) -> dict[str, NDArray]:
        """Return inputs with which all texts leave at one exit."""
        return {Inputs.LEVELS: self._never, Inputs.MAX_DEPTH: np.array(self.exit_layers[exit_number])}

    def exit_logits(self, tokens: Tokens) -> NDArray:
        """Compute the logits of every exit, (texts, exits, classes)."""
        settings = {**self._stop_at(len(self.exit_layers) - 1), Inputs.WITH_LOGITS: np.array(True)}
        return self._run([str(Outputs.EXIT_LOGITS)], self.embed(tokens), settings)[0]

    def _run(self, outputs: Sequence[str], state: GraphState, settings: Mapping[str, NDArray]) -> Sequence[NDArray]:
        """Run the graph from where texts are."""
        feed: dict[str, NDArray] = {**state.columns, **settings}
        if state.hidden is not None and state.notes is not None:
            unread = np.zeros((0, 0), dtype=np.int64)  # they are embedded already
            feed |= dict.fromkeys(self.padding, unread)
            feed |= {Inputs.FIRST: np.array(state.passed), Inputs.HIDDEN: state.hidden, Inputs.NOTES: state.notes}
        return self._graph.run(outputs, feed)


def _state_names(number: int) -> tuple[str, str]:
    """Return the outputs with the state behind an exit."""
    return Outputs.hidden_at(number), Outputs.notes_at(number)


def _joined(parts: Sequence[tuple[NDArray, NDArray | None]]) -> NDArray:
    """Join rows of arrays."""
    return np.concatenate([array if rows is None else array[rows] for array, rows in parts])


def _policy_in(metadata: Mapping[str, str], path: Path) -> Policy:
    """Return the policy in the metadata of a graph, whose decisions it makes."""
    try:
        return Policy.from_dict(json.loads(metadata["policy"]))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"'{path}' has no policy in its metadata; export the model again") from error
