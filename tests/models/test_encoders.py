"""A new encoder is one row of FAMILIES; that every family equals transformers is tests/laws/test_parity.py."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModel

from exitpoll import EarlyExitModel, InputError
from exitpoll.models.encoders import FAMILIES, family_of, walk
from exitpoll.models.tokenizer import readable_length
from tests.tiny import CONFIGS, LAYERS, tiny_config, tokens

NEW = "data2vec-text"  # built like RoBERTa, and not supported


@pytest.fixture
def new_config():
    _, settings = CONFIGS["roberta"]
    return AutoConfig.for_model(NEW, **settings)


def test_an_unknown_type_is_refused(new_config):
    with pytest.raises(InputError, match="encoders of type 'data2vec-text' are not supported; known types: albert, "):
        family_of(new_config)


@torch.no_grad()
def test_a_new_encoder_is_one_row(new_config, monkeypatch, tmp_path):
    monkeypatch.setitem(FAMILIES, NEW, FAMILIES["roberta"])
    encoder = AutoModel.from_config(new_config).eval()
    batch = tokens(new_config.pad_token_id)
    expected = encoder(**batch, output_hidden_states=True).hidden_states
    for state, reference in zip(walk(encoder, batch, LAYERS), expected, strict=True):
        assert torch.equal(state, reference)
    assert readable_length(new_config, 128) == 38
    encoder.save_pretrained(tmp_path)
    model = EarlyExitModel.from_encoder(tmp_path, labels=2).eval()
    assert model(**batch).exit_logits.shape == (4, LAYERS, 2)


@pytest.mark.parametrize(("name", "shared"), [("albert", True), ("albert with groups", False), ("bert", False)])
def test_layers_that_share_their_weights(name, shared):
    config = tiny_config(name)
    assert family_of(config).shares_layers(config) == shared
