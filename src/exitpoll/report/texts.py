"""The texts of a report one by one: the answer of every exit, and the exit where the text leaves."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Text
from exitpoll.decide.analysis import static_exit
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, SINGLE_LABEL, predictions
from exitpoll.decide.policy import Policy
from exitpoll.decide.trace import Trace

MOST_TEXTS = 2000  # listed; evenly spaced if there are more
MOST_CHARACTERS = 400  # of a text


class TextRow(TypedDict):
    """One text; answers are numbers into the table's names."""

    text: str
    gold: int
    heads: list[int]  # what the heads of the exits answer
    exit: int  # number of the exit where it leaves, from 0
    answer: int  # of the policy
    full: int  # the full model's answer


class TextTable(TypedDict):
    """What the page's script shows, as JSON."""

    rows: list[TextRow]
    names: list[str]  # of the answers
    symbols: list[str]  # one or a few characters per class; none where answers are label sets or values
    layers: list[int]  # of the exits
    regression: bool


def text_table(texts: Sequence[Text], trace: Trace, policy: Policy, label_names: Sequence[str]) -> TextTable:
    """Build the table of texts.

    Args:
        texts: The texts, in the order of the trace.
        trace: Every exit's logits on them, with labels.
        policy: The policy that decides where they leave.
        label_names: The classes.

    Returns:
        The table, of at most `MOST_TEXTS` texts.
    """
    shown = np.unique(np.linspace(0, len(trace) - 1, min(MOST_TEXTS, len(trace))).astype(int))
    part = trace.select(shown)
    decisions, full = policy.decide(part), static_exit(part, -1)
    heads = predictions(np.asarray(part.logits), trace.problem_type)  # (texts, exits), or (texts, exits, labels)
    gold = part.gold("a table of texts")
    names = _AnswerNames(label_names, trace.problem_type)
    rows = [
        TextRow(
            text=_shortened(texts[number]),
            gold=names.number_of(gold[row]),
            heads=[names.number_of(answer) for answer in heads[row]],
            exit=int(decisions.exit[row]),
            answer=names.number_of(decisions.answer[row]),
            full=names.number_of(full.answer[row]),
        )
        for row, number in enumerate(shown)
    ]
    return TextTable(
        rows=rows,
        names=names.names,
        symbols=_symbols(label_names) if trace.problem_type == SINGLE_LABEL else [],
        layers=list(trace.exit_layers),
        regression=trace.problem_type == REGRESSION,
    )


class _AnswerNames:
    """Numbers answers of any problem type: classes as they are, label sets and values in the order they come up."""

    def __init__(self, label_names: Sequence[str], problem_type: str) -> None:
        self._label_names, self._problem_type = label_names, problem_type
        self.names: list[str] = list(label_names) if problem_type == SINGLE_LABEL else []
        self._numbers: dict[Hashable, int] = {}

    def number_of(self, answer: NDArray) -> int:
        """Return the number of an answer."""
        if self._problem_type == SINGLE_LABEL:
            return int(answer)
        name = self._name(answer)
        key = tuple(answer.tolist()) if self._problem_type == MULTI_LABEL else name
        if key not in self._numbers:
            self._numbers[key] = len(self.names)
            self.names.append(name)
        return self._numbers[key]

    def _name(self, answer: NDArray) -> str:
        """Write a label set or a value."""
        if self._problem_type == MULTI_LABEL:
            return ", ".join(label for label, yes in zip(self._label_names, answer, strict=True) if yes) or "(none)"
        return f"{float(answer):.2f}"


def _symbols(label_names: Sequence[str]) -> list[str]:
    """Return the shortest prefixes of up to three letters that differ between the classes; else their numbers."""
    for length in (1, 2, 3):
        symbols = [name[:length].upper() for name in label_names]
        if len(set(symbols)) == len(symbols):
            return symbols
    return [str(number) for number in range(len(label_names))]


def _shortened(text: Text) -> str:
    """Write a text, or a pair, in at most `MOST_CHARACTERS`."""
    whole = text if isinstance(text, str) else " ⏐ ".join(text)
    return whole if len(whole) <= MOST_CHARACTERS else whole[:MOST_CHARACTERS] + " …"
