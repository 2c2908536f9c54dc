"""Runtime: what runs a model one layer at a time; LoadedModel: a runtime with the tokenizer and labels of its model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard

from numpy.typing import NDArray

from exitpoll.data.batching import Tokens
from exitpoll.data.overlap import Overlap, TextDigest
from exitpoll.data.splits import Texts
from exitpoll.decide.certificate import Source
from exitpoll.decide.metrics import REGRESSION
from exitpoll.decide.policy import Policy
from exitpoll.errors import InputError

State = Any  # the rows of a batch between two layers, in a form of the runtime's own
TrainingSummary = Mapping[str, Any]  # the content of training.json


class Runtime(Protocol):
    """Runs embeddings, layers and heads.

    It keeps nothing between calls, so threads may share it.
    """

    name: str  # "torch float32", "onnx int8", …: traces and policies of one are not valid for another
    packages: Sequence[str]  # the packages that run the model, whose versions a trace states
    exit_layers: Sequence[int]
    classes: int
    problem_type: str
    shares_layers: bool  # whether all layers have the same weights, so that texts at different depths run in one call
    exits_by_itself: bool  # whether it is an ExitingRuntime

    @property
    def fingerprint(self) -> str:
        """The hash of all that decides the logits: weights, exits, tokenizer, maximum length."""

    @property
    def threads(self) -> int:
        """The number of threads that it uses."""

    @property
    def device(self) -> str:
        """The device that it runs on."""

    def embed(self, tokens: Tokens) -> State:
        """Compute the state that enters layer 1."""

    def advance(self, state: State, layers: Sequence[int]) -> State:
        """Run some layers, counted from 1, one after another."""

    def logits_at(self, state: State, exit_number: int, rows: NDArray | None = None) -> NDArray:
        """Compute the logits of an exit for all rows, or some: (texts, classes).

        An exit before layer 1 is asked about states as `embed` returned them: after `advance` or `gather` they need not
        hold the token ids that its head may read.
        """

    def gather(self, parts: Sequence[tuple[State, NDArray | None]]) -> State:
        """Join rows of several states (None for all rows), padded to the longest of them."""


@dataclass(frozen=True)
class Passage:
    """What became of texts in one call past several exits."""

    left: NDArray | None  # (left,) rows of the texts that left; None if all have
    exit_numbers: NDArray  # (left,)
    answer: NDArray  # (left,), or (left, classes)
    probability: NDArray  # in the shape of the answers
    logits: NDArray  # (left, classes) of the exits at which they left
    stay: NDArray | None = None  # (stay,) rows of the texts that stay; None if there are none
    state: State = None  # behind the exit at which the call stopped; holds these texts, and maybe others
    rows: NDArray | None = None  # (stay,) their rows in the state
    passed: int = 0  # exits that they have passed


class ExitingRuntime(Runtime, Protocol):
    """A runtime that can decide by itself, and take texts past several exits in one call."""

    stops: Sequence[int]  # numbers of the exits at which a call may stop
    asked: Sequence[int]  # numbers of the exits that the policy inside asks: the last alone if it never exits early
    load_last_alone: Callable[[], ExitingRuntime] | None  # loads the same model with a policy that asks the last alone

    def check_stops(self, numbers: Sequence[int]) -> None:
        """Refuse to stop at other exits."""

    def decides(self, policy: Policy) -> bool:
        """Return whether it makes the decisions of a policy."""

    def pass_exits(self, state: State, levels: NDArray, max_depth: NDArray, enough: int) -> Passage:
        """Run texts past exits until they have left, or fewer than `enough` of them stay."""

    def pass_alone(self, tokens: Tokens, levels: NDArray, max_depth: NDArray) -> Passage:
        """Run one text past exits until it has left."""

    def run_to(self, tokens: Tokens, exit_number: int) -> None:
        """Run texts to an exit, and ask the exits on the way that the policy inside asks."""

    def exit_logits(self, tokens: Tokens) -> NDArray:
        """Compute the logits of every exit, (texts, exits, classes)."""


def exits_by_itself(runtime: Runtime) -> TypeGuard[ExitingRuntime]:
    """Return whether a runtime can take texts past several exits in one call."""
    return runtime.exits_by_itself


@dataclass(frozen=True)
class Origin:
    """Where a model was loaded from and how, as `load_model` was asked to."""

    folder: str
    runtime: str | None
    threads: int | None
    device: str
    verify: bool


@dataclass(frozen=True, repr=False)
class LoadedModel:
    """A model that is ready to read texts; it is pickled by its folder, if it was loaded from one."""

    runtime: Runtime
    tokenize: Callable[[Texts], Tokens]  # truncates as in training
    label_names: Sequence[str]  # by class number
    training: TrainingSummary = field(default_factory=dict)  # empty where it is not known
    origin: Origin | None = None  # None for a model that was made in memory
    pid: int = field(default_factory=os.getpid)  # the process that loaded it

    def __repr__(self) -> str:
        """Describe the model."""
        return f"LoadedModel({self.description})"

    def __reduce__(self) -> tuple[Callable[..., LoadedModel], tuple[object, ...]]:
        """Pickle by the folder."""
        if self.origin is None:
            raise InputError("a model that was made in memory cannot be pickled; save it, and load it with load_model")
        return _load_from, (self.origin,)

    @property
    def description(self) -> str:
        """Folder, runtime, size and device in words."""
        runtime = self.runtime
        folder = [] if self.origin is None else [repr(self.origin.folder)]
        exits = f"{len(runtime.exit_layers)} exits up to layer {runtime.exit_layers[-1]}"
        outputs = "a value" if runtime.problem_type == REGRESSION else f"{len(self.label_names)} labels"
        used = f"{runtime.threads} threads on {runtime.device}"
        return ", ".join([*folder, runtime.name, exits, outputs, used])

    def check_process(self) -> None:
        """Refuse to run in the fork of the process that loaded the model, where its threads would be waited for."""
        if os.getpid() == self.pid or (self.runtime.threads == 1 and self.runtime.device == "cpu"):
            return
        raise InputError(
            "the model was loaded before this process was forked, and a fork has no threads but one: load it in the "
            "new process, give it threads=1, or start processes with spawn, to which an engine can be sent"
        )

    def check_pairs(self, place: str, *, pairs: bool) -> None:
        """Refuse pairs if the model was trained on single texts, and single texts if it was trained on pairs.

        Args:
            place: Where the texts come from, for the message.
            pairs: Whether they are pairs.
        """
        if self.training.get("pairs", pairs) != pairs:
            given, trained = ("a pair of texts", "single texts") if pairs else ("a single text", "pairs")
            raise InputError(f"{place}: {given}, where the model was trained on {trained}")

    def overlap(self, texts: Texts) -> Overlap | None:
        """Count which texts the model was trained on.

        Args:
            texts: The texts.

        Returns:
            The counts; None if the training texts are not known.
        """
        digest = self.training.get("train_digest")
        return None if digest is None else TextDigest.from_dict(digest).overlap(texts)

    @property
    def source(self) -> Source:
        """The model and runtime, as traces and policies name them."""
        return Source(fingerprint=self.runtime.fingerprint, runtime=self.runtime.name)


def _load_from(origin: Origin) -> LoadedModel:
    """Load a model again, as it was loaded before."""
    from exitpoll.engine.loading import load_model

    options = {name: value for name, value in vars(origin).items() if name != "folder"}
    return load_model(origin.folder, **options)
