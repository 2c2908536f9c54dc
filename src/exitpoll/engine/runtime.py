"""Runtime: what runs a model one layer at a time; LoadedModel: a runtime with the tokenizer and labels of its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from exitpoll.data.batching import Tokens
from exitpoll.data.overlap import Overlap, TextDigest
from exitpoll.data.splits import Texts
from exitpoll.decide.certificate import Source
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

    @property
    def fingerprint(self) -> str:
        """The hash of the weights."""

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
        """Compute the logits of an exit for all rows, or some: (texts, classes)."""

    def gather(self, parts: Sequence[tuple[State, NDArray | None]]) -> State:
        """Join rows of several states (None for all rows), padded to the longest of them."""


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to read texts."""

    runtime: Runtime
    tokenize: Callable[[Texts], Tokens]  # truncates as in training
    label_names: Sequence[str]  # by class number
    training: TrainingSummary = field(default_factory=dict)  # empty where it is not known

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
