"""Texts in, predictions out: every text stops at the layer where its policy is sure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exitpoll.errors import InputError
from exitpoll.flow import Batch, Flow, Left, Runtime, Tokens
from exitpoll.policy import Policy
from exitpoll.tasks import MULTI_LABEL, REGRESSION

WINDOW = 4096  # texts that are tokenised and sorted by length at a time

Text = str | tuple[str, str]  # a text, or a pair


@dataclass(frozen=True)
class Prediction:
    """What one text was answered."""

    label: str | tuple[str, ...] | float  # a class, every label that applies, or a value
    probability: float | dict[str, float]  # of the class, or of every label; not a number for a value
    depth: int  # layers it went through


class Engine:
    """A model with its policy, ready to answer; it keeps nothing between calls, so threads may share it."""

    def __init__(
        self,
        runtime: Runtime,
        tokenise: Callable[[Sequence[Text]], Tokens],
        label_names: Sequence[str],
        policy: Policy | None = None,
    ) -> None:
        """Put the parts together; `Engine.load` does that for a model folder.

        Args:
            runtime: Runs layers and heads.
            tokenise: Turns texts or pairs into token ids, truncated as in training.
            label_names: The classes in their order.
            policy: When to leave; never early by default.
        """
        self.runtime, self.tokenise, self.label_names = runtime, tokenise, list(label_names)
        self.policy = policy or Policy(threshold=None, problem_type=runtime.problem_type)
        if self.policy.problem_type != runtime.problem_type:
            raise InputError(f"the policy is for {self.policy.problem_type}, the model for {runtime.problem_type}")
        self.policy.check_exits(len(runtime.layers))
        self.policy.levels(len(runtime.layers))

    @classmethod
    def load(
        cls, folder: str | Path, *, policy: Policy | None = None, threads: int | None = None, device: str = "cpu"
    ) -> Engine:
        """Open a model folder.

        Args:
            folder: What `exitpoll train` wrote, or a hub name.
            policy: When to leave; the folder's policy.json by default, and without one never early.
            threads: How many threads torch may use, in the whole process.
            device: Where to run.

        Returns:
            The engine.
        """
        import torch

        from exitpoll.opening import open_model
        from exitpoll.recording import fingerprint, runtime_of
        from exitpoll.tokens import tokenise_all
        from exitpoll.torch_runtime import TorchRuntime

        if threads is not None:
            torch.set_num_threads(threads)
        opened = open_model(str(folder))
        path = Path(folder) / "policy.json"
        if policy is None and path.exists():
            policy = Policy.load(path)
        if policy is not None:
            policy.check_source({"model": fingerprint(opened.model), "runtime": runtime_of(opened.model)})
        tokenizer, longest = opened.tokenizer, opened.model.config.max_length
        padding = {
            "input_ids": tokenizer.pad_token_id,
            "attention_mask": 0,
            "token_type_ids": tokenizer.pad_token_type_id,
        }
        runtime = TorchRuntime(opened.model.to(device), padding)
        return cls(runtime, lambda texts: tokenise_all(texts, tokenizer, longest), opened.label_names, policy)

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
        if batch_size < 1:
            raise InputError(f"batch_size {batch_size} must be at least 1")
        flow = Flow(self.runtime, self.policy, batch_size, refill=refill)
        for left in flow.run(self._batches(iter(texts), batch_size)):
            yield from self._predictions(left)

    def _batches(self, texts: Iterator[Text], batch_size: int) -> Iterator[Batch]:
        """Tokenise a window of texts at a time and group those of like length, longest first."""
        done = 0
        while window := list(islice(texts, WINDOW)):
            for number, text in enumerate(window, start=done):
                check_text(f"text {number}", text)
            tokens = self.tokenise(window)
            lengths = np.array([len(ids) for ids in tokens["input_ids"]])
            order = np.argsort(-lengths, kind="stable")
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                yield Batch(rows + done, {name: [column[row] for row in rows] for name, column in tokens.items()})
            done += len(window)

    def _predictions(self, left: Left) -> Iterator[tuple[int, Prediction]]:
        """Name the answers."""
        depth = self.runtime.layers[left.exit_number]
        for row, answer, probability in zip(left.rows, left.answer, left.probability, strict=True):
            yield int(row), Prediction(*self._named(answer, probability), depth)

    def _named(self, answer: NDArray, probability: NDArray) -> tuple[str | tuple[str, ...] | float, float | dict]:
        """Turn class numbers into names."""
        if self.runtime.problem_type == REGRESSION:
            return float(answer), float("nan")
        if self.runtime.problem_type == MULTI_LABEL:
            chosen = tuple(name for name, yes in zip(self.label_names, answer, strict=True) if yes)
            return chosen, dict(zip(self.label_names, map(float, probability), strict=True))
        return self.label_names[int(answer)], float(probability)


def check_text(place: str, text: object) -> None:
    """Refuse what is no text.

    Args:
        place: Where it stands.
        text: A text or a pair of texts, one hopes.
    """
    parts = text if isinstance(text, tuple) else (text,)
    if len(parts) > 2 or not all(isinstance(part, str) and part.strip() for part in parts):
        raise InputError(f"{place} is empty, or neither a text nor a pair of texts: {text!r:.60}")
    try:
        "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{place} holds half of a surrogate pair, which is no character") from error
