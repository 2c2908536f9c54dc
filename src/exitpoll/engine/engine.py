"""Texts in, predictions out: every text stops at the layer where its policy is sure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from numpy.typing import NDArray

from exitpoll.data.batching import Text, batches, lengths_of, pick
from exitpoll.data.splits import Texts
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION
from exitpoll.decide.policy import Policy
from exitpoll.engine.loading import file_of, find_folder, load_model
from exitpoll.engine.runtime import LoadedModel
from exitpoll.engine.scheduler import Batch, Departure, Scheduler
from exitpoll.errors import InputError

WINDOW = 4096  # texts that are tokenized and sorted by length at a time


@dataclass(frozen=True)
class Prediction:
    """What one text was answered."""

    label: str | tuple[str, ...] | float  # a class, every label that applies, or a value
    probability: float | dict[str, float]  # of the class, or of every label; not a number for a value
    depth: int  # layers it went through
    is_finite: bool = True  # whether the head said numbers, without which an answer means nothing


class Engine:
    """A model with its policy, ready to answer; it keeps nothing between calls, so threads may share it."""

    def __init__(self, model: LoadedModel, policy: Policy | None = None) -> None:
        """Put a model and a policy together; `Engine.load` does that for a folder.

        Args:
            model: What `load_model` gives.
            policy: When to leave; never early by default.
        """
        self.model, self.runtime = model, model.runtime
        self.policy = policy or Policy(threshold=None, problem_type=self.runtime.problem_type)
        if self.policy.problem_type != self.runtime.problem_type:
            raise InputError(f"the policy is for {self.policy.problem_type}, the model for {self.runtime.problem_type}")
        if self.policy.certificate is not None:  # the fingerprint of weights takes time to compute
            self.policy.source.check_same(model.source)
        self.policy.check_exits(len(self.runtime.exit_layers))

    @classmethod
    def load(
        cls,
        folder: str | Path,
        runtime: str | None = None,
        *,
        policy: Policy | None = None,
        threads: int | None = None,
        device: str = "cpu",
    ) -> Engine:
        """Open a folder.

        Args:
            folder: What `exitpoll train` or `exitpoll export` wrote, or the hub name of a trained model.
            runtime: "torch", "onnx" or "onnx-int8"; what the folder was written for by default. A trained folder is
                also searched for an export of that name.
            policy: When to leave; the folder's policy.json by default, and without one never early.
            threads: How many threads to use; of torch, in the whole process.
            device: Where torch is to run.

        Returns:
            The engine.
        """
        if policy is not None and not isinstance(policy, Policy):
            raise InputError(f"policy {policy!r:.60} must be a Policy; Policy.load reads one from a file")
        loaded = load_model(folder, runtime, threads=threads, device=device)
        path = file_of(find_folder(folder, runtime), "policy.json") if policy is None else None
        return cls(loaded, policy if path is None else Policy.load(path))

    def __call__(self, texts: Sequence[Text], batch_size: int = 32) -> list[Prediction]:
        """Answer some texts.

        Args:
            texts: Texts, or pairs of texts.
            batch_size: Most texts in a call.

        Returns:
            Predictions in the order of the texts.
        """
        found = dict(self.stream(texts, batch_size))
        return [found[number] for number in range(len(found))]

    def stream(
        self, texts: Iterable[Text], batch_size: int = 32, *, refill: bool = True
    ) -> Iterator[tuple[int, Prediction]]:
        """Answer texts as they leave, with memory for a few thousand of them at a time.

        Args:
            texts: Texts, or pairs of texts; any number of them.
            batch_size: Most texts in a call.
            refill: Whether texts that go on may wait for others, to keep batches full.

        Yields:
            The number of each text, from 0, and its prediction.
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(f"batch_size {batch_size} must be a whole number, at least 1")
        if isinstance(texts, str | bytes):
            raise InputError("give a list of texts, not one text")
        if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
            raise InputError(f"give a list of texts, not {type(texts).__name__}")
        flow = Scheduler(self.runtime, self.policy, batch_size, refill=refill)
        for left in flow.run(self._batches(iter(texts), batch_size)):
            yield from self._predictions(left)

    def _batches(self, texts: Iterator[Text], batch_size: int) -> Iterator[Batch]:
        """Tokenize a window of texts at a time and group those of like length, longest first."""
        done = 0
        while window := list(islice(texts, WINDOW)):
            for number, text in enumerate(window, start=done):
                check_text(f"text {number}", text)
                self.model.check_pairs(f"text {number}", pairs=isinstance(text, tuple))
            tokens = self.model.tokenize(Texts.of(window))
            for rows in batches(lengths_of(tokens), batch_size):
                yield Batch(rows + done, pick(tokens, rows))
            done += len(window)

    def _predictions(self, left: Departure) -> Iterator[tuple[int, Prediction]]:
        """Name the answers."""
        depth = self.runtime.exit_layers[left.exit_number]
        found = zip(left.numbers, left.answer, left.probability, left.is_finite, strict=True)
        for row, answer, probability, is_finite in found:
            yield int(row), Prediction(*self._named(answer, probability), depth, bool(is_finite))

    def _named(self, answer: NDArray, probability: NDArray) -> tuple[str | tuple[str, ...] | float, float | dict]:
        """Turn class numbers into names."""
        if self.runtime.problem_type == REGRESSION:
            return float(answer), float("nan")
        if self.runtime.problem_type == MULTI_LABEL:
            chosen = tuple(name for name, yes in zip(self.model.label_names, answer, strict=True) if yes)
            return chosen, dict(zip(self.model.label_names, map(float, probability), strict=True))
        return self.model.label_names[int(answer)], float(probability)


def check_text(place: str, text: object) -> None:
    """Refuse what is no text.

    Args:
        place: Where it stands.
        text: A text or a pair of texts, one hopes.
    """
    parts = text if isinstance(text, tuple) else (text,)
    if len(parts) != 1 + isinstance(text, tuple) or not all(isinstance(part, str) and part.strip() for part in parts):
        raise InputError(f"{place} is empty, or neither a text nor a pair of texts: {text!r:.60}")
    try:
        "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{place} holds half of a surrogate pair, which is no character") from error
