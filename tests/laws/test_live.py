"""Law 2: whatever the batch size, order or batch composition, a text leaves at the exit that its trace predicts."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from exitpoll import InputError, Policy, Texts, record
from exitpoll.decide.fitting import fit
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION
from exitpoll.decide.strategies import STATIC, STRATEGIES
from exitpoll.engine import scheduler
from exitpoll.engine.costs import CallCosts
from exitpoll.engine.engine import Engine
from exitpoll.engine.walks import PastExits
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
CASES = [
    *((name, "torch", None) for name in CONFIGS),
    *((name, "onnx", None) for name in CONFIGS if name not in SAME_AS),
    # with an exit before the first layer
    *((name, "torch", "ngrams") for name in ("albert", "bert", "modernbert")),
    *((name, "onnx", "ngrams") for name in ("albert", "bert")),
]


def test_families_that_are_left_out_have_the_functions_of_others():
    for name, other in SAME_AS.items():
        assert FAMILIES[CONFIGS[name][0]] == FAMILIES[CONFIGS[other][0]]


@pytest.fixture(scope="module", params=CASES)
def recorded(request, tmp_path_factory, tiny_models):
    """A tiny model of every family, for torch and for ONNX Runtime, and its trace of the texts."""
    name, runtime, exit_zero = request.param
    ready = tiny_models(name, **({} if exit_zero is None else {"exit_zero": exit_zero})).load(runtime)
    return ready, record(ready, Texts(TEXTS), tmp_path_factory.mktemp("recorded") / "trace", batch_size=7)


def settings_to_try(name, exits):
    """Settings for models that are very sure, and for others that are not."""
    if name == "js_patience":
        return [{"divergence": divergence} for divergence in (0.05, 0.01, 0.1, 0.002, 0.3)]
    if name == "confident_patience":
        return [{"confidence": confidence} for confidence in (0.6, 0.5, 0.8, 0.4, 0.9, 0.99)]
    if name == "hybrid":
        votes = {"strategy": "votes", "threshold": 1.5, "settings": {"k": 0.5}}
        return [{"policies": [votes, {"strategy": "entropy", "threshold": nats}]} for nats in (0.4, 0.8, 0.2, 1.0, 0.1)]
    return [settings_of(name, exits)]


def mixed_policy(name, trace):
    """Return a policy by which texts leave at different exits; all at the second, for static exits."""
    if name == STATIC:
        return Policy(name, 1.5)
    for settings in settings_to_try(name, len(trace.exit_layers)):
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
    decisions, asked = policy.decide(trace), trace.at_exits(policy.exit_layers)
    scores = policy.opinion(np.asarray(asked.logits)).score
    near = (np.abs(scores - policy.levels(len(asked.exit_layers))) < TOLERANCE).any(axis=1)
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


DECIDED = [("bert", name, {}) for name in STRATEGIES] + [
    ("mpnet", "max_prob", {}),
    ("bert", "votes", {"exit_zero": "ngrams"}),
    ("bert", "max_prob", {"exit_zero": "embeddings"}),
]


@pytest.mark.parametrize(("family", "name", "options"), DECIDED)
def test_a_graph_that_decides_by_itself_equals_replay(tiny_models, tmp_path, family, name, options):
    tiny = tiny_models(family, **options)
    trace = record(tiny.load("onnx"), Texts(TEXTS), tmp_path / "trace", batch_size=7)
    policy = mixed_policy(name, trace)
    engine = Engine(tiny.with_policy(policy), policy)
    assert isinstance(engine.walk, PastExits)
    order = np.random.default_rng(0).permutation(len(TEXTS))
    for batch_size in (1, 3, 8, 32):
        check(engine([TEXTS[row] for row in order], batch_size), policy, trace, order)
    plain = dict(engine.stream(TEXTS, 8, refill=False))
    check([plain[row] for row in range(len(TEXTS))], policy, trace)
    capped = Engine(tiny.with_policy(policy), replace(policy, max_depth=2))
    assert isinstance(capped.walk, PastExits)
    check(capped(TEXTS, 8), capped.policy, trace)


@pytest.mark.parametrize("name", ["votes", "max_prob"])
def test_a_graph_asks_the_exits_of_its_policy(tiny_models, tmp_path, name):
    tiny = tiny_models("bert")
    trace = record(tiny.load("onnx"), Texts(TEXTS), tmp_path / "trace", batch_size=7)
    for layers in ((2, LAYERS), (1, LAYERS)):
        settings = {"k": 0.5} if name == "votes" else {"temperatures": [0.5, 2.0]}
        scores = np.unique(Policy(name, None, settings).opinion(trace.at_exits(layers).logits).score[:, 0])
        policy = Policy(name, float(scores[len(scores) // 2 :][:2].mean()) - 1e-3, settings, exit_layers=layers)
        loaded = tiny.with_policy(policy)
        assert isinstance(Engine(loaded, policy).walk, PastExits)
        for batch_size in (1, 8):
            check(Engine(loaded, policy)(TEXTS, batch_size), policy, trace)
        everything = record(loaded, Texts(TEXTS), tmp_path / "again", batch_size=7)  # all heads can be asked
        np.testing.assert_allclose(everything.logits, trace.logits, atol=1e-5)
        other = replace(mixed_policy("entropy", trace.at_exits(layers)), exit_layers=layers)
        check(Engine(loaded, other)(TEXTS, 8), other, trace)
        with pytest.raises(InputError, match="this export can stop after layers"):  # the graph has no others
            Engine(loaded, mixed_policy("entropy", trace))(TEXTS, 8)


def test_many_texts_in_a_graph_that_decides_by_itself(tiny_models, tmp_path):
    """Texts stop, wait, are joined and go on, in calls of all sizes."""
    texts = some_texts(1_000, seed=3)
    tiny = tiny_models("bert")
    trace = record(tiny.load("onnx"), Texts(texts), tmp_path / "trace", batch_size=64)
    policy = mixed_policy("patience", trace)
    engine = Engine(tiny.with_policy(policy), policy)
    for call_tokens, best_tokens in ((2.0, 64), (20.0, 1024)):
        engine.__dict__["costs"] = CallCosts(call_tokens, best_tokens)
        check(engine(texts, 16), policy, trace)


@pytest.mark.parametrize("family", ["bert", "albert"])  # separate layers, and shared ones
@pytest.mark.parametrize("name", ["votes", "patience", "learned", "max_prob"])
@pytest.mark.parametrize("layers", [(2, LAYERS), (1, LAYERS)])
def test_live_equals_replay_where_some_exits_are_asked(tiny_models, tmp_path, family, name, layers):
    model = tiny_models(family).load("torch")
    trace = record(model, Texts(TEXTS), tmp_path / "trace")
    asked = trace.at_exits(layers)
    policy = fit(asked, name) if name == "learned" else Policy(name, None, settings_to_try(name, 2)[0])
    if name == "max_prob":
        policy = replace(policy, settings={"temperatures": [0.5, 2.0]})
    scores = np.unique(policy.opinion(np.asarray(asked.logits)).score[:, 0])
    policy = replace(policy.at(float(scores[len(scores) // 2 :][:2].mean()) - 1e-3), exit_layers=layers)
    heads = []
    monitored = replace(model, runtime=Monitored(model.runtime, heads))
    for batch_size in (1, 8):
        check(Engine(monitored, policy)(TEXTS, batch_size), policy, trace)
    assert set(heads) <= {layer - 1 for layer in layers}
    never = replace(policy, threshold=None)
    check(Engine(monitored, never)(TEXTS, 8), never, trace)


class Monitored:
    """A runtime that notes which heads are asked."""

    def __init__(self, runtime, heads):
        self._runtime, self._heads = runtime, heads

    def __getattr__(self, name):
        return getattr(self._runtime, name)

    def logits_at(self, state, exit_number, rows=None):
        self._heads.append(exit_number)
        return self._runtime.logits_at(state, exit_number, rows)


def test_an_engine_refuses_exits_that_the_model_does_not_have(bert):
    with pytest.raises(InputError, match="no exit after layer 2; exits are after layers 1, 3"):
        Engine(bert, Policy("votes", 1.0, exit_layers=(2, 3)))
    with pytest.raises(InputError, match="must end with 3"):
        Engine(bert, Policy("votes", 1.0, exit_layers=(1,)))


@pytest.mark.parametrize("threshold", [-1e9, 1e9, None])
def test_all_texts_leave_at_the_first_exit_or_at_the_last(recorded, threshold):
    model, trace = recorded
    policy = Policy("max_prob", threshold)
    for batch_size in (1, 8):
        predictions = Engine(model, policy)(TEXTS, batch_size)
        check(predictions, policy, trace)
        assert {prediction.depth for prediction in predictions} == {trace.exit_layers[0 if threshold == -1e9 else -1]}


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
