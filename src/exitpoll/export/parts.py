"""The parts of a model as torch modules that take and return plain tensors, as torch's ONNX exporter needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from exitpoll.models.encoders import Context
from exitpoll.models.model import EarlyExitModel

Axes = Mapping[int, object]  # the dynamic axes of one input, as torch.export names them


class Part(nn.Module):
    """A part of a model that becomes one ONNX graph."""

    def __init__(self, model: EarlyExitModel) -> None:
        """Keep the model, in evaluation mode.

        Args:
            model: The model; every part holds all of it, so that weights keep their names.
        """
        super().__init__()
        self.model = model
        self.eval()

    def arguments(self, axes: Sequence[Axes]) -> tuple[object, ...]:
        """Arrange the dynamic axes of all inputs as `forward` takes its arguments, `*args` as one tuple."""
        return tuple(axes)


class EmbeddingPart(Part):
    """Token ids -> hidden states entering layer 1."""

    def __init__(self, model: EarlyExitModel, columns: Sequence[str]) -> None:
        """Keep the names of the inputs.

        Args:
            model: The model.
            columns: input_ids, attention_mask, …, in the order of the inputs.
        """
        super().__init__(model)
        self.columns = columns

    def arguments(self, axes: Sequence[Axes]) -> tuple[object, ...]:
        """Arrange the axes of `*columns`."""
        return (tuple(axes),)

    def forward(self, *columns: Tensor) -> Tensor:
        """Embed the tokens: columns of (texts, tokens) -> (texts, tokens, width)."""
        return self.model.family.embed(self.model.encoder, self._tokens(columns))

    def _tokens(self, columns: Sequence[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.columns, columns, strict=True))


class FullModelPart(EmbeddingPart):
    """Token ids -> logits of one exit."""

    def __init__(self, model: EarlyExitModel, columns: Sequence[str], exit_number: int) -> None:
        """Keep which exit it is.

        Args:
            model: The model.
            columns: input_ids, attention_mask, …, in the order of the inputs.
            exit_number: The exit, counted from 0.
        """
        super().__init__(model, columns)
        self.exit_number = exit_number

    def forward(self, *columns: Tensor) -> Tensor:
        """Run all layers below the exit: columns of (texts, tokens) -> (texts, classes)."""
        tokens = self._tokens(columns)
        hidden = next(hidden for number, hidden in self.model.walk_exits(tokens) if number == self.exit_number)
        return self.model.logits_at(self.exit_number, hidden, tokens["attention_mask"], tokens["input_ids"])


class ContextPart(Part):
    """Mask -> the tensors that every layer needs beside the hidden states, and the weights by which heads average."""

    def forward(self, mask: Tensor) -> tuple[Tensor, ...]:
        """Compute the context once for all layers and heads."""
        context = context_of_mask(self.model, mask)
        tensors = [tensor.clone() for tensor in tensors_of(context)]  # an input returned as it is loses its name
        return (*tensors, token_weights(mask))


class LayerPart(Part):
    """Hidden states -> hidden states."""

    def __init__(self, model: EarlyExitModel, index: int, context: Context) -> None:
        """Keep which layer it is, and what its context looks like.

        Args:
            model: The model.
            index: The layer, counted from 0.
            context: An example, whose tensors become inputs and whose other values become constants.
        """
        super().__init__(model)
        self.index = index
        self.leaves, self.structure = pytree.tree_flatten(context)

    def arguments(self, axes: Sequence[Axes]) -> tuple[object, ...]:
        """Arrange the axes of `hidden, *tensors`."""
        return (axes[0], tuple(axes[1:]))

    def forward(self, hidden: Tensor, *tensors: Tensor) -> Tensor:
        """Run the layer: (texts, tokens, width) -> (texts, tokens, width)."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        context = pytree.tree_unflatten(leaves, self.structure)
        return self.model.family.layer(self.model.encoder, hidden, context, self.index)


class HeadPart(Part):
    """Hidden states, mask and weights of tokens -> logits of one exit."""

    def __init__(self, model: EarlyExitModel, exit_number: int) -> None:
        """Keep which exit it is.

        Args:
            model: The model.
            exit_number: The exit, counted from 0.
        """
        super().__init__(model)
        self.exit_number = exit_number

    def forward(self, hidden: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
        """Compute the logits: (texts, tokens, width) -> (texts, classes)."""
        read = self.model.family.read(self.model.encoder, hidden)
        if self.model.config.pooling != "mean" or self.model.is_native(self.exit_number):
            return self.model.logits_at(self.exit_number, read, mask)
        return self.model.head_at(self.exit_number)(torch.bmm(weights, read).squeeze(1))


class ZeroHeadPart(Part):
    """Embeddings, mask and token ids -> logits of exit 0, before the first layer."""

    def forward(self, hidden: Tensor, mask: Tensor, input_ids: Tensor) -> Tensor:
        """Compute the logits: (texts, tokens, width) -> (texts, classes)."""
        return self.model.logits_at_zero(hidden, mask, input_ids)


def context_of_mask(model: EarlyExitModel, mask: Tensor) -> Context:
    """Return what layers need beside the hidden states, of which only the mask and the number of tokens count.

    Args:
        model: The model.
        mask: (texts, tokens)

    Returns:
        The context; a mask for attention alone, (texts, 1, tokens, tokens), is made by two nodes instead of fifty.
    """
    context = model.family.context(model.encoder, mask.to(torch.float32).unsqueeze(-1), mask)
    attention = context.get("mask")
    if len(context) == 1 and isinstance(attention, Tensor) and attention.dtype == torch.bool:
        return {"mask": mask.to(torch.bool)[:, None, None, :].expand_as(attention)}
    return context


def token_weights(mask: Tensor) -> Tensor:
    """Return the weights of the tokens in the mean over a text: (texts, tokens) -> (texts, 1, tokens)."""
    row_mask = mask.to(torch.float32).unsqueeze(1)
    return row_mask / row_mask.sum(dim=2, keepdim=True)


def tensors_of(context: Context) -> list[Tensor]:
    """Return the tensors of a context, in a fixed order.

    Args:
        context: What every layer needs beside the hidden states, nested.

    Returns:
        Its tensors.
    """
    return [leaf for leaf in pytree.tree_leaves(context) if isinstance(leaf, Tensor)]
