"""Every model folder has a card that says what it is, and nobody's own card is touched."""

from __future__ import annotations

import shutil
from dataclasses import replace

from exitpoll import Guarantee, Policy
from exitpoll.engine.manifest import Manifest
from exitpoll.models.card import OURS, model_card, write_card
from tests.samples import certified


def test_training_writes_a_card(model_folder):
    card = (model_folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: exitpoll\n")
    assert "# model\n" in card
    assert "a head at each of 3 exits, the last after layer 3." in card
    assert "`bad`, `good`, `so-so`" in card
    assert card.count("\n| 3 |") == 1
    assert "no text leaves early" in card
    assert "on `texts`." in card
    assert "method ensemble" in card


def test_a_policy_and_its_promise_are_told(model_folder, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    guarantee = Guarantee("disagreement", 0.02, 0.95)
    Policy("entropy", 0.3, certificate=certified(guarantee)).save(folder / "policy.json")
    write_card(folder)
    card = (folder / "README.md").read_text()
    assert "By `entropy`, 1.50 × fewer layers on average." in card
    assert "Guarantee: answers differ from the full model's on at most 2 % of texts" in card
    assert "77" in card
    assert "# model\n" in card
    Policy("entropy", None).save(folder / "policy.json")
    assert "No text leaves early." in model_card(folder, "x")
    Policy("entropy", None, max_depth=2).save(folder / "policy.json")
    assert "within 2 layers" in model_card(folder, "x")


def test_a_card_of_ones_own_stays(model_folder, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    (folder / "README.md").write_text("mine")
    write_card(folder)
    assert (folder / "README.md").read_text() == "mine"


def test_an_export_says_so(exported_folder):
    card = model_card(exported_folder, "model, onnx")
    assert "exported for ONNX Runtime in float32" in card
    assert "pip install 'exitpoll[onnx]'" in card


def test_int8_is_not_said_to_have_the_scores_of_float32(exported_folder, model_folder, tmp_path):
    folder = shutil.copytree(exported_folder, tmp_path / "int8")
    shutil.copy(model_folder / "training.json", folder)
    replace(Manifest.load(folder), precision="int8").save(folder)
    assert "the float32 model's accuracy, in %" in model_card(folder, "model")


def test_whatever_is_missing_or_broken_is_left_out(tmp_path):
    (tmp_path / "policy.json").write_text("{")
    card = model_card(tmp_path, "empty")
    assert OURS in card
    assert "## Exits" not in card
