"""Policies and traces that are broken in any way are refused in one line, or can be used."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exitpoll.decide.calibrate import calibrate, calibrate_for
from exitpoll.decide.certificate import Source
from exitpoll.decide.costs import ExitCosts
from exitpoll.decide.evaluate import evaluate
from exitpoll.decide.metrics import PROBLEM_TYPES
from exitpoll.decide.policy import LARGEST_FILE, Policy
from exitpoll.decide.strategies import STRATEGIES
from exitpoll.decide.sweep import sweep
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError
from exitpoll.report.wording import describe_calibration, verdict
from tests.mutations import mutations, plausible
from tests.samples import random_trace

WORDS = (
    *STRATEGIES,
    *PROBLEM_TYPES,
    "strategy",
    "head",
    "agreement",
    "right",
    "best",
    "accuracy",
    "speedup",
    "latency",
)
UNHURRIED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
ABOUT = {
    **{"fingerprint": "m1", "runtime": "torch", "data": "toy", "split": "calibration", "metric": "accuracy"},
    **{
        "problem_type": "single_label_classification",
        "milliseconds": [1.0, 2.0, 3.0, 4.0],
        "head_milliseconds": 0.1,
        "label_names": ["a", "b"],
    },
    "overlap": {"checked": 400, "shared": 3},
}
SMALL = Trace(random_trace(0, texts=400).logits, random_trace(0, texts=400).labels, about=ABOUT)
TRACE = Trace(SMALL.logits, SMALL.labels, about=ABOUT, lengths=np.arange(400) % 30 + 3)
POLICIES = {
    "learned": calibrate(TRACE, "learned", max_disagreement=0.3),
    "hybrid": calibrate(TRACE, "hybrid", speedup=1.5),
    "not possible": calibrate(TRACE, Policy("votes", None, {"k": 0.5}), max_disagreement=0.01),
}


def use(policy):
    """Do with a policy whatever the command line does."""
    repr(policy), policy.name, json.dumps(policy.to_dict())
    if policy.certificate is not None:
        describe_calibration(policy)
        asked = policy.certificate.asked
        _ = asked if isinstance(asked, str) else Policy(**asked)
    some = TRACE.select(slice(0, 20))
    evaluation = evaluate(some, policy, resamples=2)
    verdict(evaluation, policy)
    str(evaluation.shift)


@pytest.mark.parametrize("name", POLICIES)
def test_whatever_a_policy_holds_it_can_be_used_or_is_refused(tmp_path, name):
    path, seen = tmp_path / "policy.json", {True: 0, False: 0}

    @settings(max_examples=700, suppress_health_check=UNHURRIED)
    @given(text=st.one_of(mutations(POLICIES[name].to_dict()), plausible(POLICIES[name].to_dict(), WORDS)))
    def check(text):
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            use(Policy.load(path))
        except InputError:
            seen[False] += 1
        else:
            seen[True] += 1

    check()
    assert min(seen.values()) > 20


def test_whatever_the_header_of_a_trace_holds_it_can_be_used_or_is_refused(tmp_path):
    path = tmp_path / "trace"
    TRACE.select(slice(0, 30)).save(path)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, seen = json.loads(content[8 : 8 + length]), {True: 0, False: 0}

    about = mutations(json.loads(header["__metadata__"]["about"])).map(  # JSON inside JSON
        lambda text: json.dumps(header | {"__metadata__": header["__metadata__"] | {"about": text}})
    )

    @settings(max_examples=1000, suppress_health_check=UNHURRIED)
    @given(text=st.one_of(mutations(header), about))
    def check(text):
        changed = text.encode("utf-8", errors="surrogatepass")
        path.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + length :])
        try:
            trace = Trace.load(path)
            repr((trace, trace.trained_on, Source.of(trace.about)))
            sweep(trace, ["static"], costs=ExitCosts.measured(trace.exit_layers, trace.about))
            trace.at_exits([*trace.exit_layers[:-2], trace.exit_layers[-1]])
        except InputError:
            seen[False] += 1
        else:
            seen[True] += 1

    check()
    assert min(seen.values()) > 20


def test_a_large_file_is_not_even_read(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text("[" * (LARGEST_FILE + 1))
    with pytest.raises(InputError, match=r"is larger than 1 MiB, which no policy is"):
        Policy.load(path)


def test_nesting_is_bounded(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text('{"version": 3, "settings": ' + "[" * 90_000 + "]" * 90_000 + "}")
    with pytest.raises(InputError, match="is not a policy: it is not a JSON object"):
        Policy.load(path)


def test_members_of_a_hybrid_are_bounded():
    member = {"strategy": "votes", "threshold": 1.5}
    with pytest.raises(InputError, match="must be a list of at most 16 policies"):
        Policy("hybrid", 1, {"policies": [member] * 17})


def test_what_was_asked_for_can_be_asked_for_again():
    """As an export does, from the certificate alone."""
    certificate = POLICIES["not possible"].certificate
    again = calibrate_for(TRACE, certificate.goal, Policy(**certificate.asked))
    assert again.certificate == certificate
