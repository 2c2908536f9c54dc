"""Texts that arrive at any time, with mixed policies, are answered as the engine answers each alone: real runtimes."""

from __future__ import annotations

import numpy as np
import pytest

from exitpoll import Engine, Policy, Texts
from exitpoll.engine.arrivals import with_depth_cap
from exitpoll.engine.costs import CallCosts
from exitpoll.engine.engine import predictions_of
from exitpoll.engine.live import LiveScheduler
from exitpoll.engine.walks import PastExits
from tests.tiny import toy_texts

TEXTS = list(toy_texts(60, 5).first)
POLICIES = (
    Policy("max_prob", 0.6),
    Policy("max_prob", 0.75),
    Policy("votes", 1.4, {"k": 0.5}),
    Policy("patience", 1, exit_layers=(2, 3)),
    Policy(),
)


def run_live(loaded, seed, policies=POLICIES):
    """Submit texts at random times; predictions with what they should be, by number."""
    chance, expected, found = np.random.default_rng(seed), {}, {}
    scheduler = LiveScheduler(loaded.runtime, CallCosts(float(chance.choice([0, 8, 40])), 256))
    engines = {}
    for number in range(len(TEXTS)):
        policy = policies[chance.integers(len(policies))]
        cap = None if chance.random() < 0.8 else 2
        key = id(policy), cap
        engines.setdefault(key, Engine(loaded, policy if cap is None else with_depth_cap(policy, cap)))
        tokens = loaded.tokenize(Texts([TEXTS[number]]))
        [submitted] = scheduler.submit(tokens, policy, cap, explain=bool(chance.random() < 0.2))
        expected[submitted] = engines[key], TEXTS[number]
        for _ in range(chance.integers(3)):
            found |= leaving(loaded, scheduler)
    while scheduler.texts:
        found |= leaving(loaded, scheduler)
    return scheduler, found, {number: engine([text])[0] for number, (engine, text) in expected.items()}


def leaving(loaded, scheduler):
    """Predictions of the texts that leave in a step, none of which may fail."""
    step = scheduler.step()
    assert not step.failures
    return {number: found for departure in step.departures for number, found in predictions_of(loaded, departure)}


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
@pytest.mark.parametrize("name", ["bert", "albert"])
def test_live_answers_are_the_engines(tiny_models, name, runtime):
    loaded = tiny_models(name).load(runtime)
    for seed in range(2):
        _, found, expected = run_live(loaded, seed)
        assert found.keys() == expected.keys()
        for number, prediction in expected.items():
            assert (found[number].label, found[number].depth) == (prediction.label, prediction.depth)
            assert found[number].probability == pytest.approx(prediction.probability, abs=1e-5)
        assert len({prediction.depth for prediction in expected.values()}) > 1


def test_a_graph_decides_for_two_thresholds_and_is_asked_exit_by_exit_for_others(tiny_models):
    loaded = tiny_models("bert").with_policy(POLICIES[0])
    scheduler, found, expected = run_live(loaded, seed=3)
    kinds = {isinstance(walk, PastExits) for _, walk in scheduler._walks.values()}
    assert kinds == {True, False}
    assert {number: (row.label, row.depth) for number, row in found.items()} == {
        number: (row.label, row.depth) for number, row in expected.items()
    }


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_exit_zero(tiny_models, runtime):
    """Texts of a policy with an exit before the first layer start together with those of one without."""
    loaded = tiny_models("bert", exits=(0, 1, 2, 3), exit_zero="embeddings").load(runtime)
    _, found, expected = run_live(loaded, 1, (Policy("max_prob", 0.36), *POLICIES))
    assert {number: (row.label, row.depth) for number, row in found.items()} == {
        number: (row.label, row.depth) for number, row in expected.items()
    }
    assert min(row.depth for row in expected.values()) == 0
