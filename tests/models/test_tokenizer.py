"""Truncation is counted, lengths are respected, the texts of a batch have similar lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitpoll import Texts
from exitpoll.data.batching import batches
from exitpoll.models.tokenizer import readable_length, tokenize
from tests.tiny import tiny_config


def test_truncated_texts_are_counted(tokenizer):
    texts = Texts(["good", "the film was good", "the film was very good", "the film was very very good"])
    tokenized = tokenize(texts, tokenizer, max_length=7)  # two of them are [CLS] and [SEP]
    assert tokenized.lengths.tolist() == [3, 6, 7, 7]
    assert tokenized.truncated == 1
    assert "labels" not in tokenized[0]


def test_pairs_have_token_types(tokenizer):
    tokenized = tokenize(Texts(["good film"], ["bad plot"], np.array([1])), tokenizer, max_length=20)
    assert tokenized[0]["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    assert tokenized[0]["labels"] == 1


def test_truncated_pairs_are_counted(tokenizer):
    pairs = Texts(["good film", "good film"], ["bad plot", "bad plot and very poor cast"])
    assert tokenize(pairs, tokenizer, max_length=7).truncated == 1


def test_sorting_keeps_texts_and_labels_together(tokenizer):
    texts = Texts(["good", "the film was good", "good film"], None, np.array([0, 1, 2]))
    ordered = tokenize(texts, tokenizer, max_length=20).sorted_by_length()
    assert ordered.lengths.tolist() == [6, 4, 3]
    assert ordered.labels.tolist() == [1, 2, 0]


@pytest.mark.parametrize(("name", "longest"), [("bert", 40), ("roberta", 38), ("mpnet", 38), ("distilbert", 40)])
def test_length_is_limited_by_the_positions_of_the_encoder(name, longest):
    assert readable_length(tiny_config(name), 128) == longest
    assert readable_length(tiny_config(name), 16) == 16


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=60), size=st.integers(1, 16))
def test_every_text_is_in_one_batch_and_longer_texts_come_first(lengths, size):
    lengths = np.array(lengths)
    groups = list(batches(lengths, size))
    assert sorted(np.concatenate(groups)) == list(range(len(lengths)))
    assert all(len(group) == size for group in groups[:-1])
    longest = [lengths[group].max() for group in groups]
    assert longest == sorted(longest, reverse=True)
