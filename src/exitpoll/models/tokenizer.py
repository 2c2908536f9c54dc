"""Texts to token ids: truncated, counted, batched by length."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from exitpoll.data.batching import Tokens, lengths_of, pick
from exitpoll.data.splits import Texts
from exitpoll.errors import InputError

# Encoders whose position numbers start behind the padding token's.
_POSITIONS_AFTER_PADDING = {"camembert", "mpnet", "roberta", "xlm-roberta"}


@dataclass(frozen=True)
class TokenizedTexts:
    """Texts as token ids, unpadded; a dataset as torch's loaders and transformers' Trainer take it."""

    columns: Tokens  # input_ids, attention_mask, …
    labels: NDArray | None
    truncated: int  # how many texts were longer than the encoder reads

    def __len__(self) -> int:
        """Count the texts."""
        return len(self.columns["input_ids"])

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Give one text with its label."""
        item: dict[str, Any] = {name: column[row] for name, column in self.columns.items()}
        if self.labels is not None:
            item["labels"] = self.labels[row]
        return item

    @property
    def lengths(self) -> NDArray:
        """How many tokens each text has, (texts,)."""
        return lengths_of(self.columns)

    def sorted_by_length(self) -> TokenizedTexts:
        """Put the longest first, so that a batch holds texts of like length."""
        order = np.argsort(-self.lengths, kind="stable")
        labels = None if self.labels is None else self.labels[order]
        return TokenizedTexts(pick(self.columns, order), labels, self.truncated)


def load_tokenizer(name_or_folder: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model.

    Args:
        name_or_folder: A hub name or a local folder.

    Returns:
        The tokenizer.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_folder, trust_remote_code=False)
    except Exception as error:  # a broken file raises whatever its reader stumbles on
        raise InputError(f"'{name_or_folder}' has no tokenizer that can be read: {error}") from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        # transformers makes an empty tokenizer of a folder that has none; every word would be unknown to it.
        raise InputError(f"'{name_or_folder}' has no tokenizer files; save the encoder's tokenizer beside it")
    if tokenizer.pad_token is None:
        raise InputError(f"the tokenizer of '{name_or_folder}' has no padding token; set its pad_token")
    return tokenizer


def tokenize(texts: Texts, tokenizer: PreTrainedTokenizerBase, max_length: int) -> TokenizedTexts:
    """Turn texts into token ids, and count those that are truncated.

    Args:
        texts: Single texts or pairs.
        tokenizer: The encoder's tokenizer.
        max_length: Longest text kept, in tokens.

    Returns:
        The token ids with the texts' labels.
    """
    least = tokenizer.num_special_tokens_to_add(pair=texts.second is not None) + 1
    if max_length < least:
        raise InputError(f"max_length {max_length} leaves no room for a word; it must be at least {least}")
    columns = encode(texts, tokenizer, max_length)
    full = [row for row, ids in enumerate(columns["input_ids"]) if len(ids) == max_length]
    longer = _count_longer(texts.select(np.array(full, dtype=np.int64)), tokenizer, max_length)
    return TokenizedTexts(columns, texts.labels, longer)


def encode(texts: Texts, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None) -> Tokens:
    """Turn texts into token ids.

    Args:
        texts: Single texts or pairs.
        tokenizer: The encoder's tokenizer.
        max_length: Longest text kept, in tokens; nothing is truncated by default.

    Returns:
        Token ids and what goes with them, unpadded.
    """
    second = None if texts.second is None else list(texts.second)
    truncate = max_length is not None
    return dict(tokenizer(list(texts.first), second, truncation=truncate, max_length=max_length, verbose=truncate))


def _count_longer(texts: Texts, tokenizer: PreTrainedTokenizerBase, max_length: int) -> int:
    """Count the texts that do not fit, among those that fill the length."""
    if not len(texts):
        return 0
    return sum(len(ids) > max_length for ids in encode(texts, tokenizer)["input_ids"])


def readable_length(config: PreTrainedConfig, wanted: int) -> int:
    """Tell how many tokens an encoder can read of the number wanted.

    Args:
        config: The encoder's configuration.
        wanted: The length asked for.

    Returns:
        The smaller of what is wanted and what the encoder has positions for.
    """
    offset = config.pad_token_id + 1 if config.model_type in _POSITIONS_AFTER_PADDING else 0
    return min(wanted, config.max_position_embeddings - offset)


def padding_of(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Say what each kind of tokens is padded with.

    Args:
        tokenizer: The encoder's tokenizer.

    Returns:
        A filler for each name that a tokenizer may give.
    """
    return {
        "input_ids": tokenizer.pad_token_id,
        "attention_mask": 0,
        "token_type_ids": tokenizer.pad_token_type_id,
    }
