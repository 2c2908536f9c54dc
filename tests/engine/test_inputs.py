"""Texts for a model: the splits and classes of its training, with labels or without, and which it was trained on."""

from __future__ import annotations

import shutil

import pytest

from exitpoll import InputError, Texts, load_model, record
from exitpoll.engine.inputs import read_texts
from exitpoll.files import read_json, write_json
from tests.tiny import toy_rows, toy_splits, toy_texts, write_jsonl, write_toy_folder, write_tsv


@pytest.fixture(scope="module")
def loaded(model_folder):
    """A model that was trained on the train split of toy_splits(train=400)."""
    return load_model(model_folder)


@pytest.fixture
def data(tmp_path):
    return write_toy_folder(tmp_path / "data", train=400)


def test_training_texts_are_counted(loaded, data):
    held_out = read_texts(loaded, str(data), "test")
    trained_on = set(toy_texts(400, 1).first)
    shared = sum(text in trained_on for text in held_out.texts.first)
    assert held_out.about["overlap"] == {"checked": 24, "shared": shared}
    train = read_texts(loaded, str(data), "train")
    assert train.about["overlap"] == {"checked": 400, "shared": 400}
    assert "400 of 400 texts are training texts of this model" in train.notes


def test_so_are_those_of_a_whole_file(loaded, tmp_path):
    path = write_tsv(tmp_path / "a.tsv", [*toy_rows(30, 1), ("never seen before", "good")])
    read = read_texts(loaded, str(path), "all")
    assert read.about["overlap"] == {"checked": 31, "shared": 30}
    assert "30 of 31 texts are training texts of this model" in read.notes


def test_a_trace_from_python_states_them_too(loaded, tmp_path):
    texts = Texts([*toy_splits(400).train.first[:9], "never seen before"])
    assert record(loaded, texts, tmp_path / "t").about["overlap"] == {"checked": 10, "shared": 9}


def test_texts_that_two_splits_share_are_said_once(model_folder, data, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    write_json(folder / "training.json", read_json(folder / "training.json") | {"data": "data"})
    write_tsv(data / "test.tsv", toy_rows(30, 1))
    read = read_texts(load_model(folder), str(data), "test")
    assert read.about["overlap"]["shared"] == 30
    assert "30 of the 30 test texts are in the train split too" in read.notes
    assert "of this model" not in str(read.notes)


def test_a_model_whose_training_texts_are_not_known(model_folder, data, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "old")
    training = read_json(folder / "training.json")
    write_json(folder / "training.json", {name: part for name, part in training.items() if name != "train_digest"})
    assert "overlap" not in read_texts(load_model(folder), str(data), "train").about
    write_json(folder / "training.json", training | {"train_digest": {"texts": 3}})
    with pytest.raises(InputError, match="is broken: train_digest"):
        load_model(folder)


@pytest.mark.parametrize(("split", "texts"), [("calibration", 5), ("test", 6), ("all", 60)])
def test_texts_without_labels(loaded, tmp_path, split, texts):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text, _ in toy_rows(60)])
    read = read_texts(loaded, str(path), split)
    assert read.texts.labels is None
    assert read.about["metric"] == "accuracy"
    assert len(read.texts) == texts
    assert f"the {texts} texts have no labels: scores are agreement with the full model" in read.notes
