"""Datasets of the hub. The client is real; only the download is replaced by a dataset made here."""

from __future__ import annotations

import numpy as np
import pytest

from exitpoll import InputError, load_splits
from exitpoll.data.tasks import TASKS
from exitpoll.decide.metrics import METRICS


@pytest.fixture
def hub(monkeypatch):
    datasets = pytest.importorskip("datasets")
    loaded = []

    def offer(*, hide_test_labels=False, **columns):
        features = None
        if "names" in columns:
            names = columns.pop("names")
            features = datasets.Features(
                {name: datasets.Value("string") for name in columns if name != "label"}
                | {"label": datasets.ClassLabel(names=names)}
            )
        dataset = datasets.Dataset.from_dict(columns, features=features)
        splits = ("train", "validation", "validation_matched", "test")
        served = datasets.DatasetDict(dict.fromkeys(splits, dataset))
        if hide_test_labels:  # as in GLUE
            hidden = {**columns, "label": [-1] * len(columns["label"])}
            served["test"] = datasets.Dataset.from_dict(hidden, features=features)

        def load(path, name=None):
            loaded.append((path, name))
            return served

        monkeypatch.setattr(datasets, "load_dataset", load)

    offer.loaded = loaded  # type: ignore[attr-defined]
    return offer


def test_class_numbers_become_names(hub):
    hub(text=["a", "b", "c", "d"], label=[0, 1, 1, 0], names=["World", "Sports"])
    splits = load_splits("ag_news")
    assert hub.loaded == [("fancyzhx/ag_news", None)]
    assert list(splits.label_names) == ["World", "Sports"]  # the order of the hub, not alphabetical


def test_f1_is_of_the_class_with_number_1_on_the_hub(hub):
    columns = {"sentence1": ["a"] * 8, "sentence2": ["b"] * 8}
    hub(**columns, label=[1, 1, 1, 0] * 2, names=["not_equivalent", "equivalent"])
    splits = load_splits("mrpc")
    assert list(splits.label_names) == ["not_equivalent", "equivalent"]
    always_yes = METRICS[splits.metric](splits.test.labels, np.ones(8))
    assert always_yes == pytest.approx((0.75 + 2 * 0.75 / 1.75) / 2)


def test_a_test_split_whose_labels_are_hidden(hub):
    hub(sentence=list("abcdefgh"), label=[1, 0] * 4, names=["no", "yes"], hide_test_labels=True)
    splits = load_splits("sst2")
    assert "the dev split is the test split: there is no labelled test split" in splits.notes
    assert splits.unlabelled.labels is None
    assert list(splits.unlabelled.first) == list("abcdefgh")
    hub(sentence=list("abcdefgh"), label=[1, 0] * 4, names=["no", "yes"])
    assert load_splits("sst2").unlabelled is None


def test_texts_without_a_label_are_left_out_and_counted(hub):
    hub(text=list("abcd"), label=[0, 1, -1, 0], names=["no", "yes"])
    splits = load_splits("some/thing")
    assert len(splits.test) == 3
    assert "1 texts of some/thing train have no label and were left out" in splits.notes


@pytest.mark.parametrize(("name", "task"), [("someone/mrpc", None), ("my/own", "mrpc")])
def test_a_dataset_by_its_full_name_is_that_dataset(hub, name, task):
    hub(text=list("abcd"), label=[0, 1, 1, 0], names=["no", "yes"])
    splits = load_splits(name, task=task)
    assert hub.loaded == [(name, None)]
    assert splits.metric == ("accuracy" if task is None else "accuracy_and_f1")


@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_known_task_finds_its_columns(hub, task):
    known = TASKS[task]
    columns = {name: [f"{name} {row}" for row in range(4)] for name in known.columns}
    hub(**columns, **{known.label: ["0", "1", "0", "1"]}, idx=["0", "1", "2", "3"])
    splits = load_splits(task)
    assert splits.is_pairs == (len(known.columns) == 2)
    assert splits.test.first[0] == f"{known.columns[0]} 0"
    assert splits.metric == known.metric


def test_trec_reads_the_coarse_labels(hub):
    hub(text=list("abcdefgh"), label=["17", "3"] * 4, label_coarse_original=["NUM", "LOC"] * 4)
    assert list(load_splits("trec").label_names) == ["LOC", "NUM"]


def test_any_dataset_by_its_hub_name(hub):
    hub(text=["a", "b"] * 4, label=[0, 1] * 4, names=["neg", "pos"])
    assert len(load_splits("stanfordnlp/imdb").test) == 8


def test_an_error_of_the_hub_is_one_line(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def fail(*_):
        raise ConnectionError("no route\nto the hub")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(
        InputError,
        match="'no/such' is not a local file or folder, and the hub did not provide it: ConnectionError: no route",
    ):
        load_splits("no/such")


def test_no_train_split(monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: {"test": []})
    with pytest.raises(InputError, match="no train split; its splits are: test"):
        load_splits("some/thing")
