"""The certificate survives its file, can be read by people, and refuses what calibration never wrote."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from exitpoll.decide.certificate import (
    VERSION,
    Certificate,
    Guarantee,
    Latency,
    MoreCautious,
    Nearest,
    Source,
    Speedup,
    StaticExit,
)
from exitpoll.decide.policy import Policy
from exitpoll.decide.shift import Histogram, Profile
from exitpoll.errors import InputError

SOURCE = Source("0123456789abcdef", "torch float32", "trec", "calibration", "accuracy")
PROVEN = Certificate(
    Guarantee("accuracy", 0.02, 0.9),
    texts=500,
    speedup=2.5,
    source=SOURCE,
    asked={"strategy": "votes", "settings": {"k": 0.5}},
    metric="accuracy",
    score=0.96,
    full_score=0.97,
    test="fixed sequence, paired difference, betting",
    measured=0.01,
    bound=0.019,
    searched_on=500,
    exits_chosen_on=500,
    trained_on=0.01,
    profile=Profile({2: 300, 4: 0, 6: 200}, Histogram((0.5, 0.9), (100, 100, 300), 0.85), Histogram((), (500,), 12.5)),
    cautious=(
        MoreCautious({"threshold": 1.9}, 1.8, 0.005, 0.012),
        MoreCautious({"strategy": "max_prob", "threshold": 0.99, "settings": {}}, 1.2, 0.0, 0.006),
    ),
)
CERTIFICATES = {
    "guarantee": PROVEN,
    "unmet": Certificate(
        Guarantee(), 400, 1.0, Source(), met=False, nearest=Nearest(Guarantee(at_most=0.04), 1.3), exitpoll="0.0.9"
    ),
    "speedup": Certificate(
        *(Speedup(2.0), 30, 2.25, SOURCE),
        **{"metric": "agreement", "score": 0.99, "full_score": 1.0, "static": StaticExit(3, 2.0, 0.9)},
    ),
    "few texts": Certificate(Guarantee(), 300, 1.1, SOURCE, fixed="max_prob"),
    "latency": Certificate(Latency(3.5), 30, 2.25, replace(SOURCE, carried_from="torch float32"), latency_ms=3.2),
}


@pytest.mark.parametrize("name", CERTIFICATES)
def test_it_survives_json(name):
    certificate = CERTIFICATES[name]
    assert Certificate.from_dict(json.loads(json.dumps(certificate.to_dict()))) == certificate


def test_every_field_is_in_a_round_trip():
    """A field that `from_dict` does not know would be refused; one that is never set would go unnoticed."""
    default = Certificate(Speedup(2.0), 0, 1.0, Source())
    for field in fields(Certificate):
        values = [getattr(certificate, field.name) for certificate in CERTIFICATES.values()]
        assert any(value != getattr(default, field.name) for value in values), field.name


def test_repr_is_short():
    assert repr(PROVEN) == (
        "Certificate(accuracy is at most 2 points below the full model's, with 90 % confidence; "
        "2.50 × in layers on 500 texts)"
    )
    assert repr(CERTIFICATES["unmet"]).startswith("Certificate(not possible: answers differ")


def test_people_can_read_it():
    plain = PROVEN.to_dict()
    assert plain["version"] == VERSION
    assert plain["goal"] == {
        "kind": "guarantee",
        "risk": "accuracy",
        "at_most": 0.02,
        "confidence": 0.9,
        "reference": "the full model",
    }
    assert plain["source"]["data"] == "trec"
    assert "nearest" not in plain  # what is not known is left out


def test_the_guarantee_is_one_only_if_it_is_met():
    assert PROVEN.guarantee == Guarantee("accuracy", 0.02, 0.9)
    assert CERTIFICATES["unmet"].guarantee is None
    assert CERTIFICATES["speedup"].guarantee is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "of another version: calibrate again"),
        ({"goal": "speed"}, "goal of the certificate must be names with values, not 'speed'"),
        (
            {"goal": {"kind": "glory"}},
            "goal 'glory' of the certificate is unknown; known goals: speedup, latency",
        ),
        ({"goal": {"kind": "speedup"}}, "certificate is broken .*at_least"),
        ({"goal": {"kind": "speedup", "at_least": 2, "risk": "accuracy"}}, "certificate is broken"),
        (
            {"goal": {"kind": "speedup", "at_least": True}},
            "at_least True is not what",
        ),
        ({"goal": {"kind": "guarantee", "risk": "boredom"}}, "risk 'boredom' is unknown; choose one of: disagreement"),
        ({"goal": {"kind": "guarantee", "at_most": 2}}, "max_disagreement 2 must be above 0 and below 1"),
        ({"speedup": "fast"}, "speedup 'fast' is not what"),
        ({"speedup": float("nan")}, "speedup nan is not what"),
        ({"source": None}, "source of the certificate must be names with values"),
        ({"source": {"model": "x"}}, "model 'x' is not what"),
        ({"nearest": {"guarantee": {}, "speedup": None}}, "speedup None is not what"),
        ({"promise": {}}, "promise {} is not what"),
        ({"met": "yes"}, "met 'yes' is not what"),
    ],
)
def test_refuses(change, message):
    with pytest.raises(InputError, match=message):
        Certificate.from_dict(PROVEN.to_dict() | change)


def test_another_model_or_runtime_is_refused_as_far_as_both_are_known():
    SOURCE.check_same(Source())
    SOURCE.check_same(Source(fingerprint="0123456789abcdef", data="other data"))
    with pytest.raises(InputError, match="calibrated for runtime torch float32, and this is runtime onnx int8"):
        SOURCE.check_same(Source(runtime="onnx int8"))


def test_a_policy_of_an_older_version_says_to_calibrate_again(tmp_path):
    content = Policy("votes", 1.5, certificate=PROVEN).to_dict() | {"version": 1}
    (tmp_path / "policy.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"policy.json' is a policy of version 1, not 3: calibrate again"):
        Policy.load(tmp_path / "policy.json")
    policy = Policy("votes", 1.5, certificate=PROVEN)
    policy.save(tmp_path / "policy.json")
    assert Policy.load(tmp_path / "policy.json") == policy
