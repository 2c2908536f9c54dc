"""A monitor raises a false alarm with at most its probability over a whole stream, and a true one soon."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from exitpoll import Guarantee, InputError, Monitor, Policy
from exitpoll.decide.certificate import ORIGINAL, Speedup
from tests.samples import certified


def alarms(risk, limit, streams, texts, seed=0):
    """Return after how many texts each stream raised an alarm; 0 for none.

    Wealth depends on counts alone, so it is looked up for every count of differing answers where they change.
    """
    chance, found = np.random.default_rng(seed), []
    for _ in range(streams):
        differs = chance.random(texts) < risk
        places = differs.nonzero()[0] + 1  # alarms come where answers differ
        monitor, after = Monitor(limit), 0
        for count, place in enumerate(places.tolist(), start=1):
            monitor.texts, monitor.differing = place, count
            if monitor.log_wealth(limit) >= monitor._goal:
                after = place
                break
        found.append(after)
    return np.array(found)


@pytest.mark.parametrize("limit", [0.01, 0.05])
def test_false_alarms_over_whole_streams(limit):
    """At the limit itself, which is the worst that the guarantee allows: at most 5 % of 1,000 streams."""
    assert (alarms(limit, limit, streams=1000, texts=10_000) > 0).mean() <= 0.05


def test_a_test_for_a_fixed_number_of_texts_repeated_raises_many_more():
    """The counter-law: the same streams, tested exactly after every text that differs."""
    from scipy.stats import binom

    chance, broken = np.random.default_rng(0), 0
    for _ in range(200):
        places = (chance.random(10_000) < 0.01).nonzero()[0] + 1
        counts = np.arange(1, len(places) + 1)
        broken += bool((binom.sf(counts - 1, places, 0.01) <= 0.05).any())
    assert broken / 200 > 0.2


def test_an_alarm_comes_soon():
    """At three times the limit, 2 % -> 6 %, where the best possible test needs 112 texts on average."""
    after = alarms(0.06, 0.02, streams=400, texts=3000)
    assert (after > 0).all()
    assert np.median(after) <= 150


def test_the_alarm_is_raised_once_and_stays():
    raised = []
    monitor = Monitor(0.02, on_alarm=raised.append)
    assert not monitor.add(np.False_)
    assert not monitor.add(True)
    assert monitor.add([True] * 9)
    assert raised == [monitor]
    assert monitor.alarm_after == 3
    assert monitor.lower_bound > 0.02
    monitor.add([False] * 10_000)
    assert monitor.is_broken
    assert len(raised) == 1
    assert monitor.lower_bound < 0.02
    assert (monitor.texts, monitor.differing) == (10_011, 10)


def test_the_bound_is_below_the_limit_until_the_alarm():
    for seed in range(20):
        chance, monitor = np.random.default_rng(seed), Monitor(0.05)
        while not monitor.is_broken and monitor.texts < 500:
            monitor.add(bool(chance.random() < 0.12))
            if not monitor.is_broken:
                assert monitor.lower_bound <= 0.05 + 1e-9
        assert not monitor.is_broken or monitor.lower_bound > 0.05 - 1e-9
    assert Monitor(0.05).lower_bound == 0


def test_answers_are_compared():
    labels, values = Monitor(0.5), Monitor(0.5, tolerance=0.1)
    for live, full in (("a", "a"), ("a", "b"), (("a", "b"), ("a",))):
        labels.compare(live, full)
    for value in (1.05, 1.2, float("nan")):
        values.compare(value, 1.0)
    assert (labels.differing, values.differing) == (2, 2)


def test_of_a_policy():
    certificate = certified(Guarantee(at_most=0.02, confidence=0.9))
    monitor = Monitor.of(Policy("votes", 1.0, certificate=certificate))
    assert (monitor.limit, monitor.confidence) == (0.02, 0.9)
    unwatched = (
        None,
        replace(certificate, met=False),
        certified(Speedup(2.0)),
        certified(Guarantee("accuracy")),
        certified(Guarantee(reference=ORIGINAL)),
    )
    for other in unwatched:
        assert Monitor.of(Policy("votes", 1.0, certificate=other)) is None


def test_its_state_survives_a_restart(tmp_path):
    monitor = Monitor(0.02)
    monitor.add([True, False, True])
    monitor.save(tmp_path / "state.json")
    again = Monitor.load(tmp_path / "state.json")
    assert again == monitor
    assert again.add([True] * 3) == monitor.add([True] * 3)
    assert again.alarm_after == monitor.alarm_after is not None


@pytest.mark.parametrize(
    "content",
    [None, {}, {"limit": 2.0}, {"limit": 0.1, "texts": -1}, {"limit": 0.1, "texts": 1, "differing": 2}, {"limit": "a"}],
)
def test_broken_states_are_refused(content):
    with pytest.raises(InputError, match="is not the state of a monitor"):
        Monitor.from_dict(content)


def test_refusals(tmp_path):
    with pytest.raises(InputError, match="limit 0 must be above 0 and below 1"):
        Monitor(0)
    with pytest.raises(InputError, match="there is no state of a monitor at"):
        Monitor.load(tmp_path / "nothing.json")
