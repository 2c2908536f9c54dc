"""A trace is what the model says of every text, wherever the text stands, whatever is written meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exitpoll import EarlyExitModel, InputError, Texts, Trace, record, recording
from exitpoll.recording import fingerprint, time_exits
from exitpoll.tokens import load_tokenizer, tokenise
from tests.tiny import toy_texts

TEXTS = toy_texts(50, 7)


@pytest.fixture(scope="module")
def model(model_folder):
    return EarlyExitModel.from_pretrained(model_folder).eval()


@pytest.fixture(scope="module")
def words(model_folder):
    return load_tokenizer(model_folder)


def test_a_trace_is_what_the_model_says(model, words, tmp_path):
    trace = record(model, words, TEXTS, tmp_path / "t", batch_size=8)
    with torch.inference_mode():
        for row in (0, 17, 49):
            alone = model(**words(TEXTS.first[row], return_tensors="pt")).exit_logits[0]
            np.testing.assert_allclose(trace.logits[row], alone, atol=1e-5)
    np.testing.assert_array_equal(trace.labels, TEXTS.labels)
    assert trace.layers == [1, 2, 3]


def test_shards_do_not_show(model, words, tmp_path, monkeypatch):
    whole = record(model, words, TEXTS, tmp_path / "whole")
    asked = []
    monkeypatch.setattr(recording, "SHARD", 16)
    monkeypatch.setattr(recording, "TIMED", 4)
    monkeypatch.setattr(recording, "tokenise", lambda texts, *rest: asked.append(len(texts)) or tokenise(texts, *rest))
    seen = []
    parts = record(model, words, TEXTS, tmp_path / "parts", advance=lambda done, texts: seen.append((done, texts)))
    np.testing.assert_allclose(parts.logits, whole.logits, atol=1e-5)
    assert asked == [4, 16, 16, 16, 2]  # memory is for one shard, however many texts
    assert seen == [(16, 50), (32, 50), (48, 50), (50, 50)]


def test_what_is_known_of_a_trace(model, words, tmp_path):
    about = record(model, words, TEXTS, tmp_path / "t", about={"data": "toy", "split": "test"}).about
    assert about["model"] == fingerprint(model)
    assert about["runtime"] == "torch float32"
    assert about["problem_type"] == "single_label_classification"
    assert about["label_names"] == ["bad", "good", "so-so"]
    assert (about["data"], about["split"]) == ("toy", "test")
    assert len(about["milliseconds"]) == 3
    assert about["milliseconds"] == sorted(about["milliseconds"])


def test_texts_without_labels(model, words, tmp_path):
    assert record(model, words, Texts(TEXTS.first), tmp_path / "t").labels is None


def test_a_recording_that_fails_leaves_nothing(model, words, tmp_path):
    def stop(done, texts):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(model, words, TEXTS, tmp_path / "t", advance=stop)
    assert list(tmp_path.iterdir()) == []


def test_refusals(model, words, tmp_path):
    with pytest.raises(InputError, match="no texts to record"):
        record(model, words, Texts([]), tmp_path / "t")
    with pytest.raises(InputError, match="batch_size 0 must be at least 1"):
        record(model, words, TEXTS, tmp_path / "t", batch_size=0)


def test_a_fingerprint_follows_the_weights(model, model_folder):
    again = EarlyExitModel.from_pretrained(model_folder)
    assert fingerprint(again) == fingerprint(model)
    with torch.no_grad():
        again.heads[0].out.bias[0] += 1e-6
    assert fingerprint(again) != fingerprint(model)


def test_times_rise_with_depth(model, words):
    times = time_exits(model, tokenise(TEXTS.select(np.arange(8)), words, 40), words)
    assert 0 < times[0] < times[1] < times[2]


def test_a_trace_survives_its_file(model, words, tmp_path):
    trace = record(model, words, TEXTS, tmp_path / "t")
    trace.save(tmp_path / "again")
    again = Trace.load(tmp_path / "again")
    np.testing.assert_array_equal(again.logits, trace.logits)
    assert again.about == trace.about
