"""What runs a model one layer at a time, whatever it is made with, and what goes with it to read texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from exitpoll.data.batching import Tokens
from exitpoll.data.splits import Texts
from exitpoll.decide.certificate import Source
from exitpoll.errors import InputError


class Runtime(Protocol):
    """Runs embeddings, layers and heads on a state of its own kind, which holds the rows of a batch.

    It keeps nothing between calls, so threads may share it.
    """

    name: str  # "torch float32", "onnx int8", …: traces and policies of one do not serve another
    exit_layers: Sequence[int]  # of each exit
    classes: int
    problem_type: str
    shares_layers: bool  # whether texts of different depths can run in one call

    @property
    def fingerprint(self) -> str:
        """What tells the weights from any others."""

    @property
    def threads(self) -> int:
        """How many threads it uses."""

    @property
    def device(self) -> str:
        """Where it runs."""

    def embed(self, tokens: Tokens) -> Any:
        """Make the state that enters layer 1."""

    def advance(self, state: Any, layers: Sequence[int]) -> Any:
        """Run some layers, counted from 1, one after another."""

    def logits_at(self, state: Any, exit_number: int, rows: NDArray | None = None) -> NDArray:
        """Ask the head of an exit about all rows, or some: logits, (texts, classes)."""

    def gather(self, parts: Sequence[tuple[Any, NDArray | None]]) -> Any:
        """Put rows of several states, or all, into one, no longer than the longest of them."""


@dataclass(frozen=True)
class LoadedModel:
    """A model, ready to read texts."""

    runtime: Runtime
    tokenize: Callable[[Texts], Tokens]  # truncated as in training
    label_names: Sequence[str]  # the classes, in their order
    training: Mapping[str, Any] = field(default_factory=dict)  # summary of its training, from training.json

    def check_pairs(self, place: str, *, pairs: bool) -> None:
        """Refuse pairs where the model was trained on single texts, and single texts where on pairs.

        Args:
            place: Where the texts stand.
            pairs: Whether they are pairs.
        """
        if self.training.get("pairs", pairs) != pairs:
            given, trained = ("a pair of texts", "single texts") if pairs else ("a single text", "pairs")
            raise InputError(f"{place}: {given}, where the model was trained on {trained}")

    @property
    def source(self) -> Source:
        """The model and runtime, as traces and policies name them."""
        return Source(fingerprint=self.runtime.fingerprint, runtime=self.runtime.name)
