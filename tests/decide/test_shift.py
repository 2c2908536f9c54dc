"""Texts that differ from the calibration texts are noticed, and others are not, at the stated rate."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitpoll.decide.calibrate import calibrate
from exitpoll.decide.decisions import Decisions
from exitpoll.decide.evaluate import evaluate
from exitpoll.decide.shift import (
    FALSE_ALARMS,
    Histogram,
    Profile,
    ProfileCounter,
    ShiftWatch,
    critical_distance,
    sureness,
)
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError

LAYERS = (2, 4, 6, 12)


def draw(generator, texts, *, longer=0.0, deeper=0.0, less_sure=0.0):
    """Exits, probabilities and lengths of some texts."""
    exits = np.searchsorted([0.4, 0.7, 0.9], generator.random(texts) ** (1 / (1 + deeper)))
    probabilities = generator.beta(8, 1 + less_sure, size=texts)
    lengths = generator.poisson(20 * (1 + longer), size=texts)
    return exits, probabilities, lengths


def profile_of(exits, probabilities, lengths):
    return Profile.of(Decisions(exits, exits, probabilities, LAYERS), lengths)


def shift_between(first, second):
    counter = ProfileCounter(profile_of(*first))
    for rows in np.array_split(np.arange(len(second[0])), 7):
        exits, *others = (column[rows] for column in second)
        counter.add(np.asarray(LAYERS)[exits], *others)
    return counter.shift()


class TestFalseAlarms:
    def test_they_stay_within_the_stated_rate(self):
        """Over 3,000 pairs of samples of one distribution, of any two sizes."""
        generator, runs = np.random.default_rng(0), 3000
        sizes = generator.choice([30, 100, 400, 2000], size=(runs, 2))
        alarms = sum(shift_between(draw(generator, m), draw(generator, n)) is not None for m, n in sizes)
        assert alarms <= FALSE_ALARMS * runs + 3 * np.sqrt(FALSE_ALARMS * runs)

    @pytest.mark.parametrize(("first", "second"), [(40, 40), (40, 4000), (300, 300), (300, 6000)])
    def test_the_bound_holds_in_its_tail_for_continuous_numbers(self, first, second):
        """At a rate that a simulation can see; bins and ties only lower it."""
        generator, rate, runs = np.random.default_rng(1), 0.05, 1000
        limit = critical_distance(first, second, rate)
        numbers = np.sort(generator.random((runs, first)), axis=1)
        beyond = 0
        for sample in numbers:
            other = np.sort(generator.random(second))
            places = np.searchsorted(other, sample) / second
            steps = np.arange(first + 1) / first
            beyond += max(np.abs(places - steps[1:]).max(), np.abs(places - steps[:-1]).max()) > limit
        assert beyond / runs <= rate

    def test_choosing_a_policy_on_the_texts_raises_no_alarm(self):
        """The profile is of the very texts that the thresholds were chosen on."""
        alarms = 0
        for seed in range(25):
            generator = np.random.default_rng(seed)
            trace, other = (world_trace(generator, texts) for texts in (200, 2000))
            alarms += evaluate(other, calibrate(trace, "max_prob", speedup=1.5), resamples=10).shift is not None
        assert alarms == 0


def world_trace(generator, texts):
    """Exits that become surer of the label."""
    labels = generator.integers(2, size=texts)
    ease = generator.exponential(size=(texts, 1))
    signal = (ease * np.arange(1, 7) * 0.7)[..., None] * np.eye(2)[labels][:, None]
    return Trace(signal + generator.normal(size=(texts, 6, 2)), labels, lengths=generator.poisson(20, size=texts))


class TestShifts:
    @pytest.mark.parametrize(
        ("change", "name", "words"),
        [
            ({"longer": 0.3}, "length", "length (mean 2"),
            ({"deeper": 1.0}, "depth", "depth (mean "),
            ({"less_sure": 0.5}, "probability", "probability of the answer (mean 0.8"),
        ],
    )
    def test_a_real_one_is_caught(self, change, name, words):
        generator = np.random.default_rng(0)
        for _ in range(20):
            shift = shift_between(draw(generator, 500), draw(generator, 1000, **change))
            assert [difference.name for difference in shift.differences] == [name]
            assert words in str(shift)

    def test_it_is_one_line_with_its_rate(self):
        generator = np.random.default_rng(0)
        line = str(shift_between(draw(generator, 500), draw(generator, 1000, longer=1, deeper=1, less_sure=1)))
        assert line.startswith("these 1000 texts differ from the calibration texts in depth (mean ")
        assert line.endswith("may not hold for them (false-alarm rate 0.1 %)")
        assert "\n" not in line

    def test_few_texts_prove_nothing(self):
        generator = np.random.default_rng(0)
        assert shift_between(draw(generator, 500), draw(generator, 3, longer=9)) is None
        assert ProfileCounter(profile_of(*draw(generator, 9))).shift() is None

    def test_an_evaluation_tells(self):
        generator = np.random.default_rng(0)
        policy = calibrate(world_trace(generator, 400), "max_prob", speedup=1.5)
        same, other = world_trace(generator, 400), world_trace(generator, 400)
        assert evaluate(same, policy, resamples=10).shift is None
        longer = Trace(other.logits, other.labels, lengths=other.lengths + 9)
        assert [difference.name for difference in evaluate(longer, policy, resamples=10).shift.differences] == [
            "length"
        ]


class TestProfile:
    def test_it_is_small_whatever_the_number_of_texts(self):
        profile = profile_of(*draw(np.random.default_rng(0), 100_000))
        assert profile.texts == 100_000
        assert all(len(histogram.counts) <= 20 for histogram in profile.histograms().values())

    @given(seed=st.integers(0, 10**6), texts=st.integers(1, 50))
    def test_it_survives_json(self, seed, texts):
        profile = profile_of(*draw(np.random.default_rng(seed), texts))
        assert Profile.from_dict(profile.to_dict()) == profile

    def test_every_text_is_in_one_bin(self):
        histogram = Histogram.of(np.array([1.0, 2.0, 2.0, 3.0]), edges=(1.0, 2.0))
        assert histogram == Histogram((1.0, 2.0), (1, 2, 1), 2.0)

    def test_values_have_no_probability_and_old_traces_no_lengths(self):
        exits = np.array([0, 1, 1])
        profile = Profile.of(Decisions(exits, exits, np.full(3, np.nan), LAYERS))
        assert list(profile.histograms()) == ["depth"]
        counter = ProfileCounter(profile)
        counter.add(np.asarray(LAYERS)[exits], np.full(3, np.nan), np.array([3, 4, 5]))
        assert counter.shift() is None

    def test_a_policy_of_one_exit(self):
        assert Profile({2: 0, 4: 9, 6: 0}).only_layer == 4
        assert Profile({2: 1, 4: 9, 6: 0}).only_layer is None

    def test_of_several_labels_the_least_sure_counts(self):
        assert sureness(np.array([[0.9, 0.2], [0.4, 0.1]])).tolist() == [0.8, 0.6]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ([], "profile of the certificate is broken"),
            ({"depths": {"2": 1}, "mood": 3}, "profile of the certificate is broken"),
            ({"depths": {"two": 1}}, "depths of the certificate's profile are broken"),
            ({"depths": {"4": 1, "2": 1}}, "layers of the certificate's profile must rise"),
            ({"depths": {"2": -1}}, "are not counts of texts"),
            ({"depths": {"2": 0}}, "are not counts of texts"),
            ({"depths": {"2": 10**400}}, "is not a number"),
            ({"depths": {"2": 1}, "lengths": {"edges": [1], "counts": [1], "mean": 1}}, "do not fit its counts"),
            ({"depths": {"2": 1}, "lengths": {"edges": "ab", "counts": [1], "mean": 1}}, "must be a list"),
        ],
    )
    def test_refuses(self, content, message):
        with pytest.raises(InputError, match=message):
            Profile.from_dict(content)

    def test_a_text_that_left_at_an_exit_the_calibration_did_not_have(self):
        with pytest.raises(InputError, match="not calibrated for an exit after layer 3"):
            ProfileCounter(Profile({2: 3, 4: 1})).add([2, 3])


def test_counters_of_parts_add_up_to_that_of_the_whole():
    generator = np.random.default_rng(0)
    profile = profile_of(*draw(generator, 400))
    exits, probabilities, lengths = draw(generator, 300, deeper=1.0)
    whole, merged = ProfileCounter(profile), ProfileCounter(profile)
    layers = np.array(LAYERS)[exits]
    whole.add(layers, probabilities, lengths)
    for part in (slice(0, 100), slice(100, 300)):
        counter = ProfileCounter(profile)
        counter.add(layers[part], probabilities[part], lengths[part])
        merged.merge(json.loads(json.dumps(counter.to_dict())))
    assert merged.shift() is not None
    assert str(merged.shift()) == str(whole.shift())


class TestWatch:
    """Window by window, for ever: alike texts raise no alarm, others do in the first window."""

    @staticmethod
    def watch(seed, shares, windows):
        watch = ShiftWatch(Profile({1: 500, 2: 300, 4: 200}), window=100)
        for depth in np.random.default_rng(seed).choice([1, 2, 4], size=100 * windows, p=shares).tolist():
            watch.add(depth, 0.5, 3)
        assert watch.windows == windows
        return watch.shift

    def test_alike_texts(self):
        assert not any(self.watch(seed, [0.5, 0.3, 0.2], windows=10) for seed in range(50))

    def test_others(self):
        shift = self.watch(0, [0.1, 0.2, 0.7], windows=3)
        assert shift.texts == 100
        assert [difference.name for difference in shift.differences] == ["depth"]

    @pytest.mark.parametrize(("before", "windows"), [(0, 0), (1, 0), (999, 0), (1500, 0), (500, 1_000_000)])
    def test_texts_that_never_leave_early(self, before, windows):
        """They are noticed within 2,000 texts, wherever in a window they begin and however long the server has run."""
        watch, chance = ShiftWatch(Profile({1: 500, 2: 300, 4: 200})), np.random.default_rng(before)
        watch.windows = windows
        for depth in chance.choice([1, 2, 4], size=before, p=[0.5, 0.3, 0.2]).tolist():
            watch.add(depth, 0.5, 3)
        assert watch.shift is None
        texts = 0
        while watch.shift is None and texts < 2000:
            watch.add(4, 0.5, 3)
            texts += 1
        assert watch.shift is not None
        assert "depth" in str(watch.shift)
