"""Smaller static models as baselines: half of the layers (LayerDrop) or half of the attention heads (HeadPrune).

LayerDrop (Fan et al., 2020) skips random layers in training, so that the trained model tolerates missing layers; every
other layer is then kept. HeadPrune (Michel et al., 2019) ranks the attention heads of a trained model by how much the
loss depends on them, and removes the least important ones from the weights, so that they cost nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from exitpoll.errors import InputError
from exitpoll.models.model import EarlyExitModel

Prune = Literal["layers", "heads"]  # which half of a trained model to remove
TokenBatch = dict[str, Tensor]  # padded token ids, attention mask and labels


def keep_layers(model: EarlyExitModel, kept: Sequence[int]) -> EarlyExitModel:
    """Build a static model from some layers of another.

    Args:
        model: A model with one exit, the last.
        kept: The layers to keep, counted from 1, in rising order.

    Returns:
        A new model, with one exit after the last layer kept.
    """
    exit_layers = model.config.exit_layers
    if len(exit_layers) != 1:
        raise InputError(f"layers can be removed only from a model with one exit, and this one has {len(exit_layers)}")
    if not kept or kept[-1] > exit_layers[-1]:
        raise InputError(f"layers {list(kept)} cannot be kept: the model has layers 1 to {exit_layers[-1]}")
    smaller = copy.deepcopy(model)
    config = smaller.config.encoder
    for name, stack in _layer_lists(smaller.encoder, config.num_hidden_layers):
        parent, _, attribute = name.rpartition(".")
        setattr(smaller.encoder.get_submodule(parent), attribute, nn.ModuleList(stack[layer - 1] for layer in kept))
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer - 1] for layer in kept]
    config.num_hidden_layers = len(kept)
    smaller.config.exit_layers = [len(kept)]
    return smaller


def every_other(layers: int) -> list[int]:
    """Return half of the layers, including the last: 2, 4, … of an even number."""
    return list(range(2 - layers % 2, layers + 1, 2))


def _layer_lists(encoder: PreTrainedModel, layers: int) -> list[tuple[str, nn.ModuleList]]:
    """Return the module lists that hold the layers, by name; none where layers share their weights."""
    return [
        (name, module)
        for name, module in encoder.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == layers and layers > 1
    ]


# ---- attention heads ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attention:
    """The four linear layers of one attention, by the modules that hold them."""

    inputs: Sequence[tuple[nn.Module, str]]  # query, key, value: heads · size outputs
    output: tuple[nn.Module, str]  # heads · size inputs
    size: int  # of a head

    @property
    def heads(self) -> int:
        """Number of heads."""
        return getattr(*self.output).in_features // self.size


_INPUT_NAMES = (("query", "key", "value"), ("q_lin", "k_lin", "v_lin"))
_OUTPUT_NAMES = ("dense", "out_lin")


def attentions(encoder: PreTrainedModel) -> list[Attention]:
    """Return the attentions of an encoder, in the order of its layers.

    Args:
        encoder: An encoder whose attention is that of BERT, ALBERT or DistilBERT.

    Returns:
        One for every layer that has weights of its own.
    """
    config = encoder.config
    size = config.hidden_size // config.num_attention_heads
    by_layer = [attention for module in encoder.modules() for attention in _attentions_of(module, size)]
    if not by_layer:
        raise InputError(
            f"attention heads of encoders of type '{config.model_type}' cannot be pruned; use a BERT, ALBERT or "
            "DistilBERT"
        )
    return by_layer


def _attentions_of(module: nn.Module, size: int) -> Iterator[Attention]:
    """Yield a module as an attention, if it is one: with all four linear layers, or with them in two submodules."""
    inner, outer = getattr(module, "self", module), getattr(module, "output", module)
    for input_names in _INPUT_NAMES:
        for output_name in _OUTPUT_NAMES:
            parts = [*(getattr(inner, name, None) for name in input_names), getattr(outer, output_name, None)]
            if all(isinstance(part, nn.Linear) for part in parts):
                yield Attention([(inner, name) for name in input_names], (outer, output_name), size)


def head_importance(model: EarlyExitModel, batches: Sequence[TokenBatch]) -> NDArray:
    """Compute how much the loss depends on every attention head: E |A_h · ∂L/∂A_h|, Michel et al. (2019), Eq. 2.

    Args:
        model: A trained model.
        batches: Texts with labels.

    Returns:
        Importances, (attentions, heads), normalized to length 1 by attention as in the paper.
    """
    by_layer = attentions(model.encoder)
    total = np.zeros((len(by_layer), by_layer[0].heads))
    contexts: list[tuple[int, Tensor]] = []  # the number of an attention, and what goes into its output layer

    def keep_context(number: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            inputs[0].retain_grad()
            contexts.append((number, inputs[0]))

        return hook

    handles = [
        getattr(*attention.output).register_forward_pre_hook(keep_context(number))
        for number, attention in enumerate(by_layer)
    ]
    try:
        for batch in batches:
            contexts.clear()
            loss = model.eval()(**batch).loss
            model.zero_grad()
            loss.backward()
            for number, context in contexts:  # (texts, tokens, heads · size)
                assert context.grad is not None
                gradient = context.grad * len(context)  # of the texts' own losses, whose mean is the loss of the batch
                products = (context * gradient).detach().unflatten(-1, (-1, by_layer[number].size))
                total[number] += products.sum(dim=(1, 3)).abs().sum(dim=0).numpy()
    finally:
        for handle in handles:
            handle.remove()
        model.zero_grad()
    return total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-12)


def prune_heads(model: EarlyExitModel, importance: NDArray, share: float = 0.5) -> EarlyExitModel:
    """Remove the least important attention heads from the weights.

    Args:
        model: A trained model.
        importance: The result of `head_importance`, (attentions, heads).
        share: The share of all heads to remove; every attention keeps at least one.

    Returns:
        A new model without these heads.
    """
    if not 0 <= share < 1:
        raise InputError(f"share {share} must be at least 0 and below 1")
    kept = np.ones(importance.shape, dtype=bool)
    for place in np.argsort(importance, axis=None)[: int(share * importance.size)]:
        number, head = divmod(int(place), importance.shape[1])
        if kept[number].sum() > 1:
            kept[number, head] = False
    smaller = copy.deepcopy(model)
    for attention, kept_heads in zip(attentions(smaller.encoder), kept, strict=True):
        rows = torch.from_numpy(np.repeat(kept_heads, attention.size).nonzero()[0])
        for owner, name in attention.inputs:
            setattr(owner, name, _select(getattr(owner, name), rows, 0))
        owner, name = attention.output
        setattr(owner, name, _select(getattr(owner, name), rows, 1))
    return smaller


def _select(linear: nn.Linear, rows: Tensor, axis: int) -> nn.Linear:
    """Return a linear layer with some of the outputs (axis 0) or inputs (axis 1) of another."""
    weight = linear.weight.detach().index_select(axis, rows)
    smaller = nn.Linear(weight.shape[1], weight.shape[0], bias=linear.bias is not None)
    smaller.weight.data = weight
    if linear.bias is not None:
        smaller.bias.data = linear.bias.detach()[rows] if axis == 0 else linear.bias.detach().clone()
    return smaller


def speedup_of(model: EarlyExitModel, smaller: EarlyExitModel) -> float:
    """Compute how many times fewer multiplications the layers of a pruned model need for a token.

    Args:
        model: The full model.
        smaller: The pruned model.

    Returns:
        The ratio; multiplications whose number depends on the length of the text are left out of both.
    """
    return _multiplications(model) / _multiplications(smaller)


def _multiplications(model: EarlyExitModel) -> int:
    """Count the multiplications of all layers for a token; layers that share their weights are run several times."""
    repeats = model.config.exit_layers[-1] if model.family.shares_layers(model.config.encoder) else 1
    return repeats * sum(
        module.weight.numel()
        for name, module in model.encoder.named_modules()
        if isinstance(module, nn.Linear) and "pooler" not in name and "embedding" not in name
    )
