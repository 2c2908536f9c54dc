"""The parts of a model as torch modules that take and return plain tensors, as torch's ONNX exporter needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    """Token ids -> logits of the last exit."""

    def forward(self, *columns: Tensor) -> Tensor:
        """Run all layers: columns of (texts, tokens) -> (texts, classes)."""
        tokens = self._tokens(columns)
        *_, (exit_number, hidden) = self.model.walk_exits(tokens)
        return self.model.logits_at(exit_number, hidden, tokens["attention_mask"])


class ContextPart(Part):
    """Hidden states and mask -> the tensors that every layer needs beside the hidden states."""

    def forward(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Compute the context once for all layers."""
        context = self.model.family.context(self.model.encoder, hidden, mask)
        return tuple(tensor.clone() for tensor in tensors_of(context))  # an input returned as it is loses its name


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
    """Hidden states and mask -> logits of one exit."""

    def __init__(self, model: EarlyExitModel, exit_number: int) -> None:
        """Keep which exit it is.

        Args:
            model: The model.
            exit_number: The exit, counted from 0.
        """
        super().__init__(model)
        self.exit_number = exit_number

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Compute the logits: (texts, tokens, width) -> (texts, classes)."""
        return self.model.logits_at(self.exit_number, self.model.family.read(self.model.encoder, hidden), mask)


def tensors_of(context: Context) -> list[Tensor]:
    """Return the tensors of a context, in a fixed order.

    Args:
        context: What every layer needs beside the hidden states, nested.

    Returns:
        Its tensors.
    """
    return [leaf for leaf in pytree.tree_leaves(context) if isinstance(leaf, Tensor)]
