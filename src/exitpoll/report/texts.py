"""The texts of a report one by one: the answer and probability of every exit, and the exit where the text leaves."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Text
from exitpoll.decide.analysis import static_exit
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, SINGLE_LABEL, predictions
from exitpoll.decide.numerics import make_finite, sigmoid, softmax
from exitpoll.decide.policy import Policy
from exitpoll.decide.trace import Trace

MOST_TEXTS = 5000  # listed; evenly spaced if there are more
MOST_CHARACTERS = 1200  # of a text; fewer if there are many texts,
LEAST_CHARACTERS = 200  # but not fewer than these,
CHARACTERS = 600_000  # so that all together stay about below this
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"} | {127: 0x2421}


class TextTable(TypedDict):
    """What the page's script shows; the columns have one entry per text, and answers are numbers into `names`."""

    number: list[int]  # of the text in the data, from 1
    text: list[str]
    gold: list[int] | None  # None where there are no labels
    answer: list[int]  # of the policy
    probability: list[float] | None  # of the answer, by the head where the text leaves; None for values
    exit: list[int]  # number of the exit where it leaves, from 0
    full: list[int]  # the full model's answer
    heads: list[list[int]]  # what the heads of the exits answer
    confidence: list[list[float]] | None  # the probability that every head gives to its answer; None for values
    names: list[str]  # of the answers
    classes: list[list[int]]  # numbers of the labels that an answer stands for
    labels: list[str]  # names of the labels
    layers: list[int]  # of the exits
    regression: bool


def text_table(texts: Sequence[Text], trace: Trace, policy: Policy, label_names: Sequence[str]) -> TextTable:
    """Build the table of texts.

    Args:
        texts: The texts, in the order of the trace.
        trace: Every exit's logits on them.
        policy: The policy that decides where they leave.
        label_names: The classes.

    Returns:
        The table, of at most `MOST_TEXTS` texts.
    """
    shown = np.unique(np.linspace(0, len(trace) - 1, min(MOST_TEXTS, len(trace))).astype(int))
    part = trace.select(shown)
    decisions, full = policy.decide(part), static_exit(part, -1)
    logits, regression = np.asarray(part.logits), trace.problem_type == REGRESSION
    heads = predictions(logits, trace.problem_type)  # (texts, exits), or (texts, exits, labels)
    left = logits[np.arange(len(part)), decisions.exit][:, None]  # (texts, 1, classes)
    names = _AnswerNames(label_names, trace.problem_type)
    gold = None if trace.labels is None else [names.number_of(label) for label in part.gold("a table of texts")]
    most = int(np.clip(CHARACTERS // max(1, len(shown)), LEAST_CHARACTERS, MOST_CHARACTERS))
    return TextTable(
        number=(shown + 1).tolist(),
        text=[_shortened(texts[number], most) for number in shown],
        gold=gold,
        answer=[names.number_of(answer) for answer in decisions.answer],
        probability=None if regression else _probability(left, decisions.answer[:, None], part)[:, 0].tolist(),
        exit=decisions.exit.tolist(),
        full=[names.number_of(answer) for answer in full.answer],
        heads=[[names.number_of(answer) for answer in row] for row in heads],
        confidence=None if regression else _probability(logits, heads, part).tolist(),
        names=names.names,
        classes=names.classes,
        labels=[] if regression else list(label_names),
        layers=list(trace.exit_layers),
        regression=regression,
    )


def _probability(logits: NDArray, answers: NDArray, trace: Trace) -> NDArray:
    """Return the probabilities that heads give to answers, of all labels together, (texts, exits)."""
    if trace.problem_type == MULTI_LABEL:
        chances = sigmoid(make_finite(logits))
        return np.where(answers > 0, chances, 1 - chances).prod(axis=-1).round(3)
    return np.take_along_axis(softmax(logits), answers[..., None], axis=-1)[..., 0].round(3)


class _AnswerNames:
    """Numbers answers of any problem type: classes as they are, label sets and values in the order they come up."""

    def __init__(self, label_names: Sequence[str], problem_type: str) -> None:
        single = problem_type == SINGLE_LABEL
        self._label_names, self._problem_type = label_names, problem_type
        self.names: list[str] = list(label_names) if single else []
        self.classes: list[list[int]] = [[number] for number in range(len(label_names))] if single else []
        self._numbers: dict[Hashable, int] = {}

    def number_of(self, answer: NDArray) -> int:
        """Return the number of an answer."""
        if self._problem_type == SINGLE_LABEL:
            return int(answer)
        present = np.flatnonzero(answer).tolist() if self._problem_type == MULTI_LABEL else []
        name = self._name(answer, present)
        key = tuple(present) if self._problem_type == MULTI_LABEL else name
        if key not in self._numbers:
            self._numbers[key] = len(self.names)
            self.names.append(name)
            self.classes.append(present)
        return self._numbers[key]

    def _name(self, answer: NDArray, present: Sequence[int]) -> str:
        """Write a label set or a value."""
        if self._problem_type == MULTI_LABEL:
            return ", ".join(self._label_names[number] for number in present) or "(none)"
        return f"{float(answer):.2f}"


def _shortened(text: Text, most: int) -> str:
    """Write a text, or a pair, in at most so many characters, control characters as visible signs."""
    whole = text if isinstance(text, str) else " ⏐ ".join(text)
    whole = whole.encode("utf-8", "replace").decode().translate(_VISIBLE)  # a lone surrogate cannot be written
    return whole if len(whole) <= most else whole[:most] + " …"
