"""An explanation ends where the engine ends, and shows what the exits on the way said."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from exitpoll import Engine, Explanation, InputError, Policy, Prediction, Texts
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION
from exitpoll.decide.strategies import STRATEGIES
from exitpoll.engine.explain import AskedExit
from exitpoll.engine.onnx_runtime import load_exported
from exitpoll.engine.record import record_in_memory
from exitpoll.engine.walks import PastExits
from tests.exports import NAMES
from tests.laws.test_live import mixed_policy, policy_for_values, some_texts
from tests.numbers_runtime import numbers_model

TEXTS = some_texts(12, seed=5)


def check(engine, trace, texts=TEXTS):
    """Compare explanations with what the engine predicts, and with the logits of all exits."""
    policy = engine.policy
    asked = trace.at_exits(policy.exit_layers)
    opinion, levels = policy.opinion(np.asarray(asked.logits)), policy.levels(len(asked.exit_layers))
    sign = STRATEGIES[policy.strategy].sign_for(policy.problem_type)
    explanations = []
    for row, text in enumerate(texts):
        explanation = engine.explain(text)
        assert repr([explanation.prediction]) == repr(engine([text]))  # NaN is not equal to NaN
        depths = [layer for layer in asked.exit_layers if layer <= explanation.prediction.depth]
        assert [view.depth for view in explanation.exits] == depths
        scores = [view.score for view in explanation.exits]
        np.testing.assert_allclose(scores, sign * opinion.score[row, : len(depths)], atol=1e-4)
        np.testing.assert_allclose([view.threshold for view in explanation.exits], sign * levels[: len(depths)])
        assert (sign * np.array(scores) < levels[: len(depths)] + 1e-5)[:-1].all()  # it left at none of these
        assert explanation.reason.startswith("score ") or len(depths) == policy.ends(asked.exit_layers).argmax() + 1
        assert explanation.to_dict() == json.loads(json.dumps(explanation.to_dict(), allow_nan=False))
        explanations.append(explanation)
    return explanations


@pytest.fixture(scope="module", params=["torch", "onnx", "onnx in parts"])
def recorded(request, tiny_models):
    tiny = tiny_models("bert")
    model = load_exported(tiny.graphs) if request.param == "onnx in parts" else tiny.load(request.param)
    return model, record_in_memory(model, Texts(TEXTS))


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy(recorded, name):
    model, trace = recorded
    policy = mixed_policy(name, trace)
    for explanation in check(Engine(model, policy), trace):
        for number, view in enumerate(explanation.exits):
            row = TEXTS.index(explanation.text)
            assert view.label == NAMES[trace.logits[row, number].argmax()]
            assert view.answer == NAMES[policy.opinion(trace.logits).answer[row, number]]
        if policy.answer == "strategy":
            assert explanation.exits[-1].answer == explanation.prediction.label


@pytest.mark.parametrize("name", ["votes", "entropy"])
def test_a_graph_that_decides_by_itself(tiny_models, name):
    tiny = tiny_models("bert")
    trace = record_in_memory(tiny.load("onnx"), Texts(TEXTS))
    engine = Engine(tiny.with_policy(mixed_policy(name, trace)), mixed_policy(name, trace))
    assert isinstance(engine.walk, PastExits)
    assert len({explanation.prediction.depth for explanation in check(engine, trace)}) > 1


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_some_exits_and_exit_zero(tiny_models, runtime):
    model = tiny_models("bert", exit_zero="ngrams").load(runtime)
    trace = record_in_memory(model, Texts(TEXTS))
    for layers in (None, (0, 2, 3), (1, 3)):
        asked = trace.at_exits(layers)
        threshold = float(np.median(Policy("max_prob").opinion(np.asarray(asked.logits)).score[:, 0]))
        check(Engine(model, Policy("max_prob", threshold, exit_layers=layers)), trace)
    assert Engine(model, Policy("max_prob", 0.0)).explain(TEXTS[0]).prediction.depth == 0


def test_one_threshold_for_every_exit(recorded):
    model, trace = recorded
    check(Engine(model, Policy("max_prob", [0.9, 0.5, 0.0])), trace)


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_several_labels(tiny_models, runtime):
    model = tiny_models("bert", problem_type=MULTI_LABEL).load(runtime)
    trace = record_in_memory(model, Texts(TEXTS))
    scores = Policy("max_prob", problem_type=MULTI_LABEL).opinion(np.asarray(trace.logits)).score[:, 0]
    engine = Engine(model, Policy("max_prob", float(np.median(scores)), problem_type=MULTI_LABEL))
    for explanation in check(engine, trace):
        assert set(explanation.exits[0].probability) == set(NAMES)
        assert (", ".join(explanation.prediction.label) or "none") in str(explanation)


@pytest.mark.parametrize("strategy", [name for name, row in STRATEGIES.items() if row.regression])
@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_values(tiny_models, runtime, strategy):
    model = tiny_models("bert", labels=("value",), problem_type=REGRESSION).load(runtime)
    trace = record_in_memory(model, Texts(TEXTS))
    explanation = check(Engine(model, policy_for_values(strategy, trace)), trace)[0]
    assert explanation.exits[-1].label == pytest.approx(explanation.prediction.label)
    assert "probability" not in str(explanation)
    assert explanation.to_dict()["probability"] is None


def test_reasons(recorded):
    model, _ = recorded
    text = TEXTS[0]
    sure = Engine(model, Policy("max_prob", 0.0)).explain(text)
    assert sure.reason == f"score {sure.exits[0].score:.4g} ≥ 0"
    entropy = Engine(model, Policy("entropy", 2.0)).explain(text)
    assert entropy.reason == f"score {entropy.exits[0].score:.4g} ≤ 2"
    unsure = Policy("max_prob", 1.1)
    assert Engine(model, unsure).explain(text).reason == "last exit"
    assert Engine(model, replace(unsure, max_depth=2)).explain(text).reason == "max depth 2"
    for policy, depth in ((Policy(), 3), (Policy(max_depth=1), 1)):
        never = Engine(model, policy).explain(text)
        assert [(view.depth, view.score, view.threshold) for view in never.exits] == [(depth, None, None)]
        assert "score" not in str(never)
    near = Engine(model, Policy("max_prob", [sure.exits[0].score - 1e-7, 0, 0])).explain(text)
    above, below = near.reason.removeprefix("score ").split(" ≥ ")
    assert float(above) > float(below)


def test_tables_are_escaped():
    text, name = "<b>good</b>\x1b[2J film", "<i>\u202egood"
    prediction = Prediction(name, 0.75, 2)
    exits = tuple(AskedExit(depth, name, 0.75, answer, 0.75, 0.7) for depth, answer in ((1, "bad"), (2, name)))
    explanation = Explanation(text, prediction, exits, "score 0.75 ≥ 0.7", "votes", "≥", 3)
    assert str(explanation).splitlines() == [
        r"'<b>good</b>\x1b[2J film' (policy: votes)",
        "layers           head  probability       strategy  score  leaves at",
        r"     1  <i>\u202egood         0.75            bad   0.75      ≥ 0.7",
        r"     2  <i>\u202egood         0.75  <i>\u202egood   0.75      ≥ 0.7",
        r"answer: <i>\u202egood, after 2 of 3 layers: score 0.75 ≥ 0.7",
    ]
    page = explanation._repr_html_()
    assert "<b>" not in page
    assert "<i>" not in page
    assert r"&lt;b&gt;good&lt;/b&gt;\x1b[2J film" in page
    assert page.count("<tr>") == 4
    assert "the answer means nothing" in str(replace(explanation, prediction=replace(prediction, is_finite=False)))


def test_what_is_not_one_text_is_refused():
    engine = Engine(numbers_model(), Policy("max_prob", 0.9))
    assert engine.explain(["a b", "c"]).text == ("a b", "c")  # a pair
    for wrong in ("", b"text", {"text": "a"}, None, ["a", "b", "c"]):
        with pytest.raises(InputError, match="the text is empty, or neither a text nor a pair of texts"):
            engine.explain(wrong)
