"""A classifier that does not name its classes: the order of the data's names is checked against gold labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitpoll import EarlyExitModel, InputError, TrainingSettings, train
from exitpoll.training import labels
from exitpoll.training.labels import SIGNIFICANCE, better_order
from tests.tiny import toy_splits

FAST = TrainingSettings(epochs=1, logs_per_epoch=1)


def answers_in(order, gold, right, generator):
    """Answers of a classifier whose class a is class order[a] of the data, and which is right on a share of texts."""
    own = np.argsort(order)[gold]
    guesses = generator.integers(len(order), size=len(gold))
    return np.where(generator.random(len(gold)) < right, own, guesses)


@pytest.mark.parametrize("order", [(1, 0), (2, 0, 1), (0, 2, 1), (*range(1, 77), 0)])
def test_another_order_is_found(order):
    generator = np.random.default_rng(0)
    gold = generator.integers(len(order), size=2000)
    fit = better_order(gold, answers_in(order, gold, 0.8, generator), len(order))
    assert tuple(fit.order) == order
    assert fit.right > fit.assumed


@pytest.mark.parametrize("classes", [2, 3, 77])
@pytest.mark.parametrize("right", [0.2, 0.9])
def test_the_assumed_order_is_kept_where_it_fits(classes, right):
    generator = np.random.default_rng(1)
    gold = generator.integers(classes, size=2000)
    assert better_order(gold, answers_in(range(classes), gold, right, generator), classes) is None


def test_chance_refuses_no_more_often_than_stated():
    generator, trials = np.random.default_rng(2), 3000
    refused = sum(
        better_order(generator.integers(3, size=200), generator.integers(3, size=200), 3) is not None
        for _ in range(trials)
    )
    assert refused <= 3 * SIGNIFICANCE * trials


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=12),
)
def test_a_few_texts_prove_nothing(pairs):
    gold, answers = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    assert better_order(gold, answers, 3) is None  # six texts decide, and 1 / 2**6 is above the level


@pytest.fixture
def answering(monkeypatch):
    """Let the classifier answer the gold labels, renamed by an order."""

    def set_order(*order):
        def logits(model, texts, tokenizer):
            own = np.argsort(order)[texts.labels]
            return np.eye(len(order), dtype=np.float32)[own][:, None]

        monkeypatch.setattr(labels, "record_logits", logits)

    return set_order


def test_names_of_the_data_are_taken_in_an_order_that_fits(answering, classifier_folder, tokenizer, tmp_path):
    answering(0, 1, 2)
    trained = train(EarlyExitModel.from_classifier(classifier_folder), tokenizer, toy_splits(), tmp_path / "m", FAST)
    assert "the model does not name its classes; they are taken to be, in order: bad, good, so-so" in trained.notes
    assert trained.model.config.label2id == {"bad": 0, "good": 1, "so-so": 2}


def test_another_order_is_refused_and_named(answering, classifier_folder, tokenizer, tmp_path):
    answering(2, 0, 1)
    with pytest.raises(InputError) as caught:
        train(EarlyExitModel.from_classifier(classifier_folder), tokenizer, toy_splits(), tmp_path / "m", FAST)
    assert str(caught.value) == (
        "the classifier does not name its classes, and their order seems to be so-so, bad, good (right on 100% of "
        "texts, where bad, good, so-so is right on 0%): name them with labels"
    )
    assert "with --labels" in caught.value.with_flags()
    assert not list(tmp_path.iterdir())


def test_that_order_is_taken_when_it_is_named(answering, classifier_folder, tokenizer, tmp_path):
    answering(0, 1, 2)
    names = ["so-so", "bad", "good"]
    splits = toy_splits()
    renamed = {
        name: replace(part, labels=np.array([1, 2, 0])[part.labels])
        for name in ("train", "calibration", "test")
        if (part := getattr(splits, name))
    }
    model = EarlyExitModel.from_classifier(classifier_folder, labels=names)
    trained = train(model, tokenizer, replace(splits, **renamed, label_names=names), tmp_path / "m", FAST)
    assert "order" not in str(trained.notes)


def test_a_named_order_that_does_not_fit_is_said(answering, classifier_folder, tokenizer, tmp_path):
    answering(1, 0, 2)
    model = EarlyExitModel.from_classifier(classifier_folder, labels=toy_splits().label_names)
    trained = train(model, tokenizer, toy_splits(), tmp_path / "m", FAST)
    assert "the order of the classes seems to be good, bad, so-so" in str(trained.notes)


def test_other_numbers_of_names_are_refused(classifier_folder):
    with pytest.raises(InputError, match="the classifier has 3 classes, not 2"):
        EarlyExitModel.from_classifier(classifier_folder, labels=["a", "b"])
