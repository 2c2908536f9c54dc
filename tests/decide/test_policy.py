"""Where texts leave and what they are answered: by hand, and as laws."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION
from exitpoll.decide.numerics import softmax
from exitpoll.decide.policy import Policy
from exitpoll.decide.strategies import STRATEGIES
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError
from tests.samples import SETTINGS, certified, multi_label_trace, regression_trace, settings_of

# Two texts, four exits, three classes: what every head predicts.
PREDICTED = np.array([[0, 1, 1, 1], [2, 2, 0, 1]])
TRACE = Trace(np.eye(3)[PREDICTED] * 4.0, np.array([1, 2]), (3, 6, 9, 12))


def random_trace(seed, texts=40, exits=6, classes=3):
    generator = np.random.default_rng(seed)
    return Trace(generator.normal(size=(texts, exits, classes)) * 2, generator.integers(classes, size=texts))


class TestByHand:
    def test_patience(self):
        decisions = Policy("patience", 1).decide(TRACE)
        assert decisions.exit.tolist() == [2, 1]
        assert decisions.depth.tolist() == [9, 6]
        assert decisions.answer.tolist() == [1, 2]
        assert decisions.accuracy == 1
        assert decisions.speedup == pytest.approx(12 / 7.5)
        assert decisions.histogram == {3: 0, 6: 1, 9: 1, 12: 0}

    def test_votes_of_the_seed(self):
        decisions = Policy("votes", 2, {"k": 0}).decide(TRACE)
        assert decisions.exit.tolist() == [2, 1]
        assert decisions.answer.tolist() == [1, 2]

    def test_entropy_leaves_at_or_below_its_threshold(self):
        logits = np.array([[[0.0, 0.0], [0.0, 3.0], [0.0, 9.0]]])
        p = softmax(logits[0, 1])
        entropy = -(p * np.log(p)).sum()
        assert Policy("entropy", entropy + 1e-9).decide(Trace(logits)).exit.tolist() == [1]
        assert Policy("entropy", entropy - 1e-9).decide(Trace(logits)).exit.tolist() == [2]

    def test_one_threshold_for_each_exit(self):
        decisions = Policy("patience", [9, 9, 0, 0]).decide(TRACE)
        assert decisions.exit.tolist() == [2, 2]

    def test_at_the_end_most_votes_or_the_last_head(self):
        never_fires = {"strategy": "votes", "threshold": 99, "settings": {"k": 0}}
        assert Policy(**never_fires).decide(TRACE).answer.tolist() == [1, 2]
        assert Policy(**never_fires, fallback="head").decide(TRACE).answer.tolist() == [1, 1]

    def test_on_leaving_the_strategys_answer_or_the_heads(self):
        trace = Trace(np.eye(3)[np.array([[0, 0, 1]])] * 4.0)
        leaves_at_3 = {"strategy": "votes", "threshold": [9, 9, 2], "settings": {"k": 0}}
        assert Policy(**leaves_at_3).decide(trace).answer.tolist() == [0]
        assert Policy(**leaves_at_3, answer="head").decide(trace).answer.tolist() == [1]

    def test_depth_cap(self):
        decisions = Policy("patience", 99, max_depth=6).decide(TRACE)
        assert decisions.depth.tolist() == [6, 6]

    def test_a_cap_between_exits_is_the_exit_before(self):
        assert Policy("patience", 99, max_depth=8).decide(TRACE).depth.tolist() == [6, 6]
        assert Policy("patience", 99, max_depth=99).decide(TRACE).depth.tolist() == [12, 12]
        with pytest.raises(InputError, match="max_depth 2 is below the first exit, after layer 3"):
            Policy("patience", 99, max_depth=2).decide(TRACE)

    def test_probability_is_the_heads_at_the_exit(self):
        decisions = Policy("patience", 1).decide(TRACE)
        assert decisions.probability == pytest.approx([softmax(np.array([4.0, 0, 0]))[0]] * 2)


class TestLaws:
    @pytest.mark.parametrize("name", STRATEGIES)
    @given(seed=st.integers(0, 10**6))
    def test_a_policy_that_never_leaves_answers_as_the_last_head(self, name, seed):
        trace = random_trace(seed)
        decisions = Policy(name, None, settings_of(name, 6)).decide(trace)
        np.testing.assert_array_equal(decisions.answer, trace.logits[:, -1].argmax(axis=-1))
        assert decisions.speedup == 1

    @pytest.mark.parametrize("name", STRATEGIES)
    @given(seed=st.integers(0, 10**6), low=st.floats(-3, 8), step=st.floats(0, 3))
    def test_a_stricter_threshold_never_lowers_the_mean_depth(self, name, seed, low, step):
        trace = random_trace(seed)
        sign = STRATEGIES[name].sign
        loose, strict = (Policy(name, sign * level, settings_of(name, 6)).decide(trace) for level in (low, low + step))
        assert (strict.depth >= loose.depth).all()

    @pytest.mark.parametrize("name", STRATEGIES)
    def test_numbers_that_are_none_never_leave_early(self, name):
        trace = random_trace(0)
        logits = trace.logits.copy()
        logits[3, 0, 0] = np.nan
        always = Policy(name, -1e9 * STRATEGIES[name].sign, settings_of(name, 6))
        decisions = always.decide(Trace(logits))
        assert decisions.exit[3] == 5
        assert (np.delete(decisions.exit, 3) == 0).all()

    @pytest.mark.parametrize("name", STRATEGIES)
    @given(seed=st.integers(0, 10**6), level=st.floats(-3, 8))
    def test_live_equals_replay(self, name, seed, level):
        """Texts that are asked exit by exit, in a batch that shrinks, leave where the trace says."""
        trace = random_trace(seed, texts=12)
        policy = Policy(name, level, settings_of(name, 6))
        replay = policy.decide(trace)
        levels, ends = policy.levels(6), policy.ends(trace.exit_layers)
        inside = np.arange(len(trace))
        left = np.full(len(trace), -1)
        for number in range(6):
            score = policy.opinion(trace.logits[inside, : number + 1]).score[:, -1]
            leaves = (score >= levels[number]) | ends[number]
            left[inside[leaves]] = number
            inside = inside[~leaves]
        np.testing.assert_array_equal(left, replay.exit)

    @pytest.mark.parametrize("name", STRATEGIES)
    @given(seed=st.integers(0, 10**6), cap=st.integers(2, 14), level=st.sampled_from([0.0, 0.5, 1.0, 2.0]))
    def test_ties_and_depth_caps_are_decided_alike_live_and_in_replay(self, name, seed, cap, level):
        """Logits of a few whole numbers tie classes, votes and scores with thresholds; layers lie anywhere."""
        generator = np.random.default_rng(seed)
        layers = tuple(np.sort(generator.choice(np.arange(2, 15), size=6, replace=False)).tolist())
        trace = Trace(generator.integers(3, size=(12, 6, 3)), None, layers)
        policy = Policy(name, level, settings_of(name, 6), max_depth=max(cap, layers[0]))
        replay = policy.decide(trace)
        assert (replay.depth <= max(cap, layers[0])).all()
        for row in range(len(trace)):
            for number in range(6):
                opinion = policy.opinion(trace.logits[row : row + 1, : number + 1])
                fired = opinion.score[:, -1] >= policy.levels(6)[number]
                if fired[0] or policy.ends(layers)[number]:
                    answer = policy.answers(fired, opinion.answer[:, -1], trace.logits[row : row + 1, number])
                    assert (replay.exit[row], replay.answer[row]) == (number, answer[0])
                    break

    def test_texts_in_chunks_are_decided_alike(self, monkeypatch):
        trace = random_trace(1)
        whole = Policy("votes", 1.2).decide(trace)
        monkeypatch.setattr(
            Trace, "chunks", lambda self, numbers=0: (self.select(slice(i, i + 7)) for i in range(0, 40, 7))
        )
        parts = Policy("votes", 1.2).decide(trace)
        np.testing.assert_array_equal(parts.exit, whole.exit)
        np.testing.assert_array_equal(parts.answer, whole.answer)


class TestSomeExits:
    @pytest.mark.parametrize("name", STRATEGIES)
    @given(seed=st.integers(0, 10_000), cap=st.sampled_from([None, 4]), level=st.floats(0.1, 1.5))
    def test_it_decides_as_on_a_trace_of_these(self, name, seed, cap, level):
        trace, layers = random_trace(seed), (1, 3, 4, 6)
        policy = Policy(name, level * STRATEGIES[name].sign, settings_of(name, len(layers)), max_depth=cap)
        some, theirs = replace(policy, exit_layers=layers).decide(trace), policy.decide(trace.at_exits(layers))
        np.testing.assert_array_equal(some.depth, theirs.depth)
        np.testing.assert_array_equal(some.answer, theirs.answer)
        np.testing.assert_array_equal(some.probability, theirs.probability)
        assert some.speedup == theirs.speedup
        assert {layer: count for layer, count in some.histogram.items() if layer in layers} == theirs.histogram

    def test_a_trace_of_these_is_decided_alike(self):
        policy = Policy("votes", 1.2, exit_layers=(3, 12))
        some = TRACE.at_exits((3, 12))
        np.testing.assert_array_equal(policy.decide(some).depth, policy.decide(TRACE).depth)
        assert policy.decide(some).exit.max() == 1
        assert policy.asked(TRACE.exit_layers) == (3, 12)

    @pytest.mark.parametrize(
        ("layers", "message"),
        [
            ((4, 12), "no exit after layer 4; exits are after layers 3, 6, 9, 12"),
            ((3, 6), "must end with 12"),
        ],
    )
    def test_refuses_exits_of_another_model(self, layers, message):
        with pytest.raises(InputError, match=message):
            Policy("votes", 1.0, exit_layers=layers).decide(TRACE)

    @pytest.mark.parametrize("layers", [(), (6, 3), (-1, 3), "all", (1.5, 3), 3, (True, 3)])
    def test_refuses_what_are_not_layers(self, layers):
        with pytest.raises(InputError, match="exit_layers"):
            Policy("votes", 1.0, exit_layers=layers)

    def test_settings_and_thresholds_are_for_the_exits_that_are_asked(self):
        Policy("votes", [1.0, 2.0], exit_layers=(3, 12)).decide(TRACE)
        with pytest.raises(InputError, match="4 thresholds were given for 2 exits"):
            Policy("votes", [1.0, 2.0, 3.0, 4.0], exit_layers=(3, 12)).decide(TRACE)
        with pytest.raises(InputError, match="4 temperatures were given for 2 exits"):
            Policy("max_prob", 0.9, {"temperatures": [1.0] * 4}, exit_layers=(3, 12)).decide(TRACE)
        with pytest.raises(InputError, match="asks 2 exits, not 4"):
            Policy("votes", 1.0, exit_layers=(3, 12)).levels(4)


class TestProblemTypes:
    def test_multi_label(self):
        logits = np.array([[[3.0, -3.0], [4.0, 4.0]], [[0.1, -0.2], [2.0, -2.0]]])
        trace = Trace(logits, np.array([[1, 0], [1, 1]]), about={"problem_type": MULTI_LABEL})
        decisions = Policy("max_prob", 0.9, problem_type=MULTI_LABEL).decide(trace)
        assert decisions.exit.tolist() == [0, 1]
        assert decisions.answer.tolist() == [[1, 0], [1, 0]]
        assert decisions.probability[0] == pytest.approx([1 / (1 + np.exp(-3)), 1 / (1 + np.exp(3))])
        assert decisions.accuracy == 0.5
        assert decisions.score("micro_f1") == pytest.approx(2 * 2 / (2 + 3))

    def test_a_multi_label_policy_that_never_leaves_answers_as_the_last_head(self):
        trace = multi_label_trace(1)
        decisions = Policy("votes", problem_type=MULTI_LABEL).decide(trace)
        np.testing.assert_array_equal(decisions.answer, trace.logits[:, -1] > 0)

    def test_regression(self):
        trace = regression_trace(1)
        policy = Policy("patience", 1, {"within": 0.3}, problem_type=REGRESSION)
        decisions = policy.decide(trace)
        assert 1 < decisions.speedup < 4
        np.testing.assert_array_equal(decisions.answer, trace.logits[np.arange(60), decisions.exit, 0])
        assert np.isnan(decisions.probability).all()
        assert decisions.score("r2") > 0.5


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        (Policy("entropy"), "entropy"),
        (Policy("votes", 1, {"k": 0.5}), "votes (k=0.5)"),
        (Policy("max_prob", 1, {"temperatures": [1.0], "towards": "right"}), "max_prob (temperatures, towards=right)"),
        (Policy("hybrid", 1, SETTINGS["hybrid"]), "hybrid (votes k=0.5 ≥ 1.5, entropy ≤ 0.4)"),
        (Policy("learned", 0.9, SETTINGS["learned"]), "learned (towards=agreement)"),
    ],
)
def test_names(policy, name):
    assert policy.name == name


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Policy("votes", None, {"k": 0.5}), "Policy(votes (k=0.5), never exits early)"),
        (Policy("max_prob", [0.9, 0.8], max_depth=6), "Policy(max_prob, one threshold per exit, at most 6 layers)"),
        (
            Policy("max_prob", 0.9, certificate=certified()),
            "Policy(max_prob, threshold 0.9, 1.50 × in layers, guarantee: answers differ from the full model's on at "
            "most 1 % of texts, with 95 % confidence)",
        ),
        (Policy("learned", 0.9, SETTINGS["learned"]), "Policy(learned (towards=agreement), threshold 0.9)"),
    ],
)
def test_repr_is_short(policy, text):
    assert repr(policy) == text


class TestFile:
    @pytest.mark.parametrize(
        "policy",
        [
            Policy(),
            Policy("votes", 1.5, {"k": 0.75}),
            Policy("max_prob", [0.9, 0.8, 0.7], {"temperatures": [1.0, 2.0, 3.0]}, "head", "head", 6),
            Policy("patience", 2, {"within": 0.1}, problem_type=REGRESSION, certificate=certified(data="toy")),
            Policy("votes", 1.5, exit_layers=[2, 4, 12]),
            *(Policy(name, 0.9, settings) for name, settings in SETTINGS.items()),
        ],
    )
    def test_round_trip(self, tmp_path, policy):
        policy.save(tmp_path / "policy.json")
        assert Policy.load(tmp_path / "policy.json") == policy

    def test_arrays_become_lists(self, tmp_path):
        Policy("max_prob", np.float32(0.5), {"temperatures": np.ones(2)}).save(tmp_path / "policy.json")
        assert Policy.load(tmp_path / "policy.json") == Policy("max_prob", 0.5, {"temperatures": [1.0, 1.0]})

    def test_people_can_read_it(self, tmp_path):
        Policy("votes", 1.5, {"k": 0.75}).save(tmp_path / "policy.json")
        content = json.loads((tmp_path / "policy.json").read_text())
        assert content["version"] == 3
        assert content["strategy"] == "votes"
        assert content["threshold"] == 1.5

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "there is no policy .*; exitpoll calibrate writes one"),
            ({"version": 9}, "is a policy of version 9, not 3: calibrate again"),
            ({}, "is a policy of version None"),
            ({"version": 3, "strategy": "guess"}, "strategy 'guess' is unknown"),
            ({"version": 3, "treshold": 3}, "fields that no policy has: treshold"),
        ],
    )
    def test_refuses(self, tmp_path, content, message):
        if content is not None:
            (tmp_path / "policy.json").write_text(json.dumps(content))
        with pytest.raises(InputError, match=message):
            Policy.load(tmp_path / "policy.json")


class TestRefusals:
    def test_thresholds_of_another_number(self):
        with pytest.raises(InputError, match="2 thresholds were given for 4 exits"):
            Policy("votes", [1, 2]).decide(TRACE)

    def test_settings_that_a_strategy_does_not_have(self):
        with pytest.raises(InputError, match="strategy 'votes' has no setting 'q'; it has: k"):
            Policy("votes", 1, {"q": 1}).decide(TRACE)

    def test_a_learned_strategy_that_has_learned_nothing(self):
        with pytest.raises(InputError, match="'learned' has no coefficients and no intercepts yet; calibrate fits"):
            Policy("learned", 0.9).decide(TRACE)

    def test_temperatures_for_fewer_exits(self):
        with pytest.raises(InputError, match="2 temperatures were given for 4 exits; give one per exit"):
            Policy("max_prob", 0.9, {"temperatures": [1.0, 2.0]}).decide(TRACE)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("threshold", float("nan")),
            ("threshold", "high"),
            ("threshold", [[1.0], [2.0]]),
            ("settings", [0.5]),
            ("certificate", "x"),
            ("max_depth", -1),
            ("max_depth", "deep"),
            ("problem_type", "poetry"),
        ],
    )
    def test_values_that_make_no_sense(self, field, value):
        with pytest.raises(InputError, match=field):
            Policy(**{field: value})

    def test_a_setting_that_is_no_number(self):
        with pytest.raises(InputError, match="setting k 'half' of strategy 'votes' must be a number between 0 and 1"):
            Policy("votes", 1, {"k": "half"})

    @pytest.mark.parametrize(
        ("strategy", "settings", "message"),
        [
            ("max_prob", {"temperatures": [1.0, 0.0]}, "must be a list of numbers above 0"),
            ("max_prob", {"temperatures": [1.0, None]}, "must be a list of numbers above 0"),
            ("max_prob", {"temperatures": 1.0}, "must be a list of numbers above 0"),
            (
                "learned",
                {"coefficients": [[1.0, 2.0]], "intercepts": [0.0]},
                "must be a list with 4 numbers per exit",
            ),
            ("learned", {"coefficients": [[float("nan")] * 4], "intercepts": [0.0]}, "must be a list with 4 numbers"),
            ("votes", {"k": 10**400}, "must be a number between 0 and 1"),
            ("votes", {"k": True}, "must be a number between 0 and 1"),
            ("entropy", {"normalized": "no"}, "must be true or false"),
            ("confident_patience", {"confidence": float("inf")}, "must be a number"),
            ("hybrid", {"policies": []}, "must be a list of at most 16 policies"),
            ("hybrid", {"policies": [{"strategy": "hybrid", "threshold": 1}]}, "none a hybrid"),
            (
                "hybrid",
                {"policies": [{"strategy": "votes", "threshold": [1]}]},
                "must be a list of at most 16 policies",
            ),
            ("hybrid", {"policies": [{"strategy": "votes", "settings": {"q": 1}}]}, "has no setting 'q'"),
            ("hybrid", {"policies": [{"strategy": "learned", "threshold": 0.5}]}, "of at most 16 policies"),
            (["votes"], {}, "must be a name"),
        ],
    )
    def test_settings_that_make_no_sense(self, strategy, settings, message):
        with pytest.raises(InputError, match=message):
            Policy(strategy, 1.0, settings)

    def test_another_kind_of_task(self):
        with pytest.raises(InputError, match="the policy is for single_label_classification, the trace for regression"):
            Policy("patience", 1).decide(regression_trace(0))

    @pytest.mark.parametrize("name", ["fingerprint", "runtime"])
    def test_another_model_or_runtime(self, name):
        policy = Policy("votes", 1, certificate=certified(**{name: "ours"}))
        policy.decide(Trace(TRACE.logits, about={name: "ours"}))
        with pytest.raises(InputError, match=f"calibrated for {name} ours, and this is {name} theirs"):
            policy.decide(Trace(TRACE.logits, about={name: "theirs"}))

    @pytest.mark.parametrize("name", ["answer", "fallback"])
    def test_unknown_rules(self, name):
        with pytest.raises(InputError, match=f"{name} 'dice' is unknown; choose one of: strategy, head"):
            Policy(**{name: "dice"})

    def test_metrics_that_do_not_fit(self):
        decisions = Policy("patience", 1).decide(TRACE)
        with pytest.raises(InputError, match="metric 'bleu' does not score"):
            decisions.score("bleu")
        with pytest.raises(InputError, match=r"metric 'accuracy_and_f1' does not score .* with 3 classes"):
            decisions.score("accuracy_and_f1")

    def test_scoring_without_labels(self):
        with pytest.raises(InputError, match="have no labels"):
            _ = Policy().decide(Trace(TRACE.logits)).accuracy
