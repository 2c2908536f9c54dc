"""The table of texts holds the answer and probability of every exit, and where the policy exits."""

from __future__ import annotations

import json

import numpy as np
import pytest

from exitpoll import Policy, Trace
from exitpoll.decide.numerics import softmax
from exitpoll.report import texts
from exitpoll.report.texts import text_table
from tests.report.samples import LAYERS, NAMES, example

POLICY = Policy("max_prob", 0.9)


def test_every_text_with_the_answers_of_all_exits():
    trace, given = example()
    table, decisions = text_table(given, trace, POLICY, NAMES), POLICY.decide(trace)
    assert (table["layers"], table["names"], table["labels"]) == (list(LAYERS), NAMES, NAMES)
    assert table["number"] == list(range(1, 121))
    assert table["heads"] == trace.logits.argmax(-1).tolist()
    assert table["exit"] == decisions.exit.tolist()
    assert table["answer"] == decisions.answer.tolist()
    assert table["gold"] == trace.labels.tolist()
    assert table["full"] == trace.logits[:, -1].argmax(-1).tolist()
    np.testing.assert_allclose(table["probability"], decisions.probability, atol=5e-4)
    np.testing.assert_allclose(table["confidence"], softmax(trace.logits).max(-1), atol=5e-4)
    assert table["text"][0] == given[0]


def test_the_answer_of_a_policy_has_the_probability_of_the_head_where_it_exits():
    trace, given = example()
    voted = Policy("votes", 5.0)
    table, decisions = text_table(given, trace, voted, NAMES), voted.decide(trace)
    np.testing.assert_allclose(table["probability"], decisions.probability, atol=5e-4)
    assert min(table["probability"]) < 0.5  # a vote may win against the head


def test_more_texts_than_are_shown_are_sampled_evenly(monkeypatch):
    monkeypatch.setattr(texts, "MOST_TEXTS", 5)
    trace, given = example(texts=101)
    table = text_table(given, trace, POLICY, NAMES)
    assert table["number"] == [1, 26, 51, 76, 101]
    assert table["text"][1] == given[25]


@pytest.mark.parametrize(("count", "most"), [(10, 1200), (1000, 600), (5000, 200)])
def test_long_texts_are_cut_the_shorter_the_more_there_are(count, most):
    trace = Trace(np.zeros((count, 1, 2)), np.zeros(count, int))
    table = text_table(["x" * 2000] * count, trace, POLICY, NAMES)
    assert table["text"][0] == "x" * most + " …"


@pytest.mark.parametrize("problem_type", ["multi_label_classification", "regression"])
def test_label_sets_and_values(problem_type):
    trace, given = example(problem_type=problem_type)
    policy = Policy("patience", 1.0, problem_type=problem_type)
    regression = problem_type == "regression"
    table = text_table(given, trace, policy, ["value"] if regression else NAMES)
    assert table["regression"] == regression
    assert (table["probability"] is None) == (table["confidence"] is None) == regression
    assert table["labels"] == ([] if regression else NAMES)
    wanted = {"0.00", "1.00"} if regression else {"bad", "good"}
    assert {table["names"][answer] for answer in table["gold"]} == wanted


def test_the_probability_of_a_label_set_is_that_of_all_its_labels():
    trace = Trace([[[0.0, 2.0]]], [[0, 1]])
    table = text_table(["x"], trace, Policy("max_prob", None, problem_type="multi_label_classification"), NAMES)
    assert (table["names"], table["classes"]) == (["good"], [[1]])
    assert table["probability"] == table["confidence"][0] == [round(0.5 / (1 + np.exp(-2)), 3)]


def test_label_sets_that_are_written_alike_are_told_apart():
    trace = Trace([[[1.0, 1.0, -1.0]], [[-1.0, -1.0, 1.0]]], [[1, 1, 0], [0, 0, 1]])
    policy = Policy("max_prob", None, problem_type="multi_label_classification")
    table = text_table(["x", "y"], trace, policy, ["a", "b", "a, b"])
    assert (table["names"], table["classes"]) == (["a, b", "a, b"], [[0, 1], [2]])
    assert table["gold"] == [0, 1]


def test_texts_without_labels():
    trace, given = example()
    table = text_table(given, Trace(trace.logits, None, LAYERS, trace.about), POLICY, NAMES)
    assert table["gold"] is None
    assert table["full"] == trace.logits[:, -1].argmax(-1).tolist()


def test_pairs_are_shown_with_a_bar_and_control_characters_as_signs():
    trace = Trace(np.zeros((3, 1, 2)), [0, 0, 0])
    table = text_table([("y", "z"), "\x1b[31mred\n\x00\x7f", "\ud800"], trace, Policy("max_prob", None), NAMES)
    assert table["text"] == ["y ⏐ z", "␛[31mred\n␀␡", "?"]
    json.dumps(table).encode()
