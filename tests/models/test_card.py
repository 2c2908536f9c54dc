"""Every model folder has a card that describes it; a card that a user changed is kept."""

from __future__ import annotations

import shutil
from dataclasses import replace
from importlib.metadata import version

import pytest

from exitpoll import Guarantee, Policy
from exitpoll.decide.certificate import Speedup
from exitpoll.decide.shift import Profile
from exitpoll.engine.manifest import Manifest
from exitpoll.models.card import GENERATED, model_card, write_card
from tests.samples import certified


def test_training_writes_a_card(model_folder):
    card = (model_folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: exitpoll\n")
    assert "# model\n" in card
    assert "a classification head at each of 3 exits, the last after layer 3." in card
    assert "`bad`, `good`, `so-so`" in card
    assert card.count("\n| 3 |") == 1
    assert "no text exits early" in card
    assert "on `texts`." in card
    assert "method ensemble" in card
    assert f"Settings of exitpoll {version('exitpoll')}: method" in card


def test_a_policy_and_its_guarantee_are_described(model_folder, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    guarantee = Guarantee("disagreement", 0.02, 0.95)
    Policy("entropy", 0.3, certificate=certified(guarantee)).save(folder / "policy.json")
    write_card(folder)
    card = (folder / "README.md").read_text()
    assert "Policy: `entropy`, with a speed-up of 1.50 × in layers on 77 calibration texts." in card
    assert "Guarantee: answers differ from the full model's on at most 2 % of texts" in card
    assert "for texts from the same distribution as the 77 calibration texts." in card
    assert "# model\n" in card
    assert "It asks only" not in card
    Policy("entropy", 0.3, exit_layers=(1, 3), certificate=certified(guarantee)).save(folder / "policy.json")
    assert "It asks only the exits after layers 1, 3." in model_card(folder, "x")
    Policy("entropy", None).save(folder / "policy.json")
    assert "No text exits early." in model_card(folder, "x")
    Policy("entropy", None, max_depth=2).save(folder / "policy.json")
    assert "within 2 layers" in model_card(folder, "x")


def test_a_speed_up_in_layers_has_an_interval(model_folder, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    depths = {1: 40, 2: 30, 3: 30}  # mean 1.9, standard deviation 0.831
    certificate = replace(certified(Speedup(1.5)), profile=Profile(depths))
    Policy("entropy", 0.3, certificate=certificate).save(folder / "policy.json")
    card = model_card(folder, "x")
    error = 1.96 * 0.83066 / 99**0.5
    interval = f"{3 / (1.9 + error):.2f} to {3 / (1.9 - error):.2f}"
    assert f"a speed-up of 1.50 × in layers (95 % interval {interval}) on 77 calibration texts" in card
    assert "`exitpoll bench` measures wall-clock time against the same runtime without exits" in card
    assert "as fast" not in card


def test_a_card_that_a_user_wrote_is_kept(model_folder, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    (folder / "README.md").write_text("mine")
    write_card(folder)
    assert (folder / "README.md").read_text() == "mine"


@pytest.mark.slow
def test_an_export_is_described_as_one(exported_folder):
    card = model_card(exported_folder, "model, onnx")
    assert "exported to ONNX Runtime in float32" in card
    assert "pip install 'exitpoll[onnx]'" in card


def test_the_scores_of_int8_are_those_of_the_float32_model(exported_folder, model_folder, tmp_path):
    folder = shutil.copytree(exported_folder, tmp_path / "int8")
    shutil.copy(model_folder / "training.json", folder)
    replace(Manifest.load(folder), precision="int8").save(folder)
    assert "The accuracy of the float32 model, in %" in model_card(folder, "model")


def test_missing_and_broken_files_are_left_out(tmp_path):
    (tmp_path / "policy.json").write_text("{")
    (tmp_path / "training.json").write_text("{")
    card = model_card(tmp_path, "empty")
    assert GENERATED in card
    assert "## Exits" not in card
