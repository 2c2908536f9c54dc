"""Deciding one exit at a time equals deciding on whole traces: law 10."""

import numpy as np
import pytest

from exitpoll.decide import strategies
from exitpoll.decide.fitting import candidates
from exitpoll.decide.incremental import BROKEN, HISTORY, Stepper, join, replaced, select
from exitpoll.decide.metrics import MULTI_LABEL, PROBLEM_TYPES, REGRESSION
from exitpoll.decide.policy import Policy
from exitpoll.decide.steps import Memory
from exitpoll.decide.strategies import STRATEGIES
from exitpoll.decide.trace import Trace

TEXTS, EXITS, CLASSES = 60, 6, 4


def make_trace(problem_type, seed=0):
    generator = np.random.default_rng(seed)
    classes = 1 if problem_type == REGRESSION else CLASSES
    logits = generator.normal(size=(TEXTS, EXITS, classes)).cumsum(axis=1).astype(np.float32)
    if problem_type == REGRESSION:
        labels = logits[:, -1, 0].astype(np.float64)
    elif problem_type == MULTI_LABEL:
        labels = (logits[:, -1] > 0).astype(np.int64)
    else:
        labels = logits[:, -1].argmax(axis=-1)
    return Trace(logits, labels, about={"problem_type": problem_type})


def policies(trace):
    """Return policies of all strategies, those that learn fitted, with a threshold somewhere in the middle."""
    for candidate in candidates(trace):
        yield candidate.policy.at(float(np.median(candidate.opinion.score[np.isfinite(candidate.opinion.score)])))


def steps_of(policy, logits):
    stepper = Stepper(policy, logits.shape[1])
    memory: Memory = {}
    for number in range(logits.shape[1]):
        step = stepper.step(logits[:, number], memory, number)
        yield step
        memory = step.memory


@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
def test_steps_equal_the_strategys_opinion_on_the_whole_trace(problem_type):
    trace, tested = make_trace(problem_type), set()
    for policy in policies(trace):
        whole = policy.opinion(trace.logits)
        for number, step in enumerate(steps_of(policy, trace.logits)):
            np.testing.assert_allclose(step.score, whole.score[:, number], rtol=1e-9, atol=1e-9, err_msg=policy.name)
            np.testing.assert_array_equal(step.answer, whole.answer[:, number], err_msg=policy.name)
        tested.add(policy.strategy)
    able = {name for name, row in STRATEGIES.items() if problem_type != REGRESSION or row.regression}
    assert tested == able


@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
def test_a_text_with_broken_logits_never_scores_again(problem_type):
    trace = make_trace(problem_type)
    logits = trace.logits.copy()
    logits[3, 2], logits[7, 0, 0], logits[9, 5] = np.nan, np.inf, -np.inf
    for policy in policies(trace):
        whole = policy.opinion(logits)
        for number, step in enumerate(steps_of(policy, logits)):
            np.testing.assert_allclose(step.score, whole.score[:, number], rtol=1e-9, atol=1e-9, err_msg=policy.name)
        assert step.memory[BROKEN].nonzero()[0].tolist() == [3, 7, 9]


def test_a_strategy_without_a_step_is_asked_about_all_logits_so_far(monkeypatch):
    row = strategies.Strategy(STRATEGIES["votes"].function, "votes, without a step")
    monkeypatch.setitem(STRATEGIES, "plain", row)
    trace, policy = make_trace("single_label_classification"), Policy("plain", 1.5)
    whole = policy.opinion(trace.logits)
    for number, step in enumerate(steps_of(policy, trace.logits)):
        np.testing.assert_array_equal(step.score, whole.score[:, number])
        assert list(step.memory) == [HISTORY]


def test_memory_of_some_texts_is_selected_joined_and_replaced():
    memory = {"run": np.array([1.0, 2.0, 3.0]), "counts": np.arange(6.0).reshape(3, 2)}
    some = select(memory, np.array([2, 0]))
    assert some["run"].tolist() == [3.0, 1.0]
    joined = join([some, {}], [2, 1])
    assert joined["run"].tolist() == [3.0, 1.0, 0.0]
    assert joined["counts"].tolist() == [[4.0, 5.0], [0.0, 1.0], [0.0, 0.0]]
    renewed = replaced(memory, {"run": np.array([9.0]), "last": np.array([4])}, np.array([1]), 3)
    assert renewed["run"].tolist() == [1.0, 9.0, 3.0]
    assert renewed["last"].tolist() == [0, 4, 0]
    assert memory["run"].tolist() == [1.0, 2.0, 3.0]
