"""Clock: the duration of a run over all its sessions, also if it was interrupted in between."""

from __future__ import annotations

import time
from pathlib import Path

from exitpoll.data.progress import OnProgress, Progress
from exitpoll.files import read_json, write_json

INTERVAL = 5.0  # seconds between two writes


class Clock:
    """Writes the elapsed time to a file every few seconds, and adds the time of earlier sessions."""

    def __init__(self, path: Path) -> None:
        """Continue from the time of earlier sessions.

        Args:
            path: The file that the time is kept in.
        """
        self.path = path
        before = (read_json(path) or {}).get("seconds")
        self.before = float(before) if isinstance(before, int | float) else 0.0
        self.started = self.written = time.monotonic()

    @property
    def seconds(self) -> float:
        """The time of all sessions so far."""
        return self.before + time.monotonic() - self.started

    def around(self, on_progress: OnProgress) -> OnProgress:
        """Wrap a progress callback so that it also keeps the time.

        Args:
            on_progress: The callback.

        Returns:
            The wrapped callback.
        """

        def tick(progress: Progress) -> None:
            if time.monotonic() - self.written > INTERVAL:
                self.written = time.monotonic()
                write_json(self.path, {"seconds": round(self.seconds, 1)})
            on_progress(progress)

        return tick
