"""When its guarantee breaks, the default steps back along certified policies; texts that differ are noticed."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from exitpoll import Engine, Guarantee, InputError, Policy
from exitpoll.decide.certificate import MoreCautious
from exitpoll.decide.shift import Histogram, Profile, ShiftWatch
from tests.numbers_runtime import Numbers
from tests.samples import certified
from tests.server.conftest import TEXTS, counts, model_of, wait_until
from tests.server.test_audits import Wavering

pytest.importorskip("prometheus_client", reason="the extra server is not installed")

from exitpoll.server.settings import ServerSettings

CERTIFICATE = replace(
    certified(Guarantee(at_most=0.02), runtime="numbers"),
    cautious=(MoreCautious({"threshold": 0.65}, 1.4, 0.01, 0.02), MoreCautious({"threshold": 9.0}, 1.1, 0.0, 0.01)),
)
POLICY = Policy("max_prob", 0.6, certificate=CERTIFICATE)
PROFILE = Profile({1: 900, 2: 60, 4: 20, 5: 10, 6: 10}, None, Histogram((10.0,), (990, 10), 5.0))


def ask(client, policy=None):
    body = {"texts": TEXTS} if policy is None else {"texts": TEXTS, "policy": policy}
    return client.post("/v1/predict", json=body).json()


def settle(client):
    wait_until(lambda: not client.service.audits.waiting)


def test_the_default_steps_back_to_the_full_model(serving, folder, tmp_path, caplog):
    """0.6 and 0.65 differ on too many texts; the policy after them never leaves early, and keeps its guarantee."""
    POLICY.save(folder / "policy.json")
    state = tmp_path / "audits.json"
    answered = {}
    with caplog.at_level(logging.WARNING, "exitpoll.server"):
        with serving(Wavering(), audit=1.0, step_back=True, audit_state=state) as client:
            for _ in range(12):
                answer = ask(client)
                answered.setdefault(answer["policy"], answer)
                settle(client)
            assert list(answered) == ["default", "cautious-1", "cautious-2"]
            assert counts(client, "exitpoll_guarantee_broken").keys() == {
                '{policy="default"}',
                '{policy="cautious-1"}',
            }
            assert "exitpoll_steps_back 2.0" in client.get("/metrics").text
            assert client.get("/v1/status").json()["default"] == "cautious-2"
            assert answered["cautious-2"]["guarantee"] == str(CERTIFICATE.guarantee)
            assert ask(client, "default")["policy"] == "default"  # who names a policy gets it,
            assert ask(client, "default")["guarantee"] is None  # without a guarantee that was refuted
            settle(client)
        with serving(Wavering(), audit=1.0, step_back=True, audit_state=state) as client:  # a restart goes on there
            assert ask(client)["policy"] == "cautious-2"
            settle(client)
            Policy("votes", 1.9, {"k": 0.5}, certificate=CERTIFICATE).save(folder / "policy.json")
            client.post("/v1/policies/reload")  # a new policy is trusted again
            assert ask(client)["policy"] == "default"
            settle(client)
    lines = [record.getMessage() for record in caplog.records if "name no policy" in record.getMessage()]
    assert lines[:2] == [
        "requests that name no policy are now answered by policy 'cautious-1'",
        "requests that name no policy are now answered by policy 'cautious-2'",
    ]


def test_at_last_comes_the_full_model(serving, folder):
    replace(POLICY, certificate=replace(CERTIFICATE, cautious=None)).save(folder / "policy.json")
    with serving(Wavering(), audit=1.0, step_back=True) as client:
        ask(client)
        settle(client)
        answer = ask(client)
        assert (answer["policy"], answer["guarantee"]) == ("full", None)
        full = Engine(model_of(Wavering()))(TEXTS)
        assert [row["label"] for row in answer["predictions"]] == [row.label for row in full]


def test_without_the_option_it_stays(serving, folder):
    POLICY.save(folder / "policy.json")
    with serving(Wavering(), audit=1.0) as client:
        for _ in range(3):
            assert ask(client)["policy"] == "default"
            settle(client)
        assert counts(client, "exitpoll_guarantee_broken") == {'{policy="default"}': 1.0}
        assert ask(client, "cautious-1")["policy"] == "cautious-1"
    with pytest.raises(InputError, match="step_back needs audits"):
        ServerSettings(step_back=True)


class Shallow(Numbers):
    """All heads are sure: texts leave at the first."""

    def logits_at(self, state, exit_number, rows=None):
        return np.abs(super().logits_at(state, exit_number, rows)) * [1, -1] + [9, 0]


@pytest.mark.parametrize(("model", "words", "is_shifted"), [(Numbers, 8, True), (Shallow, 2, False)])
def test_texts_that_differ_are_noticed(serving, folder, caplog, monkeypatch, model, words, is_shifted):
    """Calibration saw 90 % of the texts leave at the first exit, and texts of at most ten words."""
    monkeypatch.setattr("exitpoll.server.shifts.ShiftWatch", partial(ShiftWatch, window=200))
    Policy("max_prob", 0.999, certificate=replace(certified(runtime="numbers"), profile=PROFILE)).save(
        folder / "policy.json"
    )
    texts = [f"{number} " + "word " * words for number in range(200)]
    with caplog.at_level(logging.WARNING, "exitpoll.server"), serving(model(), max_texts=200) as client:
        for _ in range(2):
            client.post("/v1/predict", json={"texts": texts})
        status = client.get("/v1/status").json()["shifts"]["default"]
        shifted = counts(client, "exitpoll_shifted")
        assert status["windows"] == 2
        assert counts(client, "exitpoll_live_mean")['{policy="default",statistic="length"}'] == words + 1
    found = [record.getMessage() for record in caplog.records]
    if is_shifted:
        assert shifted == {'{policy="default"}': 1.0}
        [line] = found
        assert line.startswith("policy 'default': these 200 texts differ from the calibration texts in depth (mean ")
        assert status["shift"] in line
    else:
        assert (shifted, found, status["shift"]) == ({}, [], None)
