"""The table of texts holds the answer of every exit, and where the policy exits."""

from __future__ import annotations

import numpy as np
import pytest

from exitpoll import Policy, Trace
from exitpoll.report import texts
from exitpoll.report.texts import text_table
from tests.report.samples import LAYERS, NAMES, example


def test_every_text_with_the_answers_of_all_exits():
    trace, given = example()
    table = text_table(given, trace, Policy("max_prob", 0.9), NAMES)
    decisions = Policy("max_prob", 0.9).decide(trace)
    assert table["layers"] == list(LAYERS)
    assert (table["names"], table["symbols"]) == (NAMES, ["B", "G"])
    assert [row["heads"] for row in table["rows"]] == trace.logits.argmax(-1).tolist()
    assert [row["exit"] for row in table["rows"]] == decisions.exit.tolist()
    assert [row["answer"] for row in table["rows"]] == decisions.answer.tolist()
    assert [row["gold"] for row in table["rows"]] == trace.labels.tolist()
    assert [row["full"] for row in table["rows"]] == trace.logits[:, -1].argmax(-1).tolist()
    assert table["rows"][0]["text"] == given[0]
    assert table["rows"][3]["text"].endswith(" …")


def test_more_texts_than_are_shown_are_sampled_evenly(monkeypatch):
    monkeypatch.setattr(texts, "MOST_TEXTS", 5)
    trace, given = example(texts=101)
    rows = text_table(given, trace, Policy("max_prob", 0.9), NAMES)["rows"]
    assert [row["text"] for row in rows] == [texts._shortened(given[number]) for number in (0, 25, 50, 75, 100)]


@pytest.mark.parametrize("problem_type", ["multi_label_classification", "regression"])
def test_label_sets_and_values(problem_type):
    trace, given = example(problem_type=problem_type)
    policy = Policy("patience", 1.0, problem_type=problem_type)
    table = text_table(given, trace, policy, ["value"] if problem_type == "regression" else NAMES)
    assert table["symbols"] == []
    assert table["regression"] == (problem_type == "regression")
    wanted = {"0.00", "1.00"} if problem_type == "regression" else {"bad", "good"}
    assert {table["names"][row["gold"]] for row in table["rows"]} == wanted


def test_label_sets_that_are_written_alike_are_told_apart():
    trace = Trace([[[1.0, 1.0, -1.0]], [[-1.0, -1.0, 1.0]]], [[1, 1, 0], [0, 0, 1]])
    policy = Policy("max_prob", None, problem_type="multi_label_classification")
    table = text_table(["x", "y"], trace, policy, ["a", "b", "a, b"])
    assert table["names"] == ["a, b", "a, b"]
    assert [row["gold"] for row in table["rows"]] == [0, 1]


@pytest.mark.parametrize(
    ("names", "symbols"),
    [
        (["bad", "good"], ["B", "G"]),
        (["so-so", "super"], ["SO", "SU"]),
        (["class 1", "class 2"], ["0", "1"]),
    ],
)
def test_symbols_differ(names, symbols):
    trace = Trace(np.zeros((2, 1, 2)), [0, 1])
    assert text_table(["x", ("y", "z")], trace, Policy("max_prob", None), names)["symbols"] == symbols


def test_pairs_are_shown_with_a_bar():
    trace = Trace(np.zeros((1, 1, 2)), [0])
    assert text_table([("y", "z")], trace, Policy("max_prob", None), NAMES)["rows"][0]["text"] == "y ⏐ z"
