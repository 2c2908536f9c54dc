"""The engine as users call it: a folder, texts, predictions; and what it refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest

from exitpoll import Engine, InputError, Policy, Prediction, Texts, Trace, record
from exitpoll.engine import engine as engine_module
from exitpoll.engine.loading import load_model
from exitpoll.engine.runtime import LoadedModel
from exitpoll.files import read_json, write_json
from tests.samples import certified
from tests.tiny import toy_rows

TEXTS = [row[0] for row in toy_rows(30)]


@pytest.fixture
def folder(model_folder, tmp_path):
    return shutil.copytree(model_folder, tmp_path / "model")


def test_without_a_policy_it_is_the_full_model(folder, tmp_path):
    loaded = load_model(str(folder))
    trace = record(loaded, Texts(TEXTS), tmp_path / "t")
    predictions = Engine.load(folder)(TEXTS)
    names, classes = ["bad", "good", "so-so"], trace.logits[:, -1].argmax(axis=-1)
    assert [prediction.label for prediction in predictions] == [names[number] for number in classes]
    assert {prediction.depth for prediction in predictions} == {3}


def test_the_policy_of_the_folder_is_used(folder):
    Policy("max_prob", 0.0).save(folder / "policy.json")
    predictions = Engine.load(folder)(TEXTS, batch_size=4)
    assert {prediction.depth for prediction in predictions} == {1}
    assert {prediction.depth for prediction in Engine.load(folder, policy=Policy())(TEXTS)} == {3}


def test_an_engine_is_made_of_a_model_and_a_policy(folder):
    for wrong in (str(folder), None):
        with pytest.raises(InputError, match=r"must be what load_model returns; Engine.load takes a folder"):
            Engine(wrong)
    for make in (lambda policy: Engine(load_model(folder), policy), lambda policy: Engine.load(folder, policy=policy)):
        with pytest.raises(InputError, match=r"policy 'policy.json' must be a Policy; Policy.load reads one"):
            make("policy.json")


def test_a_model_without_a_policy_says_so(folder, caplog):
    engine = Engine.load(folder)
    assert [record.message for record in caplog.records] == [
        f"'{folder}' has no policy.json, so no text will exit early: calibrate the model"
    ]
    assert (caplog.records[0].name, caplog.records[0].levelname) == ("exitpoll", "WARNING")
    caplog.clear()
    engine(TEXTS)
    Engine.load(folder, policy=Policy())
    Policy("max_prob", 0.5).save(folder / "policy.json")
    Engine.load(folder)
    assert caplog.records == []


def test_probabilities_of_all_classes(folder):
    for prediction in Engine.load(folder, policy=Policy("max_prob", 0.36))(TEXTS):
        assert list(prediction.probabilities) == ["bad", "good", "so-so"]
        assert sum(prediction.probabilities.values()) == pytest.approx(1)
        assert prediction.probabilities[prediction.label] == pytest.approx(prediction.probability)
        assert prediction.label == max(prediction.probabilities, key=prediction.probabilities.get)


@pytest.mark.parametrize(
    ("prediction", "probabilities", "shown"),
    [
        (
            Prediction("a", 0.12345678, 2, logits=np.array([0.0, np.log(3)]), label_names=("a", "b")),
            {"a": 0.25, "b": 0.75},
            "Prediction(label='a', probability=0.123457, depth=2)",
        ),
        (
            Prediction(("a",), {"a": 0.7777777, "b": 0.1}, 1),
            {"a": 0.7777777, "b": 0.1},
            "Prediction(label=('a',), probability={'a': 0.777778, 'b': 0.1}, depth=1)",
        ),
        (
            Prediction(1.5, float("nan"), 1, is_finite=False),
            {},
            "Prediction(label=1.5, probability=nan, depth=1, is_finite=False)",
        ),
    ],
)
def test_what_a_prediction_shows(prediction, probabilities, shown):
    assert prediction.probabilities == pytest.approx(probabilities)
    assert repr(prediction) == shown


@pytest.mark.parametrize("wrong", [None, 5, "", " ", ["model"], b"model"])
def test_anything_but_a_folder_is_refused(wrong):
    for load in (Engine.load, load_model):
        with pytest.raises(InputError, match=r"folder .* must be the path of a model folder, or its name on the hub"):
            load(wrong)


def test_progress_is_shown_on_request(folder, capsys):
    engine = Engine.load(folder, policy=Policy("max_prob", 0.36))
    expected = engine(TEXTS * 3)
    assert engine((text for text in TEXTS * 3), progress=True) == engine(TEXTS * 3, progress=True) == expected
    out, shown = capsys.readouterr()
    assert out == ""
    assert "predicting" in shown or not sys.stderr.isatty()


def test_the_reports_of_progress(folder, monkeypatch):
    reports = []
    monkeypatch.setattr(engine_module, "shown", lambda progress: nullcontext(reports.append))
    Engine.load(folder)(TEXTS * 3, progress=True)
    assert [(report.task, report.done, report.total) for report in reports] == [
        ("predicting", 32, 90),
        ("predicting", 64, 90),
        ("predicting", 90, 90),
    ]
    assert reports[-1].mean_depth == 3


def test_pairs_need_a_model_trained_on_pairs(folder):
    pairs = [(text, "the plot") for text in TEXTS[:3]]
    with pytest.raises(InputError, match="text 0: a pair of texts, where the model was trained on single texts"):
        Engine.load(folder)(pairs)
    summary = read_json(folder / "training.json")
    write_json(folder / "training.json", summary | {"pairs": True})
    assert len(Engine.load(folder)(pairs)) == 3
    with pytest.raises(InputError, match="text 3: a single text, where the model was trained on pairs"):
        Engine.load(folder)([*pairs, "good film"])
    (folder / "training.json").unlink()  # not known
    assert len(Engine.load(folder)(pairs)) == len(Engine.load(folder)(TEXTS[:3])) == 3
    with pytest.raises(InputError, match="some texts are pairs and some are not"):
        Engine.load(folder)([*pairs, "good film"])


ON_THE_HUB = """
import sys
from exitpoll import Engine, Policy
for policy in (None, Policy("max_prob", 0.0)):
    if policy:
        policy.save(sys.argv[1])
    print([prediction.depth for prediction in Engine.load("us/ours")(["good film", "bad plot"])])
"""


@pytest.mark.slow
def test_the_policy_of_a_model_on_the_hub_is_used(folder, tmp_path):
    cache = tmp_path / "hub" / "models--us--ours"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40)
    snapshot = shutil.copytree(folder, cache / "snapshots" / ("0" * 40))
    offline = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", ON_THE_HUB, snapshot / "policy.json"]
    done = subprocess.run(command, env=offline, capture_output=True, text=True)
    assert done.stdout.split("\n") == ["[3, 3]", "[1, 1]", ""], done.stderr


def test_long_texts_are_truncated_as_in_training(folder):
    engine = Engine.load(folder)
    long = "good " * 200_000  # a megabyte
    assert engine([long]) == engine(["good " * 60])


@pytest.mark.parametrize(
    ("problem_type", "logits", "expected"),
    [
        ("multi_label_classification", [2.0, -2.0], Prediction(("x",), {"x": 0.881, "y": 0.119}, 1)),
        ("regression", [1.5], Prediction(1.5, float("nan"), 1)),
    ],
)
def test_other_problem_types(problem_type, logits, expected):
    class Fixed:
        """Returns the same logits for every text."""

        exit_layers, shares_layers, fingerprint, name = (1,), False, "fixed", "none"
        classes, exits_by_itself = len(logits), False

        def __init__(self):
            self.problem_type = problem_type

        def embed(self, tokens):
            return len(tokens["input_ids"])

        def advance(self, state, layers):
            return state

        def logits_at(self, state, exit_number, rows=None):
            return np.tile(np.array(logits, dtype=np.float32), (state, 1))

    [prediction] = Engine(LoadedModel(Fixed(), lambda texts: {"input_ids": [[1]] * len(texts)}, ["x", "y"]))(["text"])
    assert prediction.label == expected.label
    assert prediction.probability == pytest.approx(expected.probability, abs=1e-3, nan_ok=True)


@pytest.mark.parametrize("text", [None, 5, "", " ", (), ("a",), ("a",) * 3, ("a", ""), ["a"], ["a", 1], b"a", "\ud800"])
def test_refuses_anything_but_texts_and_names_their_number(folder, text):
    with pytest.raises(InputError, match="text 3 "):
        Engine.load(folder)(["good film"] * 3 + [text])


@pytest.mark.parametrize("text", ["a\x00b", "\x1b[31m", "\u202e", "🙂", "a" * 10_000])
def test_odd_characters_are_texts(folder, text):
    assert len(Engine.load(folder)([text])) == 1


def test_refusals(folder):
    with pytest.raises(InputError, match="batch_size 0 must be an integer, at least 1"):
        Engine.load(folder)(TEXTS, batch_size=0)
    with pytest.raises(InputError, match="give a list of texts, not one text"):
        Engine.load(folder)("good film")
    for missing in (f"{folder}-mistyped", "mistyped", "a/b/c"):
        with pytest.raises(InputError, match="does not exist, and is not a name on the hub"):
            Engine.load(missing)
    with pytest.raises(InputError, match="2 thresholds were given for 3 exits"):
        Engine.load(folder, policy=Policy("votes", [1, 2]))
    with pytest.raises(InputError, match="the policy is for regression, the model for single_label"):
        Engine.load(folder, policy=Policy("patience", 1, {"within": 0.1}, problem_type="regression"))
    with pytest.raises(InputError, match="calibrated for fingerprint other, and this is fingerprint"):
        Engine.load(folder, policy=Policy("votes", 1, certificate=certified(fingerprint="other")))
    with pytest.raises(InputError, match="2 temperatures were given for 3 exits"):
        Engine.load(folder, policy=Policy("max_prob", 0.9, {"temperatures": [1.0, 1.0]}))
    (folder / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(InputError, match="cannot be loaded"):
        Engine.load(folder)


def test_a_trace_and_an_engine_agree_on_the_decisions_of_a_policy(folder, tmp_path):
    loaded = load_model(str(folder))
    record(loaded, Texts(TEXTS), tmp_path / "t")
    policy = Policy("entropy", 1.05)
    replay = policy.decide(Trace.load(tmp_path / "t"))
    predictions = Engine.load(folder, policy=policy)(TEXTS, 7)
    assert [prediction.depth for prediction in predictions] == replay.depth.tolist()
