"""Tokenize texts: token ids, truncation, lengths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from exitpoll.data.batching import Tokens, lengths_of, pick
from exitpoll.data.splits import Texts
from exitpoll.errors import InputError
from exitpoll.models.encoders import family_of
from exitpoll.models.long_texts import Cutter, Reading, splits_at_spaces, worth_cutting
from exitpoll.models.screening import check_config, check_tokenizer


@dataclass(frozen=True)
class TokenizedTexts:
    """Texts as token ids, unpadded: a dataset for the data loaders of torch and the Trainer of transformers."""

    columns: Tokens  # input_ids, attention_mask, …
    labels: NDArray | None
    truncated: int  # number of texts that were longer than the maximum length

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.columns["input_ids"])

    def __getitem__(self, row: int) -> dict[str, object]:
        """Return one text with its label."""
        item: dict[str, object] = {name: column[row] for name, column in self.columns.items()}
        if self.labels is not None:
            item["labels"] = self.labels[row]
        return item

    @property
    def lengths(self) -> NDArray:
        """The number of tokens of every text, (texts,)."""
        return lengths_of(self.columns)

    def sorted_by_length(self) -> TokenizedTexts:
        """Sort the texts, longest first, so that the texts of a batch have similar lengths."""
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
    check_config(name_or_folder)
    check_tokenizer(name_or_folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_folder, trust_remote_code=False)
    except Exception as error:  # a broken file raises whatever its reader stumbles on
        raise InputError(f"'{name_or_folder}' has no tokenizer that can be read: {error}") from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        # For a folder without tokenizer files transformers makes an empty tokenizer, to which every word is unknown.
        raise InputError(f"'{name_or_folder}' has no tokenizer files; save the tokenizer of the encoder there")
    if tokenizer.pad_token is None:
        raise InputError(f"the tokenizer of '{name_or_folder}' has no padding token; set its pad_token")
    longest = tokenizer.model_max_length
    if not isinstance(longest, int | float) or not longest >= 1:
        raise InputError(
            f"the tokenizer of '{name_or_folder}' has model_max_length {longest!r:.60}; set it to a number"
        )
    return tokenizer


def tokenize(texts: Texts, tokenizer: PreTrainedTokenizerBase, max_length: int) -> TokenizedTexts:
    """Tokenize texts with their labels, and count those that are truncated.

    Args:
        texts: Single texts or pairs.
        tokenizer: The tokenizer of the encoder.
        max_length: Maximum length, in tokens.

    Returns:
        The token ids, with the labels of the texts.
    """
    least = tokenizer.num_special_tokens_to_add(pair=texts.second is not None) + 1
    if max_length < least:
        raise InputError(f"max_length {max_length} leaves no room for a word; it must be at least {least}")
    texts = _cut_long(texts, tokenizer, max_length)
    columns = _columns(texts, tokenizer, max_length)
    full = [row for row, ids in enumerate(columns["input_ids"]) if len(ids) == max_length]
    truncated = _count_longer(texts.select(np.array(full, dtype=np.int64)), tokenizer, max_length)
    return TokenizedTexts(columns, texts.labels, truncated)


def encode(texts: Texts, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None) -> Tokens:
    """Tokenize texts.

    Args:
        texts: Single texts or pairs.
        tokenizer: The tokenizer of the encoder.
        max_length: Maximum length, in tokens; nothing is truncated by default.

    Returns:
        The columns that the tokenizer returns (input_ids, …), unpadded.
    """
    if max_length is not None:
        texts = _cut_long(texts, tokenizer, max_length)
    return _columns(texts, tokenizer, max_length)


def _columns(texts: Texts, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> Tokens:
    """Tokenize texts that are not worth cutting."""
    truncate = max_length is not None
    second = None if texts.second is None else list(texts.second)
    return dict(tokenizer(list(texts.first), second, truncation=truncate, max_length=max_length, verbose=truncate))


def _cut_long(texts: Texts, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Texts:
    """Cut the texts of which the tokenizer reads but a small part; their tokens are the same after truncation."""
    if not tokenizer.is_fast or not worth_cutting(texts, max_length):
        return texts

    def read(text: str) -> Reading:
        encoded = tokenizer(  # truncated as texts are: threads may share the tokenizer
            [text],
            truncation=True,
            max_length=max_length,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        return Reading(encoded["offset_mapping"][0], complete=len(encoded["input_ids"]) == 1)

    room = max_length - tokenizer.num_special_tokens_to_add(pair=True)
    splits = splits_at_spaces(tokenizer.backend_tokenizer)
    return Cutter(read, max_length, tokenizer.truncation_side, room, splits).cut(texts)


def _count_longer(texts: Texts, tokenizer: PreTrainedTokenizerBase, max_length: int) -> int:
    """Count the texts that are longer than the maximum length."""
    if not len(texts):
        return 0
    return sum(len(ids) > max_length for ids in _columns(texts, tokenizer, None)["input_ids"])


def readable_length(config: PreTrainedConfig, wanted: int) -> int:
    """Return how many tokens an encoder can read of the number wanted.

    Args:
        config: The configuration of the encoder.
        wanted: The length asked for.

    Returns:
        The smaller of the length asked for and the number of positions of the encoder.
    """
    return min(wanted, family_of(config).max_length(config))


def full_length(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase | None) -> int:
    """Return how many tokens of a text a model of transformers reads: all that its tokenizer and positions allow.

    Args:
        config: The configuration of the encoder.
        tokenizer: Its tokenizer; None if there is none.

    Returns:
        The smaller of the tokenizer's maximum length and the number of positions of the encoder.
    """
    longest = family_of(config).max_length(config)
    return longest if tokenizer is None else int(min(longest, tokenizer.model_max_length))


def padding_of(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the value that every column of a tokenizer is padded with.

    Args:
        tokenizer: The tokenizer of the encoder.

    Returns:
        Column names with their padding values.
    """
    return {
        "input_ids": tokenizer.pad_token_id,
        "attention_mask": 0,
        "token_type_ids": tokenizer.pad_token_type_id,
    }
