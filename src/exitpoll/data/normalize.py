"""When two texts count as the same: case and white space do not matter."""

from __future__ import annotations

from exitpoll.data.batching import Text


def normalized(text: Text) -> Text:
    """Normalize a text, or both texts of a pair, so that equal results mean the same text.

    Args:
        text: A text, or a pair of texts.

    Returns:
        It without case, and with single spaces for all white space.
    """
    if isinstance(text, tuple):
        first, second = text
        return _folded(first), _folded(second)
    return _folded(text)


def _folded(text: str) -> str:
    """Fold the case of a text and collapse its white space."""
    return " ".join(text.casefold().split())
