"""A trace is what the model says of every text, wherever the text stands, whatever is written meanwhile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from exitpoll import EarlyExitModel, InputError, Texts, Trace, record
from exitpoll.engine import record as recording
from exitpoll.engine.record import time_exits
from exitpoll.engine.torch_runtime import loaded_model
from exitpoll.models.fingerprint import fingerprint_of
from exitpoll.models.tokenizer import load_tokenizer
from tests.tiny import toy_texts

TEXTS = toy_texts(50, 7)


@pytest.fixture(scope="module")
def model(model_folder):
    return EarlyExitModel.from_pretrained(model_folder).eval()


@pytest.fixture(scope="module")
def words(model_folder):
    return load_tokenizer(model_folder)


@pytest.fixture(scope="module")
def ready(model, words):
    return loaded_model(model, words)


def test_a_trace_is_what_the_model_says(model, words, ready, tmp_path):
    trace = record(ready, TEXTS, tmp_path / "t", batch_size=8)
    with torch.inference_mode():
        for row in (0, 17, 49):
            alone = model(**words(TEXTS.first[row], return_tensors="pt")).exit_logits[0]
            np.testing.assert_allclose(trace.logits[row], alone, atol=1e-5)
    np.testing.assert_array_equal(trace.labels, TEXTS.labels)
    assert trace.exit_layers == [1, 2, 3]


def test_shards_do_not_show(ready, tmp_path, monkeypatch):
    whole = record(ready, TEXTS, tmp_path / "whole")
    asked = []
    monkeypatch.setattr(recording, "SHARD", 16)
    monkeypatch.setattr(recording, "TIMED", 4)
    counting = replace(ready, tokenize=lambda texts: asked.append(len(texts)) or ready.tokenize(texts))
    seen = []
    parts = record(
        counting, TEXTS, tmp_path / "parts", on_progress=lambda progress: seen.append((progress.done, progress.total))
    )
    np.testing.assert_allclose(parts.logits, whole.logits, atol=1e-5)
    assert asked == [4, 16, 16, 16, 2]  # memory is for one shard, however many texts
    assert seen == [(16, 50), (32, 50), (48, 50), (50, 50)]


def test_what_is_known_of_a_trace(model, ready, tmp_path):
    about = record(ready, TEXTS, tmp_path / "t", about={"data": "toy", "split": "test"}).about
    assert about["fingerprint"] == fingerprint_of(model)
    assert about["runtime"] == "torch float32"
    assert about["problem_type"] == "single_label_classification"
    assert about["label_names"] == ["bad", "good", "so-so"]
    assert (about["data"], about["split"]) == ("toy", "test")
    assert len(about["milliseconds"]) == 3
    assert about["milliseconds"] == sorted(about["milliseconds"])


def test_texts_without_labels(ready, tmp_path):
    assert record(ready, Texts(TEXTS.first), tmp_path / "t").labels is None


def test_a_recording_that_fails_leaves_nothing(ready, tmp_path):
    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(ready, TEXTS, tmp_path / "t", on_progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_refusals(ready, tmp_path):
    with pytest.raises(InputError, match="no texts to record"):
        record(ready, Texts([]), tmp_path / "t")
    with pytest.raises(InputError, match="batch_size 0 must be at least 1"):
        record(ready, TEXTS, tmp_path / "t", batch_size=0)


def test_a_fingerprint_follows_the_weights(model, model_folder):
    again = EarlyExitModel.from_pretrained(model_folder)
    assert fingerprint_of(again) == fingerprint_of(model)
    with torch.no_grad():
        again.heads[0].out.bias[0] += 1e-6
    assert fingerprint_of(again) != fingerprint_of(model)


def test_times_rise_with_depth(ready):
    times = time_exits(ready.runtime, ready.tokenize(TEXTS.select(np.arange(8))))
    assert 0 < times[0] < times[1] < times[2]


def test_a_trace_survives_its_file(ready, tmp_path):
    trace = record(ready, TEXTS, tmp_path / "t")
    trace.save(tmp_path / "again")
    again = Trace.load(tmp_path / "again")
    np.testing.assert_array_equal(again.logits, trace.logits)
    assert again.about == trace.about
