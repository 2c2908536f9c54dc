"""Law 1: for every family, the hidden states after layer i are the hidden_states[i] of transformers, from 0 on."""

from __future__ import annotations

import pytest
import torch

from exitpoll.models.encoders import FAMILIES, family_of, walk
from tests.tiny import CONFIGS, LAYERS, NO_SDPA, tiny_encoder, tokens

CASES = [
    (name, attention)
    for name, (model_type, _) in CONFIGS.items()
    for attention in ("eager", "sdpa")
    if not (attention == "sdpa" and model_type in NO_SDPA)
]
BATCHES = {
    "padded": {"lengths": (9, 5, 7, 3)},
    "unpadded": {"lengths": (6, 6)},
    "longer than a local window": {"lengths": (24, 13)},
    "pairs": {"lengths": (9, 4, 8), "types": True},
    "one text": {"lengths": (5,)},
}


def batch_for(encoder, name):
    batch = tokens(encoder.config.pad_token_id or 0, **BATCHES[name])
    if getattr(encoder.config, "type_vocab_size", 0) < 2:
        batch.pop("token_type_ids", None)
    return batch


def test_every_family_is_covered():
    assert {model_type for model_type, _ in CONFIGS.values()} == set(FAMILIES)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("name", "attention"), CASES)
@torch.no_grad()
def test_walk_equals_hidden_states(name, attention, batch):
    encoder = tiny_encoder(name, attention)
    inputs = batch_for(encoder, batch)
    expected = encoder(**inputs, output_hidden_states=True).hidden_states
    states = list(walk(encoder, inputs, LAYERS))
    # The last entry of transformers is what heads read: after the final norm of ModernBERT.
    states[-1] = family_of(encoder.config).read(encoder, states[-1])
    for state, reference in zip(states, expected, strict=True):
        assert torch.equal(state, reference)


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_missing_mask_means_unpadded(name):
    encoder = tiny_encoder(name)
    inputs = batch_for(encoder, "unpadded")
    with_mask = list(walk(encoder, inputs, LAYERS))[-1]
    without = list(walk(encoder, {"input_ids": inputs["input_ids"]}, LAYERS))[-1]
    torch.testing.assert_close(without, with_mask, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_a_batch_may_lose_texts_and_padding_between_layers(name):
    encoder = tiny_encoder(name)
    family = family_of(encoder.config)
    inputs = batch_for(encoder, "padded")
    whole = list(walk(encoder, inputs, LAYERS))
    stay, longest = torch.tensor([3, 1]), 5  # the texts of 3 and 5 tokens, in another order
    hidden, mask = whole[1][stay, :longest], inputs["attention_mask"][stay, :longest]
    context = family.context(encoder, hidden, mask)
    for index in range(1, LAYERS):
        hidden = family.layer(encoder, hidden, context, index)
        real = mask.bool()
        torch.testing.assert_close(hidden[real], whole[index + 1][stay, :longest][real], rtol=1e-4, atol=1e-5)


def test_layers_differ():
    """With layers that change nothing, the parity tests would prove nothing."""
    encoder = tiny_encoder("bert")
    _, first, second, third = walk(encoder, batch_for(encoder, "padded"), LAYERS)
    assert (first - second).abs().max() > 0.1
    assert (second - third).abs().max() > 0.1
