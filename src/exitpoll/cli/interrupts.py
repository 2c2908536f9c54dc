"""Ctrl-C and SIGTERM: one line, whenever they come. Imports next to nothing, so that it is in place at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

from exitpoll.training.ranks import is_first as is_first_rank

_CONTINUE = {  # how to continue, for verbs that can
    "train": "; rerun with --resume to continue",
    "predict": "; rerun with --resume to continue",
    "quickstart": "; rerun the same command to continue",
    "search": "; rerun the same command to continue",
    "reproduce": "; rerun the same command to continue",
}
_SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it
_AGAIN = 0.01  # seconds until a signal that was swallowed is sent again


class Interrupts:
    """Ends the process: by an exception where somebody catches it, and otherwise at once.

    At once means at a second signal, before and after the work, or in the middle of an import.

    An import can take seconds, has nothing to clean up, and may swallow the exception or turn it into another: packages
    try to import what they could use, and catch whatever comes of it. Python itself swallows what is raised while an
    object is deleted: that is sent again.
    """

    def __init__(self, words: Sequence[str]) -> None:
        """Handle Ctrl-C and SIGTERM from now on.

        Args:
            words: The command line, after `exitpoll`.
        """
        self.message = f"interrupted{_CONTINUE.get(verb_of(words), '')}"
        self.number: int | None = None  # of the signal that came
        self.are_caught = False  # whether an exception would be caught, and something cleaned up
        try:
            signal.signal(signal.SIGINT, self._handle)
            signal.signal(signal.SIGTERM, self._handle)
        except ValueError:  # not the main thread: signals are its business
            return
        sys.unraisablehook = self._send_again

    @property
    def code(self) -> int:
        """The exit code of a process that the signal ended, as shells give it."""
        return 128 + (self.number or signal.SIGINT)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """End the process."""
        is_first, self.number = self.number is None, number
        if is_first and self.are_caught and not _is_importing(frame):
            raise KeyboardInterrupt
        cursor = _SHOW_CURSOR if sys.stderr is not None and sys.stderr.isatty() else ""
        line = f"exitpoll: {self.message}\n" if is_first and is_first_rank() else ""
        os.write(2, f"{cursor}{line}".encode())
        os._exit(self.code)

    def _send_again(self, swallowed: UnraisableHookArgs) -> None:
        """Send a signal again whose exception Python could not raise, because an object was being deleted."""
        if self.number is None or not issubclass(swallowed.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(swallowed)
            return
        number, self.number = self.number, None
        threading.Timer(_AGAIN, signal.raise_signal, [number]).start()


def verb_of(words: Sequence[str]) -> str:
    """Return the verb of a command line; an empty string if there is none."""
    return next((word for word in words if not word.startswith("-")), "")


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether a module is being imported."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
