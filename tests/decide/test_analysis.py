"""Oracles, diversity and bounds: by hand, against scikit-learn, and as inequalities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mutual_info_score, roc_auc_score

from exitpoll.decide.analysis import (
    auroc,
    calibration_error,
    consistency_oracle,
    disagreement,
    error_correlation,
    information,
    label_oracle,
    q_statistic,
    static_exit,
    thinking,
)
from exitpoll.decide.numerics import softmax
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError
from tests.samples import multi_label_trace, random_trace, regression_trace

# Four texts, three exits, three classes: what every head predicts, and the labels.
PREDICTED = np.array([[0, 0, 0], [1, 0, 1], [2, 1, 0], [2, 2, 1]])
LABELS = np.array([0, 1, 2, 1])
TRACE = Trace(np.eye(3)[PREDICTED] * 4.0, LABELS)


class TestOracles:
    def test_the_label_oracle_leaves_at_the_first_right_exit(self):
        oracle = label_oracle(TRACE)
        assert oracle.exit.tolist() == [0, 0, 0, 2]
        assert oracle.accuracy == 1
        assert oracle.speedup == pytest.approx(3 / (6 / 4))

    def test_where_no_exit_is_right_it_stays_to_the_end(self):
        assert label_oracle(Trace(TRACE.logits, np.array([1, 2, 0, 0]))).exit.tolist() == [2, 2, 2, 2]

    def test_the_consistency_oracle_gives_the_full_models_answers(self):
        stays, first = consistency_oracle(TRACE), consistency_oracle(TRACE, for_good=False)
        assert stays.exit.tolist() == [0, 2, 2, 2]
        assert first.exit.tolist() == [0, 0, 2, 2]
        for oracle in (stays, first):
            assert oracle.answer.tolist() == PREDICTED[:, -1].tolist()

    def test_the_consistency_oracle_needs_no_labels(self):
        assert consistency_oracle(Trace(TRACE.logits)).exit.tolist() == [0, 2, 2, 2]

    def test_static_exits(self):
        assert [static_exit(TRACE, number).accuracy for number in range(3)] == [0.75, 0.25, 0.75]
        assert static_exit(TRACE, 0).speedup == 3

    @given(seed=st.integers(0, 10**6))
    def test_no_exit_beats_the_label_oracle(self, seed):
        trace = random_trace(seed)
        best = max(static_exit(trace, number).accuracy for number in range(4))
        assert label_oracle(trace).accuracy >= best
        assert consistency_oracle(trace, for_good=False).speedup >= consistency_oracle(trace).speedup >= 1


def test_thinking():
    found = thinking(TRACE)
    assert found.lost.tolist() == [0.25, 0, 0]  # text 3 is right at exit 1 only
    assert found.gained.tolist() == [0.25, 0.5, 0]  # text 4 at exit 1; texts 2 and 4 at exit 2
    assert found.ever_lost == 0.25


def test_disagreement():
    assert disagreement(TRACE).tolist() == [[0, 0.5, 0.5], [0.5, 0, 0.75], [0.5, 0.75, 0]]


def test_q_statistic_and_error_correlation_by_hand():
    right = np.array([[1, 1], [1, 1], [1, 0], [0, 1], [0, 0]], dtype=bool)  # 2 both, 1, 1, 1 none
    trace = Trace(np.where(right[..., None], [4.0, 0.0], [0.0, 4.0]), np.zeros(5, dtype=int))
    assert q_statistic(trace)[0, 1] == pytest.approx((2 * 1 - 1 * 1) / (2 * 1 + 1 * 1))
    assert error_correlation(trace)[0, 1] == pytest.approx(np.corrcoef(right.T)[0, 1])


def test_calibration_error_by_hand():
    # Confidence 0.9 with half of the answers right, then 0.6 with all of them right.
    logits = np.log(np.array([[[0.9, 0.1], [0.6, 0.4]], [[0.9, 0.1], [0.4, 0.6]]]))
    assert calibration_error(Trace(logits, np.array([0, 1]))) == pytest.approx([0.4, 0.4])


def test_auroc_is_scikit_learns():
    trace = random_trace(1)
    confidence = softmax(trace.logits).max(axis=-1).round(1).clip(max=0.9)  # with ties
    tied = Trace(np.log(np.stack([confidence, 1 - confidence], axis=-1)), (trace.labels > 0).astype(int))
    right = tied.logits.argmax(axis=-1) == tied.labels[:, None]
    given_confidence = softmax(tied.logits).max(axis=-1)
    expected = [roc_auc_score(right[:, number], given_confidence[:, number]) for number in range(4)]
    assert auroc(tied) == pytest.approx(expected)


def test_auroc_is_not_defined_for_an_exit_that_is_always_right():
    assert np.isnan(auroc(Trace(np.eye(2)[np.array([[0], [1]])], np.array([0, 1])))).all()


class TestInformation:
    def test_terms_are_scikit_learns(self):
        trace = random_trace(2)
        predicted = trace.logits.argmax(axis=-1)
        found = information(trace)
        expected = [mutual_info_score(predicted[:, number], trace.labels) / np.log(2) for number in range(4)]
        assert found.relevancy == pytest.approx(expected)
        assert found.redundancy[0] == 0
        pairs = [mutual_info_score(predicted[:, 2], predicted[:, j]) / np.log(2) for j in range(2)]
        assert found.redundancy[2] == pytest.approx(max(pairs))

    @given(seed=st.integers(0, 10**6), classes=st.integers(2, 5))
    def test_the_bounds_of_equation_2_hold(self, seed, classes):
        """Of the counts themselves: no combination errs less than Fano's bound, the best no more than the other."""
        trace = random_trace(seed, classes=classes)
        predicted = trace.logits.argmax(axis=-1)
        found = information(trace)
        for number in range(4):
            _, pattern = np.unique(predicted[:, : number + 1], axis=0, return_inverse=True)
            table = np.zeros((pattern.max() + 1, classes))
            np.add.at(table, (pattern.ravel(), trace.labels), 1)
            best = 1 - table.max(axis=1).sum() / len(trace)
            assert found.fano[number] - 1e-9 <= best <= found.hellman_raviv[number] + 1e-9
            assert found.vote_error[number] >= found.fano[number] - 1e-9

    @given(seed=st.integers(0, 10**6))
    def test_more_heads_never_tell_less(self, seed):
        joint = information(random_trace(seed)).joint
        assert (np.diff(joint) >= -1e-9).all()


@pytest.mark.parametrize("function", [label_oracle, thinking, auroc, calibration_error, q_statistic, information])
def test_labels_are_needed(function):
    with pytest.raises(InputError, match="needs labels, and this trace has none"):
        function(Trace(TRACE.logits))


class TestMultiLabel:
    """A set of labels counts as one class."""

    LOGITS = np.array([[[1.0, -1], [1, 1]], [[-1, -1], [1, -1]], [[1, 1], [1, 1]]])
    TRACE = Trace(LOGITS, np.array([[1, 0], [1, 0], [0, 0]]), about={"problem_type": "multi_label_classification"})

    def test_oracles(self):
        assert label_oracle(self.TRACE).exit.tolist() == [0, 1, 1]
        assert label_oracle(self.TRACE).answer.tolist() == [[1, 0], [1, 0], [1, 1]]
        assert consistency_oracle(self.TRACE).exit.tolist() == [1, 1, 0]

    def test_measures(self):
        assert thinking(self.TRACE).lost[0] == pytest.approx(1 / 3)
        assert disagreement(self.TRACE)[0, 1] == pytest.approx(2 / 3)
        trace = multi_label_trace(3)
        found = information(trace)
        assert (found.fano <= found.hellman_raviv).all()
        assert (found.vote_error[0] == (trace.labels != (trace.logits[:, 0] > 0)).any(axis=-1).mean()).all()
        assert ((auroc(trace) > 0.4) & (calibration_error(trace) < 0.5)).all()


def test_values_are_not_classes():
    with pytest.raises(InputError, match="this analysis compares classes"):
        consistency_oracle(regression_trace(0))
    assert static_exit(regression_trace(0), 1).answer.dtype == np.float64
