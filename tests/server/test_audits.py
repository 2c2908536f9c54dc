"""Texts drawn at arrival also run to full depth: a broken guarantee is found, and counts survive restarts."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from exitpoll import Engine, Guarantee, InputError, Policy, Prediction
from tests.numbers_runtime import Numbers
from tests.samples import certified
from tests.server.conftest import TEXTS, counts, model_of, wait_until
from tests.server.test_limits import Gated, token

pytest.importorskip("prometheus_client", reason="the extra server is not installed")

from exitpoll.server.audits import _named


class Wavering(Numbers):
    """The last head disagrees with all others on some texts."""

    def logits_at(self, state, exit_number, rows=None):
        logits = super().logits_at(state, exit_number, rows)
        turned = ((state if rows is None else state[rows]) % 4 == 0) & (exit_number == 4)
        logits[turned] *= -1
        return logits


POLICY = Policy("max_prob", 0.6, certificate=certified(Guarantee(at_most=0.02), runtime="numbers"))


def differing():
    """Which texts are answered otherwise by the full model."""
    model = model_of(Wavering())
    live, full = Engine(model, POLICY)(TEXTS), Engine(model)(TEXTS)
    return sum(one.label != other.label for one, other in zip(live, full, strict=True))


def audited(client):
    return sum(counts(client, "exitpoll_shadow_texts_total").values())


def test_a_broken_guarantee_is_found(serving, folder, tmp_path, caplog):
    POLICY.save(folder / "policy.json")
    state = tmp_path / "audits.json"
    with caplog.at_level(logging.ERROR, "exitpoll.server"), serving(Wavering(), audit=1.0, audit_state=state) as client:
        client.post("/v1/predict", json={"texts": TEXTS})
        client.post("/v1/predict", json={"texts": TEXTS, "policy": "fast"})  # guarantees nothing
        client.post("/v1/predict", json={"texts": TEXTS, "max_depth": 4})  # nor does another depth
        wait_until(lambda: audited(client) == 40)
        assert counts(client, "exitpoll_shadow_disagreements_total") == {'{policy="default"}': differing()}
        assert counts(client, "exitpoll_guarantee_broken") == {'{policy="default"}': 1.0}
        assert counts(client, "exitpoll_guarantee_limit") == {'{policy="default"}': 0.02}
        assert counts(client, "exitpoll_shadow_bound")['{policy="default"}'] > 0.02
        assert counts(client)['{outcome="answered",policy="default"}'] == 80  # audits are not answers
    [message] = [record.getMessage() for record in caplog.records]
    assert message.startswith("the guarantee of policy 'default' is broken: answers differ on ")
    assert not any(text in state.read_text() for text in TEXTS)
    # A restart goes on with the counts, unless the policy is another.
    with serving(Wavering(), audit=1.0, audit_state=state) as client:
        monitor = client.service.audits.monitors["default"]
        assert (monitor.texts, monitor.differing, monitor.is_broken) == (40, differing(), True)
        client.post("/v1/policies/reload")
        assert client.service.audits.monitors["default"] is monitor
        Policy("max_prob", 0.7, certificate=POLICY.certificate).save(folder / "policy.json")
        client.post("/v1/policies/reload")
        assert client.service.audits.monitors["default"].texts == 0
    state.write_text("[")
    with pytest.raises(InputError, match="is not the state of audits"), serving(audit=1.0, audit_state=state):
        pass


@pytest.mark.parametrize("threshold", [1.9, 9.0])
def test_a_guarantee_that_holds_raises_no_alarm(serving, folder, threshold):
    """All answers are the full model's here, also those of texts that leave last, which need not run again."""
    Policy("votes", threshold, {"k": 0.5}, certificate=POLICY.certificate).save(folder / "policy.json")
    with serving(audit=1.0) as client:
        client.post("/v1/predict", json={"texts": TEXTS})
        wait_until(lambda: audited(client) == 40)
        assert counts(client, "exitpoll_guarantee_broken") == {}
        assert counts(client, "exitpoll_shadow_disagreements_total") == {}


def test_the_full_models_answer_to_a_text_that_left_last():
    names = ("yes", "no")
    for label, full, expected in (
        ("no", np.array(0), "yes"),
        (("yes", "no"), np.array([0, 1]), ("no",)),
        (1.5, np.array(2.5, dtype=np.float32), 2.5),
    ):
        assert _named(full, Prediction(label, 1.0, 6, label_names=names)) == expected


def test_the_coin(serving, folder):
    POLICY.save(folder / "policy.json")
    with serving(audit=0.25) as client:
        client.service.audits._coin.seed(0)
        for _ in range(10):
            client.post("/v1/predict", json={"texts": TEXTS})
        wait_until(lambda: not client.service.audits.waiting)
        assert 60 < audited(client) < 140
    with serving() as client:
        client.post("/v1/predict", json={"texts": TEXTS})
        assert client.service.audits.monitors == {}


def test_audits_of_a_policy_that_was_replaced_are_not_counted(serving, folder):
    POLICY.save(folder / "policy.json")
    with serving(Wavering(), audit=1.0) as client:
        audits, before = client.service.audits, client.service.policies["default"]
        [prediction] = Engine(model_of(Wavering()), POLICY)(TEXTS[:1])
        Policy("max_prob", 0.7, certificate=POLICY.certificate).save(folder / "policy.json")
        client.post("/v1/policies/reload")
        calls = []
        tokens = client.service.model.tokenize(TEXTS[:1])
        for policy in (before, client.service.policies["default"]):
            audits.answered(policy, tokens, prediction, lambda function, result: calls.append((function, result)))
        wait_until(lambda: len(calls) == 2)
        for function, result in calls:
            function(result)
        assert (audits.waiting, audits.monitors["default"].texts) == (0, 1)


def test_gauges_of_a_guarantee_that_is_gone_go_too(serving, folder):
    POLICY.save(folder / "policies" / "fast.json")
    with serving(Wavering(), audit=1.0) as client:
        client.post("/v1/predict", json={"texts": TEXTS, "policy": "fast"})
        wait_until(lambda: audited(client) == 40)
        assert '{policy="fast"}' in counts(client, "exitpoll_guarantee_broken")
        (folder / "policies" / "fast.json").unlink()
        client.post("/v1/policies/reload")
        assert '{policy="fast"}' not in counts(client, "exitpoll_guarantee_broken")
        assert '{policy="default"}' in counts(client, "exitpoll_guarantee_limit")


def test_whatever_becomes_of_texts_that_were_drawn_they_are_compared_or_counted_as_dropped(serving, folder):
    """They fail, are given up, are cancelled; their policy is replaced meanwhile, and the server ends."""

    class Half(Gated, Wavering):
        """Fails on one text, and waits in every call."""

        def advance(self, state, layers):
            if token("poison") in state:
                raise RuntimeError("no such kernel")
            return super().advance(state, layers)

    def accounted(client):
        return audited(client) + sum(counts(client, "exitpoll_shadow_dropped_total").values())

    POLICY.save(folder / "policy.json")
    runtime = Half()
    with serving(runtime, audit=1.0) as client, ThreadPoolExecutor(1) as pool:
        assert client.post("/v1/predict", json={"texts": ["poison"]}).status_code == 500
        assert accounted(client) == 1
        assert client.post("/v1/predict", json={"texts": ["a", "b c"], "timeout_ms": 1}).status_code == 504
        assert accounted(client) == 3
        assert client.post("/v1/predict/stream", json={"texts": ["a"], "timeout_ms": 1}).status_code == 200
        assert accounted(client) == 4
        waiting = pool.submit(client.post, "/v1/predict", json={"texts": TEXTS})
        wait_until(lambda: client.service.texts_under_way == 40)
        Policy("max_prob", 0.7, certificate=POLICY.certificate).save(folder / "policy.json")
        client.post("/v1/policies/reload")
        runtime.gate.set()
        assert waiting.result().status_code == 200
        wait_until(lambda: accounted(client) == 44)
        assert client.service.audits.monitors["default"].texts == 0
        runtime.gate.clear()
        audits = client.service.audits
        [prediction] = Engine(model_of(Wavering()), POLICY)(TEXTS[:1])
        tokens = client.service.model.tokenize(TEXTS[:1])
        audits.answered(client.service.policies["default"], tokens, prediction, lambda function, result: None)
        assert (audits.waiting, accounted(client)) == (1, 44)
        runtime.gate.set()
    dropped = client.service.metrics.shadow_dropped.labels("default")._value.get()
    assert (audits.waiting, dropped) == (0, 45)


def test_too_many_are_dropped_and_counted(serving, folder, monkeypatch):
    POLICY.save(folder / "policy.json")
    monkeypatch.setattr("exitpoll.server.audits.MOST_WAITING", 0)
    with serving(audit=1.0) as client:
        client.post("/v1/predict", json={"texts": TEXTS})
        dropped = counts(client, "exitpoll_shadow_dropped_total")['{policy="default"}']
        assert (dropped, audited(client)) == (40, 0)  # also those that ran to full depth, and agree
