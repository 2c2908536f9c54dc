"""The board of a model process: which texts are in its present call, in memory that outlives it.

The front reads it when a process has died, to know which texts may have killed it, and from time to time, to see
whether a call hangs. A message for every call would cost both processes more.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from collections.abc import Collection, Sequence

HEAD = struct.Struct("<dq")  # when the call began, 0 between calls; its texts
NUMBER = struct.Struct("<q")
MOST = 4096  # texts that are named; of a larger call all texts of the process are suspect
BYTES = HEAD.size + MOST * NUMBER.size


class Board:
    """What one process is doing."""

    def __init__(self, descriptor: int) -> None:
        """Map a file that `open_board` returned.

        Args:
            descriptor: Of the file.
        """
        self.memory = mmap.mmap(descriptor, BYTES)

    def begin(self, numbers: Sequence[int]) -> None:
        """Name the texts of a call that begins."""
        for place, number in enumerate(numbers[:MOST]):
            NUMBER.pack_into(self.memory, HEAD.size + place * NUMBER.size, number)
        HEAD.pack_into(self.memory, 0, time.monotonic(), len(numbers))

    def end(self) -> None:
        """Say that there is no call."""
        HEAD.pack_into(self.memory, 0, 0.0, 0)

    def seconds_in_call(self) -> float:
        """Return for how long the present call has run; 0 between calls."""
        began, _ = HEAD.unpack_from(self.memory)
        return time.monotonic() - began if began else 0.0

    def suspects(self, in_flight: Collection[int]) -> set[int]:
        """Return which texts may have ended the process: those of its call, if it was in one."""
        began, count = HEAD.unpack_from(self.memory)
        if not began:
            return set()
        if count > MOST:
            return set(in_flight)
        places = range(HEAD.size, HEAD.size + count * NUMBER.size, NUMBER.size)
        return {NUMBER.unpack_from(self.memory, place)[0] for place in places}.intersection(in_flight)


def open_board() -> int:
    """Return the descriptor of a file without a name that has room for a board."""
    with tempfile.TemporaryFile() as file:
        file.truncate(BYTES)
        return os.dup(file.fileno())
