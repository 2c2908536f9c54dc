"""A pruned model computes what the rest of the full model computes, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exitpoll import EarlyExitModel, InputError
from exitpoll.study.pruning import attentions, every_other, head_importance, keep_layers, prune_heads, speedup_of
from tests.tiny import save_tiny, tiny_tokenizer

TEXTS = ["good film", "the plot is bad", "so so", "good good good"]


def static(name, folder, layers=3):
    save_tiny(name, folder)
    torch.manual_seed(0)
    return EarlyExitModel.from_encoder(folder, labels=3, exits=[layers]).eval()


def tokens(labels=True):
    batch = dict(tiny_tokenizer()(TEXTS, padding=True, return_tensors="pt"))
    return {**batch, "labels": torch.tensor([0, 1, 2, 0])} if labels else batch


def walked(model, given, layers):
    """The logits after some layers of the full model, computed layer by layer."""
    family, encoder = model.family, model.encoder
    hidden = family.embed(encoder, given)
    context = family.context(encoder, hidden, given["attention_mask"])
    for layer in layers:
        hidden = family.layer(encoder, hidden, context, layer - 1)
    return model.logits_at(0, family.read(encoder, hidden), given["attention_mask"])


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "modernbert with mean pooling"])
def test_keeping_all_layers_changes_nothing_and_fewer_are_a_smaller_model(name, tmp_path):
    model = static(name, tmp_path)
    given = {key: value for key, value in tokens(labels=False).items() if key != "token_type_ids"}
    with torch.no_grad():
        expected = model(**given).logits
        torch.testing.assert_close(keep_layers(model, [1, 2, 3])(**given).logits, expected)
        smaller = keep_layers(model, [1, 3])
        assert smaller.config.exit_layers == [2]
        torch.testing.assert_close(smaller(**given).logits, walked(model, given, [1, 3]))
    assert speedup_of(model, smaller) == pytest.approx(1.5)


def test_layers_that_share_weights_are_run_fewer_times(tmp_path):
    model, given = static("albert", tmp_path), tokens(labels=False)
    smaller = keep_layers(model, [1, 3])
    assert smaller.config.exit_layers == [2]
    with torch.no_grad():
        torch.testing.assert_close(smaller(**given).logits, walked(model, given, [1, 1]))
    assert speedup_of(model, smaller) == pytest.approx(1.5)


@pytest.mark.parametrize(("layers", "kept"), [(12, [2, 4, 6, 8, 10, 12]), (3, [1, 3]), (1, [1])])
def test_every_other_layer_and_the_last(layers, kept):
    assert every_other(layers) == kept


def test_layers_that_do_not_exist_are_refused(tmp_path):
    model = static("bert", tmp_path)
    with pytest.raises(InputError, match=r"layers \[1, 4\] cannot be kept: the model has layers 1 to 3"):
        keep_layers(model, [1, 4])


@pytest.mark.parametrize("name", ["bert", "albert", "distilbert", "electra"])
def test_a_head_that_contributes_nothing_is_pruned_first_without_changing_the_logits(name, tmp_path):
    model = static(name, tmp_path)
    by_layer = attentions(model.encoder)
    size, heads = by_layer[0].size, by_layer[0].heads
    for attention in by_layer:  # the first head of every attention gives zeros
        owner, name_of_value = attention.inputs[2]
        getattr(owner, name_of_value).weight.data[:size] = 0
        getattr(owner, name_of_value).bias.data[:size] = 0
    given = tokens()
    if name == "distilbert":
        given.pop("token_type_ids", None)
    importance = head_importance(model, [given])
    assert importance.shape == (len(by_layer), heads)
    np.testing.assert_allclose(importance[:, 0], 0, atol=1e-7)
    assert (importance[:, 1:] > 0).all()
    with torch.no_grad():
        expected = model(**given).logits
        smaller = prune_heads(model, importance, share=1 / heads)
        torch.testing.assert_close(smaller(**given).logits, expected)
    assert [attention.heads for attention in attentions(smaller.encoder)] == [heads - 1] * len(by_layer)
    assert speedup_of(model, smaller) > 1


def test_importance_does_not_depend_on_the_batch_size(tmp_path):
    model, given = static("bert", tmp_path), tokens()
    cut = [{name: tensor[part] for name, tensor in given.items()} for part in (slice(0, 3), slice(3, 4))]
    np.testing.assert_allclose(head_importance(model, cut), head_importance(model, [given]), rtol=1e-4)


def test_every_attention_keeps_a_head(tmp_path):
    model = static("bert", tmp_path)
    importance = head_importance(model, [tokens()])
    smaller = prune_heads(model, importance, share=0.99)
    assert {attention.heads for attention in attentions(smaller.encoder)} == {1}
    with pytest.raises(InputError, match="share 1 must be"):
        prune_heads(model, importance, share=1)


def test_an_unsupported_attention_is_refused(tmp_path):
    model = static("modernbert with mean pooling", tmp_path)
    with pytest.raises(InputError, match="attention heads of encoders of type 'modernbert' cannot be pruned"):
        attentions(model.encoder)


def test_layers_are_skipped_only_in_training(tmp_path):
    model = static("bert", tmp_path)
    given = tokens(labels=False)
    expected = model(**given).logits
    model.config.layer_drop = 0.999
    torch.testing.assert_close(model(**given).logits, expected)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train()
    torch.manual_seed(0)
    hidden = model.family.embed(model.encoder, given)
    torch.testing.assert_close(model(**given).logits, model.logits_at(0, hidden, given["attention_mask"]))
