"""Errors that a user can fix: the message is a single line that says what was wrong and what would be right."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.util import find_spec


class InputError(ValueError):
    """A value, file or folder given by the user cannot be used as it is."""

    def __init__(self, message: str, *, options: Iterable[str] = ()) -> None:
        """Put the message, which may quote other libraries, on one line.

        Args:
            message: What was wrong and what would be right, in words that fit Python.
            options: The arguments that the message names and that are flags of the command line, as `text_column`.
        """
        super().__init__(" ".join(message.split()))
        self.options = tuple(options)

    def with_flags(self) -> str:
        """Return the message as the command line shows it: `--text-column` for `text_column`."""
        message = str(self)
        for option in self.options:
            message = re.sub(rf"(?<![\w-]){re.escape(option)}\b", f"--{option.replace('_', '-')}", message)
        return message


class DivergedError(InputError):
    """The loss of a training became NaN or infinite."""


class TooFewTextsError(InputError):
    """There are fewer texts than a guarantee needs, even if early exit changed no answer."""


class MissingExtraError(InputError):
    """The optional packages of a feature are not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        """Name the feature and how to install it.

        Args:
            feature: What was asked for, as the subject of a sentence.
            extra: The extra of this package that provides it.
        """
        super().__init__(f"{feature} needs more packages: pip install 'exitpoll[{extra}]', or '.[{extra}]' in a clone")


def check_installed(packages: Iterable[str], feature: str, extra: str) -> None:
    """Raise a `MissingExtraError` if a package is not installed, without importing any.

    Args:
        packages: The packages that a feature needs.
        feature: What was asked for, as the subject of a sentence.
        extra: The extra that provides them.
    """
    if any(find_spec(package) is None for package in packages):
        raise MissingExtraError(feature, extra)
