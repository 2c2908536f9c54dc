"""The embedded encoder and data are files of packages that are never imported, checked before they are used."""

from __future__ import annotations

import hashlib
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from exitpoll import EarlyExitModel, InputError, load_splits
from exitpoll.data import demo as embedded
from exitpoll.data.demo import encoder_folder
from exitpoll.data.splits import load_texts
from exitpoll.models.tokenizer import load_tokenizer
from tests.tiny import save_tiny, tiny_tokenizer

INSTALLED = find_spec(embedded.ENCODER) is not None and find_spec(embedded.REVIEWS) is not None
HEADER = "text,label,source\n"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Packages of the right names whose code must not run."""
    for name in (embedded.ENCODER, embedded.REVIEWS):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('this must not run')")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    embedded._digest.cache_clear()
    return tmp_path


def write_reviews(packages, count, source="rotten_tomatoes"):
    path = packages / embedded.REVIEWS / embedded.TABLE
    path.parent.mkdir(exist_ok=True)
    rows = [f'"sentence {number}, quoted",{int(number < count // 2)},{source}\n' for number in range(count)]
    path.write_text(HEADER + "".join(rows) + "a long review,1,imdb\n")


def test_splits_are_drawn_with_a_fixed_seed(packages):
    write_reviews(packages, sum(embedded.SPLITS.values()))
    splits, again = load_splits("embedded"), load_splits("embedded", seed=5)
    assert [len(each) for each in (splits.train, splits.calibration, splits.test)] == [6000, 1500, 1030]
    assert list(splits.label_names) == ["negative", "positive"]
    assert splits.metric == "accuracy"
    assert list(splits.train.first) == list(again.train.first)
    everything = {*splits.train.first, *splits.calibration.first, *splits.test.first}
    assert len(everything) == 8530
    assert "a long review" not in everything
    assert all(0.4 < part.labels.mean() < 0.6 for part in (splits.train, splits.calibration, splits.test))


def test_other_data_are_refused(packages):
    write_reviews(packages, 10)
    with pytest.raises(InputError, match="is not the file that exitpoll knows"):
        load_splits("embedded")


def test_the_encoder_is_loaded_if_its_weights_are_the_known_ones(packages, monkeypatch):
    folder = packages / embedded.ENCODER / "model"
    save_tiny("bert", folder)
    with pytest.raises(InputError, match="is not the file that exitpoll knows"):
        encoder_folder("embedded")
    embedded._digest.cache_clear()
    weights = (folder / embedded.WEIGHTS).read_bytes()
    monkeypatch.setattr(embedded, "DIGEST", hashlib.sha256(weights).hexdigest())
    assert EarlyExitModel.from_encoder("embedded", labels=2).config.exit_layers == [1, 2, 3]
    assert load_tokenizer(encoder_folder("embedded")).pad_token == "[PAD]"
    embedded._digest.cache_clear()
    (folder / embedded.WEIGHTS).unlink()
    with pytest.raises(InputError, match="is missing"):
        encoder_folder("embedded")


def test_it_has_splits_to_choose_from():
    with pytest.raises(InputError, match="has splits to choose from"):
        load_texts("embedded", label_names=["a", "b"], problem_type="single_label_classification")


def test_a_folder_of_that_name_is_another_thing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_tiny("bert", tmp_path / "embedded")
    assert encoder_folder("./embedded") == "./embedded"
    assert encoder_folder(Path("embedded")) == Path("embedded")
    assert len(load_tokenizer("embedded")) == len(tiny_tokenizer())  # of a model folder that has the name


def test_without_the_packages(monkeypatch):
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"the embedded encoder needs more packages: .*exitpoll\[demo\]"):
        encoder_folder("embedded")
    with pytest.raises(InputError, match=r"the embedded data needs more packages: .*exitpoll\[demo\]"):
        load_splits("embedded")


@pytest.mark.skipif(not INSTALLED, reason="the extra demo is not installed")
def test_the_real_packages():
    embedded._digest.cache_clear()
    assert EarlyExitModel.from_encoder("embedded", labels=2).config.exit_layers == [1, 2, 3, 4, 5, 6]
    splits = load_splits("embedded")
    assert splits.train.labels.sum() + splits.calibration.labels.sum() + splits.test.labels.sum() == 4265
    assert splits.test.first[0] == splits.test.first[0].lower()
    assert "sentence_transformers" not in sys.modules
    assert embedded.ENCODER not in sys.modules
