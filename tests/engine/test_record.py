"""A trace holds the logits that the model computes for every text, whatever its batch and shard."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest
import torch
from tokenizers import normalizers, pre_tokenizers

from exitpoll import EarlyExitModel, InputError, Texts, Trace, record
from exitpoll.engine import record as record_module
from exitpoll.engine.record import record_in_memory
from exitpoll.engine.torch_runtime import loaded_model
from exitpoll.files import read_json
from exitpoll.models.fingerprint import fingerprint_of
from exitpoll.models.tokenizer import load_tokenizer
from tests.tiny import tiny_tokenizer, toy_texts

TEXTS = toy_texts(50, 7)


@pytest.fixture(scope="module")
def model(model_folder):
    return EarlyExitModel.from_pretrained(model_folder).eval()


@pytest.fixture(scope="module")
def tokenizer(model_folder):
    return load_tokenizer(model_folder)


@pytest.fixture(scope="module")
def ready(model, tokenizer):
    return loaded_model(model, tokenizer)


def test_a_trace_holds_the_logits_of_the_model(model, tokenizer, ready, tmp_path):
    trace = record(ready, TEXTS, tmp_path / "t", batch_size=8)
    with torch.inference_mode():
        for row in (0, 17, 49):
            alone = model(**tokenizer(TEXTS.first[row], return_tensors="pt")).exit_logits[0]
            np.testing.assert_allclose(trace.logits[row], alone, atol=1e-5)
    np.testing.assert_array_equal(trace.labels, TEXTS.labels)
    np.testing.assert_array_equal(trace.lengths, [len(tokenizer(text)["input_ids"]) for text in TEXTS.first])
    assert trace.exit_layers == [1, 2, 3]


def test_shards_do_not_change_the_logits(ready, tmp_path, monkeypatch):
    whole = record(ready, TEXTS, tmp_path / "whole")
    asked = []
    monkeypatch.setattr(record_module, "SHARD", 16)
    monkeypatch.setattr(record_module, "TIMED", 4)
    counting = replace(ready, tokenize=lambda texts: asked.append(len(texts)) or ready.tokenize(texts))
    seen = []
    parts = record(
        counting, TEXTS, tmp_path / "parts", on_progress=lambda progress: seen.append((progress.done, progress.total))
    )
    np.testing.assert_allclose(parts.logits, whole.logits, atol=1e-5)
    np.testing.assert_array_equal(parts.lengths, whole.lengths)
    np.testing.assert_array_equal(record_in_memory(ready, TEXTS).lengths, whole.lengths)
    assert asked == [4, 16, 16, 16, 2]  # one shard is in memory at a time
    assert seen == [(16, 50), (32, 50), (48, 50), (50, 50)]


def test_the_metadata_of_a_trace(model, tokenizer, ready, tmp_path):
    about = record(ready, TEXTS, tmp_path / "t", about={"data": "toy", "split": "test"}).about
    assert about["fingerprint"] == fingerprint_of(model, tokenizer)
    assert about["runtime"] == "torch float32"
    assert about["problem_type"] == "single_label_classification"
    assert about["label_names"] == ["bad", "good", "so-so"]
    assert (about["data"], about["split"]) == ("toy", "test")
    assert {name: about[name] for name in ready.runtime.packages} == {
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
    assert (about["threads"], about["device"]) == (1, "cpu")
    assert len(about["milliseconds"]) == 3
    assert about["milliseconds"] == sorted(about["milliseconds"])
    assert 0 <= about["head_milliseconds"] < about["milliseconds"][-1]


def test_texts_without_labels(ready, tmp_path):
    assert record(ready, Texts(TEXTS.first), tmp_path / "t").labels is None


def test_progress_is_shown_on_request(ready, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(record_module, "shown", lambda *given: asked.append(given) or nullcontext(lambda report: None))
    record(ready, TEXTS, tmp_path / "t", progress=True)
    assert [progress for progress, _ in asked] == [True]


def test_an_interrupted_recording_leaves_no_file(ready, tmp_path):
    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(ready, TEXTS, tmp_path / "t", on_progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_texts_in_a_list(ready, tmp_path):
    trace = record(ready, list(TEXTS.first), tmp_path / "t")
    np.testing.assert_array_equal(trace.logits, record(ready, TEXTS, tmp_path / "labelled").logits)
    with pytest.raises(InputError, match="give a list of texts, not one text"):
        record(ready, "good film", tmp_path / "t")
    with pytest.raises(InputError, match="text 1 is empty"):
        record(ready, ["good", ""], tmp_path / "t")


def test_refusals(ready, tmp_path):
    with pytest.raises(InputError, match="no texts to record"):
        record(ready, Texts([]), tmp_path / "t")
    with pytest.raises(InputError, match="batch_size 0 must be an integer, at least 1"):
        record(ready, TEXTS, tmp_path / "t", batch_size=0)


class TestFingerprint:
    @pytest.fixture
    def again(self, model_folder):
        return EarlyExitModel.from_pretrained(model_folder), load_tokenizer(model_folder)

    def test_it_is_that_of_the_training(self, model, tokenizer, again, model_folder):
        tokenizer("a", truncation=True, max_length=5)  # what a tokenizer was used for does not matter
        stated = read_json(model_folder / "training.json")["source"]["fingerprint"]
        assert stated == fingerprint_of(model, tokenizer) == fingerprint_of(*again)

    def test_weights(self, model, tokenizer, again):
        with torch.no_grad():
            again[0].heads[0].out.bias[0] += 1e-6
        assert fingerprint_of(*again) != fingerprint_of(model, tokenizer)

    def test_the_order_of_the_heads(self, model, tokenizer, again):
        heads = again[0].heads
        heads[0], heads[1] = heads[1], heads[0]
        assert fingerprint_of(*again) != fingerprint_of(model, tokenizer)

    @pytest.mark.parametrize(("name", "value"), [("max_length", 9), ("exit_layers", [1, 3]), ("pooling", "first")])
    def test_the_configuration(self, model, tokenizer, again, name, value):
        setattr(again[0].config, name, value)
        assert fingerprint_of(*again) != fingerprint_of(model, tokenizer)

    def test_the_tokenizer(self, model, tokenizer, again):
        for change in (
            lambda other: setattr(other, "truncation_side", "left"),
            lambda other: setattr(other.backend_tokenizer, "normalizer", normalizers.Lowercase()),
            lambda other: setattr(other.backend_tokenizer, "pre_tokenizer", pre_tokenizers.WhitespaceSplit()),
            lambda other: other.add_tokens(["new"]),
        ):
            other = tiny_tokenizer()
            before = fingerprint_of(model, other)
            change(other)
            assert fingerprint_of(model, other) != before


def test_a_trace_is_the_same_after_saving_and_loading(ready, tmp_path):
    trace = record(ready, TEXTS, tmp_path / "t")
    trace.save(tmp_path / "again")
    again = Trace.load(tmp_path / "again")
    np.testing.assert_array_equal(again.logits, trace.logits)
    assert again.about == trace.about
