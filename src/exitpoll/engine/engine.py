"""Engine: a model with its policy, which predicts every text at the exit where the policy is sure."""

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
from exitpoll.models.folder import POLICY

WINDOW = 4096  # texts that are tokenized and sorted by length at a time


@dataclass(frozen=True)
class Prediction:
    """The prediction for one text."""

    label: str | tuple[str, ...] | float  # a class, all labels that apply, or a value
    probability: float | dict[str, float]  # of the class, or of every label; NaN for a value
    depth: int  # layers that were run
    is_finite: bool = True  # False: logits were NaN or infinite, and the prediction means nothing


class Engine:
    """A model with its policy; it keeps nothing between calls, so threads may share it."""

    def __init__(self, model: LoadedModel, policy: Policy | None = None) -> None:
        """Combine a model and a policy; `Engine.load` does so for a folder.

        Args:
            model: What `load_model` returns.
            policy: When to exit; by default never before the last exit.
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
        """Load a model folder with its policy.

        Args:
            folder: What `exitpoll train` or `exitpoll export` wrote, or the name of a trained model on the hub.
            runtime: "torch", "onnx" or "onnx-int8"; the one that the folder was written for by default. A trained
                folder is also searched for an export of that name.
            policy: When to exit; by default policy.json of the folder, and without one never before the last exit.
            threads: How many threads this engine uses; by default as many as torch uses in this process, or for an
                export as many as there are cores.
            device: The device for torch.

        Returns:
            The engine.
        """
        if policy is not None and not isinstance(policy, Policy):
            raise InputError(f"policy {policy!r:.60} must be a Policy; Policy.load reads one from a file")
        loaded = load_model(folder, runtime, threads=threads, device=device)
        path = file_of(find_folder(folder, runtime), POLICY) if policy is None else None
        return cls(loaded, policy if path is None else Policy.load(path))

    def __call__(self, texts: Sequence[Text], batch_size: int = 32) -> list[Prediction]:
        """Predict some texts.

        Args:
            texts: Texts, or pairs of texts.
            batch_size: Most texts in a call.

        Returns:
            Predictions in the order of the texts.
        """
        predictions = dict(self.stream(texts, batch_size))
        return [predictions[number] for number in range(len(predictions))]

    def stream(
        self, texts: Iterable[Text], batch_size: int = 32, *, refill: bool = True
    ) -> Iterator[tuple[int, Prediction]]:
        """Predict any number of texts in constant memory, in the order in which they exit.

        Args:
            texts: Texts, or pairs of texts.
            batch_size: Most texts in a call.
            refill: Whether texts may wait at an exit for others, to keep batches full.

        Yields:
            The number of a text, from 0, and its prediction.
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(f"batch_size {batch_size} must be an integer, at least 1")
        if isinstance(texts, str | bytes):
            raise InputError("give a list of texts, not one text")
        if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
            raise InputError(f"give a list of texts, not {type(texts).__name__}")
        scheduler = Scheduler(self.runtime, self.policy, batch_size, refill=refill)
        for departure in scheduler.run(self._batches(iter(texts), batch_size)):
            yield from self._predictions(departure)

    def _batches(self, texts: Iterator[Text], batch_size: int) -> Iterator[Batch]:
        """Tokenize a window of texts at a time and batch those of similar length, longest first."""
        done = 0
        while window := list(islice(texts, WINDOW)):
            for number, text in enumerate(window, start=done):
                check_text(f"text {number}", text)
                self.model.check_pairs(f"text {number}", pairs=isinstance(text, tuple))
            tokens = self.model.tokenize(Texts.of(window))
            for rows in batches(lengths_of(tokens), batch_size):
                yield Batch(rows + done, pick(tokens, rows))
            done += len(window)

    def _predictions(self, departure: Departure) -> Iterator[tuple[int, Prediction]]:
        """Turn the answers of texts that leave together into predictions."""
        depth = self.runtime.exit_layers[departure.exit_number]
        columns = (departure.numbers, departure.answer, departure.probability, departure.is_finite)
        for number, answer, probability, is_finite in zip(*columns, strict=True):
            yield int(number), Prediction(*self._named(answer, probability), depth, bool(is_finite))

    def _named(
        self, answer: NDArray, probability: NDArray
    ) -> tuple[str | tuple[str, ...] | float, float | dict[str, float]]:
        """Return label and probability of a prediction, with names for class numbers."""
        if self.runtime.problem_type == REGRESSION:
            return float(answer), float("nan")
        if self.runtime.problem_type == MULTI_LABEL:
            chosen = tuple(name for name, applies in zip(self.model.label_names, answer, strict=True) if applies)
            return chosen, dict(zip(self.model.label_names, map(float, probability), strict=True))
        return self.model.label_names[int(answer)], float(probability)


def check_text(place: str, text: object) -> None:
    """Refuse anything but a text or a pair of texts, and texts that are empty.

    Args:
        place: Where it comes from, for the message.
        text: What was given as a text.
    """
    parts = text if isinstance(text, tuple) else (text,)
    expected = 2 if isinstance(text, tuple) else 1
    if len(parts) != expected or not all(isinstance(part, str) and part.strip() for part in parts):
        raise InputError(f"{place} is empty, or neither a text nor a pair of texts: {text!r:.60}")
    try:
        "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{place} holds half of a surrogate pair, which is not a character") from error
