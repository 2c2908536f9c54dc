"""Losses by class and length, and confusions, are those of the answers; intervals hold for few texts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from exitpoll import Policy, Trace
from exitpoll.decide.analysis import static_exit
from exitpoll.decide.scoring import labelled_by_full_model
from exitpoll.report.breakdowns import (
    Confusion,
    Decided,
    by_class,
    by_length,
    confusion_matrix,
    lengths_of_texts,
    paired_difference,
    top_confusions,
)
from tests.samples import multi_label_trace, random_trace, regression_trace


def decide(trace, policy):
    return Decided(trace, policy.decide(trace), static_exit(trace, -1))


@pytest.fixture
def decided():
    return decide(random_trace(0, texts=200), Policy("max_prob", 0.6))


def test_by_class(decided):
    gold, answer, full = decided.gold, decided.policy.answer, decided.full.answer
    slices = by_class(decided, ["a", "b", "c", "never seen"])
    assert {part.name for part in slices} == {"a", "b", "c"}
    assert [part.loss.value for part in slices] == sorted((part.loss.value for part in slices), reverse=True)
    for part in slices:
        rows = gold == part.number
        assert part.texts == rows.sum()
        assert part.score == (answer == gold)[rows].mean()
        assert part.full_score == (full == gold)[rows].mean()
        assert part.loss.value == pytest.approx(part.full_score - part.score)
        assert part.loss.low < part.loss.value < part.loss.high
        assert part.depth == decided.policy.depth[rows].mean()


def test_answers_of_the_full_model_can_only_be_lost():
    trace = labelled_by_full_model(random_trace(0))
    decided = replace(decide(trace, Policy("max_prob", 0.6)), labelled=False)
    for part in (*by_class(decided, ["a", "b", "c"]), *by_length(decided, np.arange(60))):
        assert part.full_score == 1
        assert 0 <= part.loss.low <= part.loss.value == pytest.approx(1 - part.score)


def test_by_label_of_several():
    trace = multi_label_trace(0)
    decided = decide(trace, Policy("max_prob", 0.6, problem_type=trace.problem_type))
    [first] = [part for part in by_class(decided, ["a", "b", "c"]) if part.number == 0]
    rows = trace.labels[:, 0] == 1
    assert first.texts == rows.sum()
    assert first.score == decided.policy.answer[rows, 0].mean()
    assert (confusion_matrix(decided), top_confusions(decided)) == (None, [])


def test_by_length(decided):
    lengths = np.arange(200) % 50 + 1
    slices = by_length(decided, lengths)
    assert [part.name for part in slices] == ["1 to 10", "11 to 20", "21 to 30", "31 to 40", "41 to 50"]
    assert [part.texts for part in slices] == [40] * 5
    assert sum(part.score * part.texts for part in slices) == pytest.approx(200 * decided.policy.accuracy)


def test_texts_of_the_same_length_are_one_slice(decided):
    assert [(part.name, part.texts) for part in by_length(decided, np.full(200, 7))] == [("7", 200)]


def test_errors_of_values_by_length():
    trace = regression_trace(0)
    decided = decide(trace, Policy("patience", 1.0, {"within": 0.5}, problem_type="regression"))
    [part] = by_length(decided, np.full(60, 3))
    assert part.score == pytest.approx(np.abs(trace.labels - decided.policy.answer).mean())
    assert part.loss.value == pytest.approx(part.score - part.full_score)
    assert by_class(decided, ["value"]) == []


def test_lengths_are_words_of_both_texts():
    assert lengths_of_texts(["one two", ("three", "four five")]).tolist() == [2, 3]


def test_confusions():
    logits = np.eye(3)[[[0, 0], [1, 0], [1, 0], [2, 2], [0, 2]]]  # two exits
    decided = decide(Trace(logits, [0, 0, 0, 2, 1]), Policy("max_prob", 0.1))
    assert confusion_matrix(decided).tolist() == [[1, 2, 0], [1, 0, 0], [0, 0, 1]]
    assert top_confusions(decided) == [Confusion(0, 1, 2, 2), Confusion(1, 0, 1, 0)]


def test_no_matrix_of_many_classes():
    trace = random_trace(0, classes=13)
    assert confusion_matrix(decide(trace, Policy("max_prob", 0.5))) is None


class TestPairedDifference:
    def test_by_hand(self):
        first, second = np.array([True] * 5 + [False] * 5), np.array([True] * 3 + [False] * 7)
        difference = paired_difference(first, second)  # 2 of 10 only the first
        more, less = 3 / 12, 1 / 12
        reach = 1.959964 * np.sqrt((more + less - (more - less) ** 2) / 12)
        assert difference.value == 0.2
        assert (difference.low, difference.high) == pytest.approx((more - less - reach, more - less + reach), abs=1e-6)

    def test_few_texts_without_a_difference_prove_little(self):
        difference = paired_difference(np.ones(5, bool), np.ones(5, bool))
        assert difference.value == 0
        assert difference.low < -0.2
        assert difference.high > 0.2

    def test_it_covers(self):
        generator, shares, hits = np.random.default_rng(0), [0.9, 0.06, 0.02, 0.02], 0
        for _ in range(1000):
            kind = generator.choice(4, size=40, p=shares)  # both, only first, only second, neither
            difference = paired_difference(kind < 2, (kind == 0) | (kind == 2))
            hits += difference.low <= 0.04 <= difference.high
        assert hits >= 930
