"""How long a run takes over all its sittings, also where it was cut off in between."""

from __future__ import annotations

import time
from pathlib import Path

from exitpoll.data.progress import OnProgress, Progress
from exitpoll.files import read_json, write_json

EVERY = 5.0  # seconds between two notes


class Clock:
    """Notes now and then how much time has gone by, and adds what earlier sittings noted."""

    def __init__(self, path: Path) -> None:
        """Go on from what was noted.

        Args:
            path: The file of the notes.
        """
        self.path = path
        self.before = float((read_json(path) or {}).get("seconds", 0.0)) if path.exists() else 0.0
        self.started = self.noted = time.monotonic()

    @property
    def seconds(self) -> float:
        """All the time so far."""
        return self.before + time.monotonic() - self.started

    def around(self, on_progress: OnProgress) -> OnProgress:
        """Note the time whenever there is progress, and pass it on.

        Args:
            on_progress: Called as well.

        Returns:
            What to call.
        """

        def tick(progress: Progress) -> None:
            if time.monotonic() - self.noted > EVERY:
                self.noted = time.monotonic()
                write_json(self.path, {"seconds": round(self.seconds, 1)})
            on_progress(progress)

        return tick
