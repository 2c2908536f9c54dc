"""Smaller static models to compare with: half of the layers (LayerDrop), or half of the attention heads (HeadPrune).

LayerDrop (Fan et al., 2020) skips layers at random in training, so that the model can do without some of them; of the
trained one every other layer is kept. HeadPrune (Michel et al., 2019) ranks the attention heads of a trained model by
how much the loss depends on them, and cuts the least important out of the weights, so that they cost nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from exitpoll.errors import InputError
from exitpoll.models.model import EarlyExitModel

Prune = Literal["layers", "heads"]  # what half of a trained model to drop
Batch = dict[str, Tensor]  # what the tokenizer gave, and labels


def keep_layers(model: EarlyExitModel, kept: Sequence[int]) -> EarlyExitModel:
    """Make a static model of some layers of another.

    Args:
        model: A model with one exit, the last.
        kept: The layers to keep, counted from 1.

    Returns:
        A new model, with one exit after the last layer kept.
    """
    if len(model.config.exit_layers) != 1 or not kept or kept[-1] > model.config.exit_layers[-1]:
        raise InputError("only a model with one exit can lose layers, and only layers that it has can stay")
    smaller = copy.deepcopy(model)
    config = smaller.config.encoder
    for name, stack in _stacks(smaller.encoder, config.num_hidden_layers):
        parent = smaller.encoder.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], nn.ModuleList(stack[layer - 1] for layer in kept))
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer - 1] for layer in kept]
    config.num_hidden_layers = len(kept)
    smaller.config.exit_layers = [len(kept)]
    return smaller


def every_other(layers: int) -> list[int]:
    """Choose half of the layers, the last among them: 2, 4, … of an even number."""
    return list(range(2 - layers % 2, layers + 1, 2))


def _stacks(encoder: nn.Module, layers: int) -> list[tuple[str, nn.ModuleList]]:
    """Find the list of layers; there is none where layers share their weights."""
    return [
        (name, part)
        for name, part in encoder.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) == layers and layers > 1
    ]


# ---- attention heads ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attention:
    """The four products of one attention, by the modules that hold them."""

    inputs: Sequence[tuple[nn.Module, str]]  # query, key, value: each gives heads · size numbers
    output: tuple[nn.Module, str]  # takes as many
    size: int  # of a head

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return getattr(*self.output).in_features // self.size


_LINEAR = (("query", "key", "value"), ("q_lin", "k_lin", "v_lin"))
_OUTPUT = ("dense", "out_lin")


def attentions(encoder: nn.Module) -> list[Attention]:
    """Find the attentions of an encoder, in the order of its layers.

    Args:
        encoder: An encoder whose attention is that of BERT, ALBERT or DistilBERT.

    Returns:
        One for each layer, or for each that shares no weights with others.
    """
    config: Any = encoder.config
    size = config.hidden_size // config.num_attention_heads
    found = [each for module in encoder.modules() for each in _attention_of(module, size)]
    if not found:
        raise InputError(f"the attention of encoders of type '{config.model_type}' cannot be cut into heads here")
    return found


def _attention_of(module: nn.Module, size: int) -> Iterator[Attention]:
    """Tell whether a module is an attention, whole or as a part for products and one for the output."""
    inner, outer = getattr(module, "self", module), getattr(module, "output", module)
    for names in _LINEAR:
        for name in _OUTPUT:
            if all(isinstance(getattr(inner, each, None), nn.Linear) for each in names) and isinstance(
                getattr(outer, name, None), nn.Linear
            ):
                yield Attention([(inner, each) for each in names], (outer, name), size)


def head_importance(model: EarlyExitModel, batches: Sequence[Batch]) -> NDArray:
    """Say how much the loss depends on every attention head: E |A_h · ∂L/∂A_h| (Michel et al., equation 2).

    Args:
        model: A trained model.
        batches: Texts with labels.

    Returns:
        Importances, (attentions, heads), each attention's scaled to a norm of 1 as in the paper.
    """
    found = attentions(model.encoder)
    total = np.zeros((len(found), found[0].heads))
    seen: list[tuple[int, Tensor]] = []

    def keep(number: int) -> Any:
        def hook(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            given[0].retain_grad()
            seen.append((number, given[0]))

        return hook

    handles = [getattr(*each.output).register_forward_pre_hook(keep(number)) for number, each in enumerate(found)]
    try:
        for batch in batches:
            seen.clear()
            loss = model.eval()(**batch).loss
            model.zero_grad()
            loss.backward()
            for number, context in seen:  # (texts, tokens, heads · size)
                assert context.grad is not None
                of_each = context.grad * len(context)  # the loss is the mean of the texts'
                each = (context * of_each).detach().unflatten(-1, (-1, found[number].size))
                total[number] += each.sum(dim=(1, 3)).abs().sum(dim=0).numpy()
    finally:
        for handle in handles:
            handle.remove()
        model.zero_grad()
    return total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-12)


def prune_heads(model: EarlyExitModel, importance: NDArray, share: float = 0.5) -> EarlyExitModel:
    """Cut the least important attention heads out of the weights.

    Args:
        model: A trained model.
        importance: What `head_importance` found.
        share: How many heads to cut, of all; every attention keeps one.

    Returns:
        A new model, which computes what is left and nothing else.
    """
    if not 0 <= share < 1:
        raise InputError(f"share {share} must be at least 0 and below 1")
    kept = np.ones(importance.shape, dtype=bool)
    for place in np.argsort(importance, axis=None)[: int(share * importance.size)]:
        row, head = divmod(int(place), importance.shape[1])
        if kept[row].sum() > 1:
            kept[row, head] = False
    smaller = copy.deepcopy(model)
    for each, heads in zip(attentions(smaller.encoder), kept, strict=True):
        rows = torch.from_numpy(np.repeat(heads, each.size).nonzero()[0])
        for owner, name in each.inputs:
            setattr(owner, name, _cut(getattr(owner, name), rows, 0))
        owner, name = each.output
        setattr(owner, name, _cut(getattr(owner, name), rows, 1))
    return smaller


def _cut(product: nn.Linear, rows: Tensor, axis: int) -> nn.Linear:
    """Keep some rows or columns of a product's weights."""
    weight = product.weight.detach().index_select(axis, rows)
    smaller = nn.Linear(weight.shape[1], weight.shape[0], bias=product.bias is not None)
    smaller.weight.data = weight
    if product.bias is not None:
        smaller.bias.data = product.bias.detach()[rows] if axis == 0 else product.bias.detach().clone()
    return smaller


def speedup_of(model: EarlyExitModel, smaller: EarlyExitModel) -> float:
    """Say how many fewer products a pruned model computes in its layers, for each token.

    Args:
        model: The whole model.
        smaller: The pruned one.

    Returns:
        How many times fewer; what depends on the length of the text is left out of both.
    """
    whole, less = (_depth(each) * sum(part.weight.numel() for part in _products(each)) for each in (model, smaller))
    return whole / less


def _depth(model: EarlyExitModel) -> int:
    """Count how often the layers that are there are run: more than once where they share their weights."""
    return model.config.exit_layers[-1] if model.family.shares_layers(model.config.encoder) else 1


def _products(model: EarlyExitModel) -> Iterator[nn.Linear]:
    """List the products of all layers."""
    for name, part in model.encoder.named_modules():
        if isinstance(part, nn.Linear) and "pooler" not in name and "embedding" not in name:
            yield part
