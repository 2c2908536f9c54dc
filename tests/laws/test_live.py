"""Law 2: whatever the batch size, order or batch composition, a text leaves at the exit that its trace predicts."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from exitpoll import Policy, Texts, record
from exitpoll.decide.fitting import fit
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION
from exitpoll.decide.strategies import STATIC, STRATEGIES
from exitpoll.engine import scheduler
from exitpoll.engine.engine import Engine
from exitpoll.models.encoders import FAMILIES
from tests.exports import NAMES
from tests.samples import settings_of
from tests.tiny import CONFIGS, FILLERS, LAYERS, WORDS

TOLERANCE = 1e-5


def some_texts(count, seed=0):
    """Texts of one to thirty words."""
    chance = np.random.default_rng(seed)
    return [" ".join(chance.choice(WORDS, size=chance.integers(1, 31))) for _ in range(count)]


TEXTS = some_texts(40)


# Exports take long: these families have the same functions as others, and are left out.
SAME_AS = {"camembert": "roberta", "xlm-roberta": "roberta", "modernbert with mean pooling": "modernbert"}
PAIRS = [(name, "torch") for name in CONFIGS] + [(name, "onnx") for name in CONFIGS if name not in SAME_AS]


def test_families_that_are_left_out_have_the_functions_of_others():
    for name, other in SAME_AS.items():
        assert FAMILIES[CONFIGS[name][0]] == FAMILIES[CONFIGS[other][0]]


@pytest.fixture(scope="module", params=PAIRS)
def recorded(request, tmp_path_factory, tiny_models):
    """A tiny model of every family, for torch and for ONNX Runtime, and its trace of the texts."""
    name, runtime = request.param
    ready = tiny_models(name).load(runtime)
    return ready, record(ready, Texts(TEXTS), tmp_path_factory.mktemp("recorded") / "trace", batch_size=7)


def settings_to_try(name):
    """Settings for models that are very sure, and for others that are not."""
    if name == "js_patience":
        return [{"divergence": divergence} for divergence in (0.05, 0.01, 0.1, 0.002, 0.3)]
    if name == "confident_patience":
        return [{"confidence": confidence} for confidence in (0.6, 0.5, 0.8, 0.4, 0.9, 0.99)]
    if name == "hybrid":
        votes = {"strategy": "votes", "threshold": 1.5, "settings": {"k": 0.5}}
        return [{"policies": [votes, {"strategy": "entropy", "threshold": nats}]} for nats in (0.4, 0.8, 0.2, 1.0, 0.1)]
    return [settings_of(name, LAYERS)]


def mixed_policy(name, trace):
    """Return a policy by which texts leave at different exits; all at the second, for static exits."""
    if name == STATIC:
        return Policy(name, 1.5)
    for settings in settings_to_try(name):
        scores = Policy(name, None, settings).opinion(np.asarray(trace.logits)).score[:, :-1]
        values = np.unique(scores)
        at = min(int(0.6 * len(values)), len(values) - 2)
        level = float((values[at] + values[at + 1]) / 2)  # between two scores, so that none is at the threshold
        policy = Policy(name, level * STRATEGIES[name].sign, settings)
        if len(values) > 1 and len(set(policy.decide(trace).exit.tolist())) > 1:
            return policy
    raise AssertionError(f"{name} sends all texts to one exit")


def check(predictions, policy, trace, texts=None):
    """Compare with the replay of the trace; exits may differ only where a score equals the threshold up to rounding."""
    decisions = policy.decide(trace)
    scores = policy.opinion(np.asarray(trace.logits)).score
    near = (np.abs(scores - policy.levels(len(trace.exit_layers))) < TOLERANCE).any(axis=1)
    assert near.mean() < 0.1
    order = range(len(predictions)) if texts is None else texts
    for prediction, row in zip(predictions, order, strict=True):
        if not near[row]:
            assert prediction.depth == decisions.depth[row]
            assert prediction.label == NAMES[decisions.answer[row]]
            assert prediction.probability == pytest.approx(decisions.probability[row], abs=1e-4)


@pytest.mark.parametrize("name", STRATEGIES)
def test_live_equals_replay(recorded, name):
    model, trace = recorded
    policy = mixed_policy(name, trace)
    engine = Engine(model, policy)
    order = np.random.default_rng(0).permutation(len(TEXTS))
    for batch_size in (1, 3, 8, 32):
        check(engine([TEXTS[row] for row in order], batch_size), policy, trace, order)
    plain = dict(engine.stream(TEXTS, 8, refill=False))
    check([plain[row] for row in range(len(TEXTS))], policy, trace)


@pytest.mark.parametrize("threshold", [-1e9, 1e9, None])
def test_all_texts_leave_at_the_first_exit_or_at_the_last(recorded, threshold):
    model, trace = recorded
    policy = Policy("max_prob", threshold)
    for batch_size in (1, 8):
        predictions = Engine(model, policy)(TEXTS, batch_size)
        check(predictions, policy, trace)
        assert {prediction.depth for prediction in predictions} == {1 if threshold == -1e9 else LAYERS}


@pytest.fixture(scope="module", params=["torch", "onnx"])
def bert(request, tiny_models):
    return tiny_models("bert", exits=(1, 3)).load(request.param)


def test_exits_that_are_not_after_every_layer(bert, tmp_path):
    trace = record(bert, Texts(TEXTS), tmp_path / "trace")
    for rules in ({}, {"max_depth": 1}, {"fallback": "head"}, {"answer": "head"}):
        policy = Policy("soft_votes", 0.6, {"k": 0.5}, **rules)
        check(Engine(bert, policy)(TEXTS, 8), policy, trace)


def test_many_texts_of_mixed_length_come_back_in_order(bert, tmp_path):
    texts = some_texts(5_000, seed=1)  # more than a window
    trace = record(bert, Texts(texts), tmp_path / "trace", batch_size=256)
    policy = Policy("max_prob", float(np.median(np.asarray(Policy("max_prob").opinion(trace.logits).score[:, 0]))))
    check(Engine(bert, policy)(texts, 64), policy, trace)


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_multi_label_texts_leave_where_the_trace_predicts(tiny_models, tmp_path, runtime):
    ready = tiny_models("bert", problem_type=MULTI_LABEL).load(runtime)
    trace = record(ready, Texts(TEXTS), tmp_path / "trace")
    scores = np.unique(Policy("max_prob", problem_type=MULTI_LABEL).opinion(np.asarray(trace.logits)).score[:, :-1])
    policy = Policy("max_prob", float(scores[len(scores) // 2 :][:2].mean()), problem_type=MULTI_LABEL)
    replay, predictions = policy.decide(trace), Engine(ready, policy)(TEXTS, 7)
    assert len(set(replay.depth.tolist())) > 1
    assert [prediction.depth for prediction in predictions] == replay.depth.tolist()
    labels = [tuple(name for name, applies in zip(NAMES, row, strict=True) if applies) for row in replay.answer]
    assert [prediction.label for prediction in predictions] == labels
    assert len(set(labels)) > 2


def policy_for_values(name, trace):
    """Return a policy for regression with a threshold between two scores, in the middle."""
    values = np.asarray(trace.logits)
    if STRATEGIES[name].fit_for(REGRESSION) is not None:
        policy = fit(trace, name)
    else:
        steps = np.unique(np.abs(np.diff(values[..., 0], axis=1)))
        settings = {"within": float(steps[len(steps) // 2 :][:2].mean())} if name == "patience" else {}
        policy = Policy(name, None, settings, problem_type=REGRESSION)
    scores = np.unique(policy.opinion(values).score[:, :-1])
    return policy.at(float(scores[max(len(scores) // 2 - 1, 0) :][:2].mean()))


@pytest.mark.parametrize("strategy", [name for name, row in STRATEGIES.items() if row.regression])
@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_regression_texts_leave_where_the_trace_predicts(tiny_models, tmp_path, runtime, strategy):
    ready = tiny_models("bert", labels=("value",), problem_type=REGRESSION).load(runtime)
    trace = record(ready, Texts(TEXTS), tmp_path / "trace")
    policy = policy_for_values(strategy, trace)
    replay, predictions = policy.decide(trace), Engine(ready, policy)(TEXTS, 7)
    assert len(set(replay.depth.tolist())) > 1 or strategy == STATIC
    assert [prediction.depth for prediction in predictions] == replay.depth.tolist()
    np.testing.assert_allclose([prediction.label for prediction in predictions], replay.answer, atol=1e-4)


def test_one_text_and_no_texts(bert):
    engine = Engine(bert, Policy("max_prob", 0.5))
    assert engine([]) == []
    assert len(engine(["good film"])) == 1
    assert [number for number, _ in engine.stream(iter(["good film"]))] == [0]


def test_texts_leave_before_the_last_is_read(bert):
    """The first predictions come while later texts are still unread."""
    read = []

    def source():
        for number in range(20_000):
            read.append(number)
            yield FILLERS[number % len(FILLERS)]

    next(Engine(bert, Policy("max_prob", 0.0)).stream(source(), 32))
    assert len(read) < 20_000


@pytest.mark.parametrize("longest_wait", [0, 5, 40])
def test_the_longest_wait_changes_no_prediction(bert, tmp_path, monkeypatch, longest_wait):
    monkeypatch.setattr(scheduler, "LONGEST_WAIT", longest_wait)
    texts = some_texts(300, seed=2)
    trace = record(bert, Texts(texts), tmp_path / "trace")
    policy = Policy("max_prob", float(np.median(Policy("max_prob").opinion(np.asarray(trace.logits)).score[:, 0])))
    check(Engine(bert, policy)(texts, 16), policy, trace)


def test_no_text_waits_forever(bert, monkeypatch):
    """A text that is longer than all others has none to wait for, and is predicted before the input ends."""
    monkeypatch.setattr(scheduler, "LONGEST_WAIT", 64)
    first = Engine(bert, Policy("max_prob", 0.0))
    long = " ".join(WORDS[:12] * 2)
    doubt = first([long])[0].probability
    short = next(word for word in WORDS if first([word])[0].probability > doubt + 0.01)  # leaves at the first exit
    stream = Engine(bert, Policy("max_prob", doubt + 0.005)).stream(
        (long if number == 0 else short for number in range(20_000)), 8
    )
    before = list(itertools.takewhile(lambda numbered: numbered[0] != 0, stream))
    assert 7 <= len(before) < 6_000


def test_threads_may_share_an_engine_and_engines_a_process(bert, tmp_path):
    trace = record(bert, Texts(TEXTS), tmp_path / "trace")
    policies = [Policy("max_prob", 0.6), Policy("votes", 1.2)]
    engines = [Engine(bert, policy) for policy in policies]
    with ThreadPoolExecutor(4) as pool:
        jobs = [(engine.policy, pool.submit(partial(engine, TEXTS, 5))) for engine in engines * 4]
        for policy, job in jobs:
            check(job.result(), policy, trace)
