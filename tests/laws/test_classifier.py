"""Law: exits below a fine-tuned classifier leave its own answers as they are, to the last bit."""

from __future__ import annotations

import inspect
import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from exitpoll import EarlyExitModel, Engine, Texts, TrainingSettings, load_model, train
from exitpoll.decide.numerics import softmax
from exitpoll.engine.record import exit_logits
from exitpoll.engine.torch_runtime import loaded_model
from tests.tiny import WORDS, tiny_classifier, tiny_tokenizer, toy_splits, write_toy_folder

FAST = TrainingSettings(epochs=1, batch_size=16, logs_per_epoch=1)
NAMES = ("bad", "good", "so-so")
LONG = [" ".join(random.Random(length).choices(WORDS, k=length)) for length in (3, 120, 130, 180, 400)]


def save_classifier(folder, name="bert", longest=None):
    """Save a classifier with 200 positions, and a tokenizer that may read less."""
    classifier = tiny_classifier(name, max_position_embeddings=200)
    classifier.config.id2label = dict(enumerate(NAMES))
    classifier.save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    if longest is not None:
        tokenizer.model_max_length = longest
    tokenizer.save_pretrained(folder)
    return folder


def own_logits(folder, text, longest):
    """What transformers itself answers to a text: (classes,)."""
    classifier = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokens = AutoTokenizer.from_pretrained(folder)(text, truncation=True, max_length=longest, return_tensors="pt")
    known = inspect.signature(classifier.forward).parameters
    with torch.no_grad():
        return classifier(**{name: column for name, column in tokens.items() if name in known}).logits[0].numpy()


@pytest.mark.parametrize("name", ["bert", "distilbert", "deberta-v2", "modernbert", "roberta"])
def test_long_texts_are_read_as_the_classifier_reads_them(name, tmp_path):
    folder = save_classifier(tmp_path, name)
    model = EarlyExitModel.from_classifier(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    longest = 198 if name == "roberta" else 200  # its positions start after that of the padding token
    assert model.config.max_length == longest
    loaded = loaded_model(model, tokenizer)
    for text in LONG:
        expected = own_logits(folder, text, longest)
        tokens = tokenizer(text, truncation=True, max_length=longest, return_tensors="pt")
        with torch.no_grad():
            assert np.array_equal(model(**tokens).logits[0].numpy(), expected)
        assert np.array_equal(exit_logits(loaded.runtime, loaded.tokenize(Texts([text])))[0, -1], expected)
        [prediction] = Engine(loaded)([text])
        assert prediction.label == NAMES[expected.argmax()]
        assert prediction.probability == pytest.approx(softmax(expected).max(), rel=1e-6)


def test_a_tokenizer_may_read_less_than_there_are_positions(tmp_path):
    folder = save_classifier(tmp_path, longest=150)
    model = EarlyExitModel.from_classifier(folder).eval()
    assert model.config.max_length == 150
    loaded = loaded_model(model, AutoTokenizer.from_pretrained(folder))
    for text in LONG:
        logits = exit_logits(loaded.runtime, loaded.tokenize(Texts([text])))[0, -1]
        assert np.array_equal(logits, own_logits(folder, text, 150))


def test_a_classifier_without_a_tokenizer_reads_what_it_has_positions_for(tmp_path):
    tiny_classifier("bert", max_position_embeddings=200).save_pretrained(tmp_path)
    assert EarlyExitModel.from_classifier(tmp_path).config.max_length == 200
    assert EarlyExitModel.from_classifier(tmp_path, max_length=64).config.max_length == 64


def weights_of(folder, name):
    """The weights of the encoder and the classifier's own head, by name."""
    prefix = "bert." if name == "classifier" else "encoder."
    weights = load_file(folder / "model.safetensors")
    body = {key.removeprefix(prefix): tensor for key, tensor in weights.items() if key.startswith(prefix)}
    head = {
        key.removeprefix("native."): tensor for key, tensor in weights.items() if key.split(".")[-2] == "classifier"
    }
    return body | head


def trained_from_python(folder, out, run, data):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return train(EarlyExitModel.from_classifier(folder), tokenizer, toy_splits(), out, FAST).notes


def trained_on_the_command_line(folder, out, run, data):
    options = ("--epochs", "1", "--batch-size", "16", "--logs-per-epoch", "1")
    code, printed, err = run("train", "--classifier", folder, "--data", data, "--out", out, *options)
    assert code == 0, err
    return printed


@pytest.mark.parametrize("trained", [trained_from_python, trained_on_the_command_line])
def test_training_leaves_the_classifier_alone(trained, run, tmp_path):
    folder = save_classifier(tmp_path / "classifier")
    notes = trained(folder, tmp_path / "m", run, write_toy_folder(tmp_path / "data"))
    assert "texts are read up to 200 tokens, as the classifier does" in str(notes)
    before, after = weights_of(folder, "classifier"), weights_of(tmp_path / "m", "model")
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    loaded = load_model(tmp_path / "m")
    for text in LONG:
        logits = exit_logits(loaded.runtime, loaded.tokenize(Texts([text])))[0, -1]
        assert np.array_equal(logits, own_logits(folder, text, 200))


def test_a_named_schedule_trains_it_further(tmp_path):
    folder = save_classifier(tmp_path / "classifier")
    settings = TrainingSettings(epochs=1, logs_per_epoch=1, schedule="joint")
    model, tokenizer = EarlyExitModel.from_classifier(folder), AutoTokenizer.from_pretrained(folder)
    train(model, tokenizer, toy_splits(), tmp_path / "m", settings)
    before, after = weights_of(folder, "classifier"), weights_of(tmp_path / "m", "model")
    assert not torch.equal(before["classifier.weight"], after["classifier.weight"])


def test_a_shorter_length_is_said_to_change_answers(tmp_path):
    folder = save_classifier(tmp_path / "classifier")
    model, tokenizer = EarlyExitModel.from_classifier(folder, max_length=64), AutoTokenizer.from_pretrained(folder)
    trained = train(model, tokenizer, toy_splits(), tmp_path / "m", FAST)
    note = "texts are read up to 64 tokens, where the classifier reads 200: its answers on longer texts change"
    assert note in trained.notes
