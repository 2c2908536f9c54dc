"""The embedded data are files of a package that is never imported, and are checked before they are used."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from exitpoll import InputError, load_splits
from exitpoll.data import demo
from exitpoll.data.splits import load_texts
from exitpoll.decide.metrics import SINGLE_LABEL

HEADER = "text,label,source\n"


@pytest.fixture
def package(inert_package):
    return inert_package(demo.REVIEWS)


def write_reviews(package, count, source="rotten_tomatoes"):
    path = package / demo.TABLE
    path.parent.mkdir(exist_ok=True)
    rows = [f'"sentence {number}, quoted",{int(number < count // 2)},{source}\n' for number in range(count)]
    path.write_text(HEADER + "".join(rows) + "a long review,1,imdb\n")


def test_splits_are_drawn_with_a_fixed_seed(package):
    write_reviews(package, sum(demo.SPLITS.values()))
    splits, again = load_splits("embedded"), load_splits("embedded", seed=5)
    assert [len(part) for part in (splits.train, splits.calibration, splits.test)] == [6000, 1500, 1030]
    assert list(splits.label_names) == ["negative", "positive"]
    assert splits.metric == "accuracy"
    assert list(splits.train.first) == list(again.train.first)
    everything = {*splits.train.first, *splits.calibration.first, *splits.test.first}
    assert len(everything) == 8530
    assert "a long review" not in everything
    assert all(0.4 < part.labels.mean() < 0.6 for part in (splits.train, splits.calibration, splits.test))


def test_other_data_are_refused(package):
    write_reviews(package, 10)
    with pytest.raises(InputError, match="is not the file that exitpoll expects"):
        load_splits("embedded")


def test_it_has_splits_to_choose_from():
    with pytest.raises(InputError, match="has splits to choose from"):
        load_texts("embedded", label_names=["a", "b"], problem_type=SINGLE_LABEL)


def test_without_the_package(monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"the embedded data needs more packages: .*exitpoll\[demo\]"):
        load_splits("embedded")


@pytest.mark.skipif(find_spec(demo.REVIEWS) is None, reason="the extra demo is not installed")
def test_the_real_package():
    splits = load_splits("embedded")
    assert splits.train.labels.sum() + splits.calibration.labels.sum() + splits.test.labels.sum() == 4265
    assert splits.test.first[0] == splits.test.first[0].lower()
    assert demo.REVIEWS not in sys.modules
