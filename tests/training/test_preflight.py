"""What is refused before data and weights are read."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import numpy as np
import pytest

from exitpoll import METHODS, InputError, TrainingSettings
from exitpoll.decide.metrics import PROBLEM_TYPES
from exitpoll.decide.strategies import STRATEGIES
from exitpoll.training.objectives import loss_for
from exitpoll.training.settings import fallback_notes
from exitpoll.training.train import preflight


def test_settings_are_resolved(tmp_path):
    assert preflight(None, tmp_path / "m", native_head=False, overwrite=False) == TrainingSettings().resolved()
    settings = preflight(TrainingSettings(method="pabee"), tmp_path / "m", native_head=True, overwrite=False)
    assert (settings.objective, settings.schedule) == ("relevancy", "heads")
    assert not list(tmp_path.iterdir())


def test_wrong_settings_and_folders_in_use_are_refused(tmp_path):
    with pytest.raises(InputError, match="epochs 0 must be at least 1"):
        preflight(TrainingSettings(epochs=0), tmp_path / "m", native_head=False, overwrite=False)
    (tmp_path / "m").touch()
    with pytest.raises(InputError, match="exists and is not an exitpoll model folder"):
        preflight(None, tmp_path / "m", native_head=False, overwrite=True)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("epochs", "3", "epochs '3' must be an integer"),
        ("epochs", 1.5, "epochs 1.5 must be an integer"),
        ("epochs", True, "epochs True must be an integer"),
        ("learning_rate", None, "learning_rate None must be a number"),
        ("learning_rate", float("nan"), "learning_rate nan must be above 0"),
        ("through_target", 1, "through_target 1 must be True or False"),
        ("method", "bert", "method 'bert' is unknown; choose one of: deebert"),
        ("method", ["ensemble"], "is unknown; choose one of: deebert"),
        ("seed", -1, "seed -1 must be at least 0"),
    ],
)
def test_a_wrong_value_is_named(field, value, message):
    with pytest.raises(InputError, match=re.escape(message)):
        TrainingSettings(**{field: value}).resolved()


def test_numbers_of_numpy_become_numbers_of_python():
    settings = TrainingSettings(epochs=np.int64(3), learning_rate=np.float32(0.5), neighbors=np.int8(1)).resolved()
    assert json.loads(json.dumps(asdict(settings)))["epochs"] == 3
    assert TrainingSettings(diversity_weight=0).resolved().diversity_weight == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
@pytest.mark.parametrize("native_head", [False, True])
def test_every_method_fits_every_problem(method, problem_type, native_head):
    given = TrainingSettings(method=method)
    settings = given.resolved(native_head=native_head, problem_type=problem_type)
    loss_for(settings, problem_type)
    assert problem_type != "regression" or STRATEGIES[settings.strategy].regression
    fell_back = settings.objective != METHODS[method].objective
    assert fell_back == (method == "ensemble" and problem_type == "regression")
    assert len(fallback_notes(given, settings, problem_type, labelled=True)) == fell_back


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "taken"), "exists and is not an exitpoll model folder"),
        (("--out", "m", "--epochs", "0"), "epochs 0 must be at least 1"),
        (("--out", "m", "--schedule", "heads"), "use --classifier"),
    ],
)
def test_the_command_line_refuses_them_before_it_reads_anything(run, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    code, _, err = run("train", "--encoder", "no/such-encoder", "--data", tmp_path / "none.csv", *options)
    assert code == 2
    assert message in err
