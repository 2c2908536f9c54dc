"""The one error a user can mend: its message is a single line that says what was wrong and what would be right."""

from __future__ import annotations


class InputError(ValueError):
    """A value, file or folder given by the user cannot be used as it is."""

    def __init__(self, message: str) -> None:
        """Fold what other libraries said, within the message too, into one line.

        Args:
            message: What was wrong and what would be right.
        """
        super().__init__(" ".join(message.split()))


class DivergedError(InputError):
    """A training came to numbers that are not finite."""


class MissingExtraError(InputError):
    """A feature was asked for whose optional packages are not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        """Name the feature and how to get it.

        Args:
            feature: What was asked for, as the subject of a sentence.
            extra: The extra of this package that brings it.
        """
        super().__init__(f"{feature} needs more packages: pip install 'exitpoll[{extra}]', or '.[{extra}]' in a clone")
