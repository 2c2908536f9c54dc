"""Law 2 over HTTP: every strategy, mixed in one stream of requests, answers as the engine answers each text alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from exitpoll import Engine, Policy, Texts, Trace
from exitpoll.decide.strategies import STRATEGIES
from exitpoll.engine.record import exit_logits
from tests.samples import settings_of
from tests.tiny import toy_texts

pytest.importorskip("prometheus_client", reason="the extra server is not installed")

from starlette.testclient import TestClient

from exitpoll.server.app import build_app
from exitpoll.server.service import Service

TEXTS = list(toy_texts(40, 5).first)
STATIC = 2  # layer


@pytest.fixture(scope="module", params=["torch", "onnx"])
def loaded(request, tiny_models):
    return tiny_models("bert").load(request.param)


@pytest.fixture(scope="module")
def policies(loaded):
    """A policy of every strategy, by which some texts leave early and others do not."""
    logits = exit_logits(loaded.runtime, loaded.tokenize(Texts(TEXTS)))
    return {name: policy_of(name, logits) for name in STRATEGIES}


def policy_of(name, logits):
    exits = logits.shape[1]
    if name == "static":
        return Policy(name, STATIC)
    policy = Policy(name, 0.0, settings_of(name, exits))
    scores = np.unique(policy.opinion(logits).score[:, :-1].round(2))
    between = (scores[1:] + scores[:-1]) / 2  # no score is so near that rounding decides
    return max(map(policy.at, between.tolist()), key=lambda one: len(set(one.decide(Trace(logits)).exit)))


@pytest.fixture(scope="module")
def answers(loaded, policies, tmp_path_factory):
    """What a server answers, by strategy and text: one text or several a request, in random order, several at once."""
    folder = tmp_path_factory.mktemp("strategies")
    (folder / "policies").mkdir()
    for name, policy in policies.items():
        policy.save(folder / "policies" / f"{name}.json")
    chance, asked = np.random.default_rng(0), []
    for name in policies:
        order = chance.permutation(len(TEXTS)).tolist()
        while order:
            size = int(chance.choice([1, 1, 2, 5]))
            asked.append((name, order[:size]))
            order = order[size:]
    asked = [asked[place] for place in chance.permutation(len(asked))]
    found = {}
    with TestClient(build_app(Service(loaded, folder=folder, name="m"))) as client, ThreadPoolExecutor(8) as pool:

        def ask(request):
            name, rows = request
            body = {"texts": [TEXTS[row] for row in rows], "policy": name}
            return client.post("/v1/predict", json=body).json()

        for (name, rows), answer in zip(asked, pool.map(ask, asked), strict=True):
            assert answer["policy"] == name
            found |= {(name, row): prediction for row, prediction in zip(rows, answer["predictions"], strict=True)}
    return found


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_answers_as_the_engine(loaded, policies, answers, name):
    expected = Engine(loaded, policies[name])(TEXTS)
    found = [answers[name, row] for row in range(len(TEXTS))]
    assert [(row["label"], row["depth"]) for row in found] == [(row.label, row.depth) for row in expected]
    assert [row["probability"] for row in found] == pytest.approx([row.probability for row in expected], abs=1e-5)
    depths = {row.depth for row in expected}
    assert depths == {STATIC} if name == "static" else len(depths) > 1
