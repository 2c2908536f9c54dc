"""Heads trained on the output of a frozen encoder, which is computed once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from exitpoll.data.batching import mask_of, padded
from exitpoll.errors import InputError
from exitpoll.models.config import ExitConfig
from exitpoll.models.model import EarlyExitModel, EarlyExitOutput


@dataclass(frozen=True)
class Features:
    """What the first heads of a model read of texts, and the logits of the other exits, as far as they are needed."""

    pooled: NDArray  # (texts, trained exits after a layer, width)
    fixed_logits: NDArray  # (texts, other exits, classes)
    embeddings: NDArray | None = None  # (texts, 3 · width) that the head at exit 0 reads
    token_ids: Sequence[Sequence[int]] | None = None  # of the texts, for the n-grams of exit 0
    tokens: NDArray | None = None  # (tokens of all texts, trained exits after a layer, width), if heads read them
    starts: NDArray | None = None  # (texts + 1,) where the tokens of every text begin


@dataclass(frozen=True)
class FrozenTexts:
    """The output of a frozen encoder for labelled texts, as a dataset for Trainer."""

    features: Features
    labels: NDArray  # as in Texts

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.features.fixed_logits)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        """Return one text, as the arguments of `HeadsOnly`."""
        features = self.features
        item = {
            "fixed_logits": torch.from_numpy(features.fixed_logits[row]),
            "labels": torch.as_tensor(self.labels[row]),
        }
        if features.tokens is None or features.starts is None:
            item["pooled"] = torch.from_numpy(np.array(features.pooled[row]))
        else:
            own = features.tokens[features.starts[row] : features.starts[row + 1]]
            item["tokens"] = torch.from_numpy(np.array(own))
        if features.embeddings is not None:
            item["embeddings"] = torch.from_numpy(np.array(features.embeddings[row]))
        if features.token_ids is not None:
            item |= self._padded(features.token_ids[row])
        return item

    def _padded(self, token_ids: Sequence[int]) -> dict[str, Tensor]:
        """Pad the token ids of a text to the longest of all, and return them with their mask."""
        [ids], [mask] = padded([token_ids], self._longest, 0), mask_of(np.array([len(token_ids)]), self._longest)
        return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}

    @cached_property
    def _longest(self) -> int:
        """The number of tokens of the longest text."""
        return max(map(len, self.features.token_ids or ()))

    @property
    def lengths(self) -> NDArray:
        """Lengths by which to group the texts, all alike unless heads read all tokens: (texts,)."""
        if self.features.tokens is not None and self.features.starts is not None:
            return np.diff(self.features.starts)
        return np.ones(len(self), dtype=np.int64)


def collate(items: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Make a batch of texts; tokens are padded to the longest text, with a mask.

    Args:
        items: Texts, as `FrozenTexts` returns them.

    Returns:
        The arguments of `HeadsOnly`.
    """
    batch = {name: torch.stack([item[name] for item in items]) for name in items[0] if name != "tokens"}
    if "tokens" in items[0]:
        tokens = [item["tokens"].float() for item in items]
        batch["tokens"] = pad_sequence(tokens, batch_first=True)  # (texts, tokens, trained exits, width)
        lengths = torch.tensor([len(own) for own in tokens])
        batch["token_mask"] = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    return batch


def check_heads_below(config: ExitConfig) -> None:
    """Refuse a model without heads that can be trained while the last head stays unchanged.

    Args:
        config: The model's configuration.
    """
    if config.shared_head and not config.native_head:
        raise InputError("a shared head is the last head too, which must stay unchanged: use own heads")
    if config.exit_layers is not None and len(config.exit_layers) < 2:
        raise InputError(
            f"exits {config.exit_layers} leave no head to train below the last: add exits or train jointly"
        )


def check_exit_zero(config: ExitConfig) -> None:
    """Refuse a model without an exit before the first layer.

    Args:
        config: The model's configuration.
    """
    if config.exit_zero is None:
        raise InputError(
            f"exits {config.exit_layers} have no exit 0 to train: add it with exit_zero, or use another schedule"
        )


class HeadsOnly(nn.Module):
    """The heads of the first exits as a module; its parameters are those of the model."""

    def __init__(self, model: EarlyExitModel, exits: int) -> None:
        """Take the heads of a model.

        Args:
            model: The model; the heads of its first exits are not shared with the others.
            exits: Number of exits whose heads are trained.
        """
        super().__init__()
        self.zero = int(model.has_exit_zero)
        self.heads = nn.ModuleList(dict.fromkeys(model.head_at(number) for number in range(exits)))
        self.shared = model.config.shared_head
        attending = range(self.zero, exits) if model.config.pooling == "attention" else ()
        self.attentions = nn.ModuleList(dict.fromkeys(model.attention_at(number) for number in attending))

    def forward(
        self,
        fixed_logits: Tensor,
        pooled: Tensor | None = None,
        tokens: Tensor | None = None,
        token_mask: Tensor | None = None,
        embeddings: Tensor | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> EarlyExitOutput:
        """Compute the logits of the heads.

        Args:
            fixed_logits: (texts, other exits, classes)
            pooled: (texts, trained exits after a layer, width)
            tokens: (texts, tokens, trained exits after a layer, width), if the heads read all tokens.
            token_mask: (texts, tokens) of these.
            embeddings: (texts, 3 · width), for exit 0.
            input_ids: (texts, tokens), for the n-grams of exit 0.
            attention_mask: (texts, tokens), for the n-grams of exit 0.
            labels: Unused; Trainer looks for this argument in the signature.

        Returns:
            Logits of these exits and the others.
        """
        below = [] if embeddings is None else [self.heads[0](embeddings, attention_mask, input_ids)]
        for number, vectors in enumerate(self._vectors(pooled, tokens, token_mask), start=self.zero):
            below.append(self.heads[self.zero if self.shared else number](vectors))
        exit_logits = torch.cat([torch.stack(below, dim=1), fixed_logits], dim=1)  # (texts, exits, classes)
        return EarlyExitOutput(logits=exit_logits[:, -1], exit_logits=exit_logits)

    def _vectors(self, pooled: Tensor | None, tokens: Tensor | None, mask: Tensor | None) -> Iterator[Tensor]:
        """Yield what the head of one exit after another reads, (texts, width)."""
        if pooled is not None:
            yield from pooled.unbind(dim=1)
        elif tokens is not None:
            for number, hidden in enumerate(tokens.unbind(dim=2)):
                yield self.attentions[0 if self.shared else number](hidden, mask)
