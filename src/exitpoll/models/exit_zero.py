"""Exit 0, before the first layer: a head that reads embeddings and, if asked, n-grams of token ids."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

POOLED = 3  # mean, maximum and minimum over the tokens
# The hash of two token ids: (MULTIPLIER · first + second) mod PRIME mod buckets, in int64 without overflow.
MULTIPLIER, PRIME = 1_000_003, 2_147_483_647


class NgramTable(nn.Module):
    """Logits as the mean over the tokens of a text of one row for every token and one for every two neighbors.

    It is the linear bag of n-grams of Joulin et al. (2017): two neighbors share a row with others by a hash.
    """

    def __init__(self, vocabulary: int, buckets: int, classes: int) -> None:
        """Build a table of zeros.

        Args:
            vocabulary: Number of token ids.
            buckets: Number of rows for pairs of neighbors.
            classes: Number of logits.
        """
        super().__init__()
        self.vocabulary, self.buckets = vocabulary, buckets
        self.weight = nn.Parameter(torch.zeros(vocabulary + buckets, classes))

    def forward(self, input_ids: Tensor, mask: Tensor | None) -> Tensor:
        """Compute logits: (texts, tokens) -> (texts, classes)."""
        words = functional.embedding(input_ids, self.weight)  # (texts, tokens, classes)
        kept = torch.ones_like(input_ids) if mask is None else mask
        kept = kept.to(words.dtype).unsqueeze(-1)  # (texts, tokens, 1)
        total = (words * kept).sum(dim=1)
        pairs = functional.embedding(self.pairs_of(input_ids), self.weight)  # (texts, tokens - 1, classes)
        total = total + (pairs * kept[:, 1:] * kept[:, :-1]).sum(dim=1)
        return total / kept.sum(dim=1)

    def pairs_of(self, input_ids: Tensor) -> Tensor:
        """Return the row of every two neighboring tokens: (texts, tokens) -> (texts, tokens - 1)."""
        hashed = (input_ids[:, :-1] * MULTIPLIER + input_ids[:, 1:]) % PRIME % self.buckets
        return hashed + self.vocabulary


class ZeroHead(nn.Module):
    """The head at exit 0: a usual head on pooled embeddings, and a table of n-grams that is added to it."""

    def __init__(self, head: nn.Module, ngrams: NgramTable | None) -> None:
        """Combine the two.

        Args:
            head: Reads the pooled embeddings, (texts, 3 · width).
            ngrams: The table; None for embeddings alone.
        """
        super().__init__()
        self.head, self.ngrams = head, ngrams

    def forward(self, pooled: Tensor, mask: Tensor | None, input_ids: Tensor | None) -> Tensor:
        """Compute logits, (texts, classes).

        Args:
            pooled: What `pool_embeddings` returns, (texts, 3 · width).
            mask: (texts, tokens); None if nothing is padded.
            input_ids: (texts, tokens); needed for n-grams only.

        Returns:
            Logits, (texts, classes).
        """
        logits = self.head(pooled)
        if self.ngrams is None:
            return logits
        assert input_ids is not None
        return logits + self.ngrams(input_ids, mask)


def pool_embeddings(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Pool embeddings by mean, maximum and minimum over the tokens of every text, without padding.

    Args:
        hidden: (texts, tokens, width)
        mask: (texts, tokens); None if nothing is padded.

    Returns:
        The three side by side, (texts, 3 · width).
    """
    if mask is None:
        return torch.cat([hidden.mean(dim=1), hidden.amax(dim=1), hidden.amin(dim=1)], dim=1)
    kept = mask.to(torch.bool).unsqueeze(-1)  # (texts, tokens, 1)
    limit = torch.finfo(hidden.dtype).max
    highest, lowest = hidden.masked_fill(~kept, -limit).amax(dim=1), hidden.masked_fill(~kept, limit).amin(dim=1)
    return torch.cat([mean_over_tokens(hidden, mask), highest, lowest], dim=1)


def mean_over_tokens(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Average over the tokens of every text, without padding: (texts, tokens, width) -> (texts, width)."""
    if mask is None:
        return hidden.mean(dim=1)
    row_mask = mask.to(hidden.dtype).unsqueeze(1)  # (texts, 1, tokens)
    return torch.bmm(row_mask, hidden).squeeze(1) / row_mask.sum(dim=2)
