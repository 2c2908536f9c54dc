"""Cut very long texts before they are tokenized, where that provably leaves the tokens that fit as they are.

A tokenizer reads all of a text before it truncates it, which takes seconds for megabytes. Most tokenizers split texts
at spaces first, and nothing on one side of a space changes the tokens on the other. So a part of a text gives the
tokens that the whole gives if it has more than fit, and between those and the place of the cut a space where a word
begins or ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from exitpoll.data.splits import Texts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CHARACTERS = 16  # read first for every token that fits
GROWTH = 4  # how many times as long a part is read next; texts that are not even that long are left whole
SLACK = 32  # characters by which offsets may be wrong where a normalizer changes lengths
WORD_BEGINS, WORD_ENDS = re.compile(r" [^\W_]"), re.compile(r"[^\W_] ")  # no combining character belongs to the space
SPLITTING = {"BertPreTokenizer", "ByteLevel", "Metaspace", "Whitespace", "WhitespaceSplit"}
LOCAL_NORMALIZING = {
    *("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt"),
    *("Precompiled", "Prepend", "Strip", "StripAccents"),
}


@dataclass(frozen=True)
class Reading:
    """What a tokenizer with truncation keeps of a text."""

    spans: Sequence[tuple[int, int]]  # (tokens, 2) where every token begins and ends, in characters
    complete: bool  # whether it keeps all tokens


@dataclass(frozen=True)
class Cutter:
    """A tokenizer with truncation, as far as cutting texts depends on it."""

    read: Callable[[str], Reading]  # tokenize a single text
    max_length: int  # in tokens
    side: str  # that is truncated: right or left
    pair_room: int  # tokens of both texts of a pair that fit
    splits_at_spaces: bool  # otherwise texts are left whole

    def cut(self, texts: Texts) -> Texts:
        """Cut the texts of which the tokenizer reads but a small part.

        Args:
            texts: Single texts or pairs.

        Returns:
            Texts with the same tokens after truncation.
        """
        if not self.splits_at_spaces or not worth_cutting(texts, self.max_length):
            return texts
        first = [self._cut(text) for text in texts.first]
        if texts.second is None:
            return replace(texts, first=first)
        second = [self._cut(text) for text in texts.second]
        for row, pair in enumerate(zip(texts.first, texts.second, strict=True)):
            if (first[row], second[row]) != pair and not self._cuts_alike(first[row], second[row]):
                first[row], second[row] = pair
        return replace(texts, first=first, second=second)

    def _cut(self, text: str) -> str:
        """Return the shortest part of a text that was found to have the same tokens."""
        size = CHARACTERS * self.max_length
        while size * GROWTH <= len(text):
            part = text[:size] if self.side == "right" else text[-size:]
            if self._is_enough(part):
                return part
            size *= GROWTH
        return text

    def _is_enough(self, part: str) -> bool:
        """Return whether a text that begins (or ends) like this has the tokens of this part, as far as they fit."""
        if " " not in part:
            return False
        reading = self.read(part)
        spans = [(start, end) for start, end in reading.spans if start < end]  # special tokens have none
        if reading.complete or not spans:
            return False
        if self.side == "right":
            return WORD_BEGINS.search(part, max(end for _, end in spans) + SLACK) is not None
        return WORD_ENDS.search(part, 0, max(0, min(start for start, _ in spans) - SLACK)) is not None

    def _cuts_alike(self, first: str, second: str) -> bool:
        """Return whether a pair is truncated as before one of its texts, or both, were cut.

        Tokens are removed from the longer text first. If both are longer than all that fits, each keeps half, and the
        longer one the odd token, so their whole lengths matter.
        """
        return self.pair_room % 2 == 0 or any(self._fits(text) for text in (first, second))

    def _fits(self, text: str) -> bool:
        """Return whether a text is no longer than all that fits of a pair."""
        reading = self.read(text)
        return reading.complete and len(reading.spans) <= self.pair_room


def worth_cutting(texts: Texts, max_length: int) -> bool:
    """Return whether any text is long enough to be cut.

    Args:
        texts: Single texts or pairs.
        max_length: How many tokens fit.

    Returns:
        Whether it saves time to look at them one by one.
    """
    least = CHARACTERS * GROWTH * max_length
    return any(len(text) >= least for column in (texts.first, texts.second or ()) for text in column)


def cutter_of(tokenizer: Tokenizer, max_length: int, side: str) -> Cutter:
    """Return how texts may be cut for a tokenizer with truncation enabled.

    Args:
        tokenizer: The tokenizer; its settings must not be changed afterwards.
        max_length: How many tokens fit.
        side: The side that is truncated: right or left.

    Returns:
        The cutter.
    """

    def read(text: str) -> Reading:
        encoding = tokenizer.encode(text)
        return Reading(encoding.offsets, complete=not encoding.overflowing)

    room = max_length - tokenizer.num_special_tokens_to_add(True)
    return Cutter(read, max_length, side, room, splits_at_spaces(tokenizer))


def splits_at_spaces(tokenizer: Tokenizer) -> bool:
    """Return whether nothing on one side of a space changes the tokens on its other side.

    Args:
        tokenizer: The tokenizer.

    Returns:
        Whether it consists of parts that are known to work like this.
    """
    normalizers, splitters = _steps(tokenizer.normalizer), _steps(tokenizer.pre_tokenizer)
    return (
        all(_normalizes_locally(step) for step in normalizers)
        and any(_splits(step) for step in splitters[:1])  # what comes after it sees no more than a word
        and not any(re.search(r"\s", token.content) for token in tokenizer.get_added_tokens_decoder().values())
    )


def _steps(part: object) -> list[Mapping[str, object]]:
    """Return what a normalizer or pre-tokenizer consists of, in the words of tokenizer.json."""
    if part is None:
        return []
    steps = [json.loads(part.__getstate__())]  # type: ignore[arg-type]
    while any(step["type"] == "Sequence" for step in steps):
        members = [step.get("normalizers", step.get("pretokenizers", [step])) for step in steps]
        steps = [step for several in members for step in several]
    return steps


def _normalizes_locally(step: Mapping[str, object]) -> bool:
    """Return whether a normalizer leaves spaces where they are, and looks at nothing beyond them."""
    if step["type"] != "Replace":
        return step["type"] in LOCAL_NORMALIZING
    pattern = step["pattern"]
    return pattern == {"Regex": " {2,}"} or (isinstance(pattern, Mapping) and " " not in pattern.get("String", " "))


def _splits(step: Mapping[str, object]) -> bool:
    """Return whether a pre-tokenizer splits texts at spaces; two of them can be told not to."""
    return step["type"] in SPLITTING and step.get("split", True) is True and step.get("use_regex", True) is True
