"""A worker process: predicts the shards whose numbers come on standard input; it ends with whoever started it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Thread


def main(folder: Path) -> None:
    """Load the model of a job, and predict shards until standard input ends.

    Args:
        folder: The folder of the job.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    channel = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not a message
    numbers: SimpleQueue[int] = SimpleQueue()
    Thread(target=_read_numbers, args=(numbers,), daemon=True).start()
    try:
        for message in _work(folder, numbers):
            _send(channel, message)
    except Exception as error:
        _send(channel, describe_error(error))
        if "EXITPOLL_TRACEBACK" in os.environ:
            raise


def _read_numbers(numbers: SimpleQueue[int]) -> None:
    """Read the numbers of shards; end the process in mid-work where nobody is left to send one."""
    while line := sys.stdin.buffer.readline():
        numbers.put(int(line))
    os._exit(0)


def _work(folder: Path, numbers: SimpleQueue[int]) -> Iterator[dict[str, object]]:
    """Predict shards, and say when each is done."""
    from exitpoll.engine.shards import ShardPredictor

    predictor = ShardPredictor(folder)
    yield {"ready": os.getpid()}
    while True:
        number = numbers.get()
        predictor.predict(number)
        yield {"done": number}


def describe_error(error: Exception) -> dict[str, object]:
    """Describe an error for the process that started this one.

    Args:
        error: The error.

    Returns:
        Its message, and its number if the system raised it.
    """
    from exitpoll.errors import InputError

    if isinstance(error, InputError):
        return {"error": str(error), "options": list(error.options)}
    if isinstance(error, OSError) and error.errno is not None:
        return {"error": error.strerror, "errno": error.errno}
    return {"error": f"unexpected {type(error).__name__}: {error} (EXITPOLL_TRACEBACK=1 shows where)"}


def _send(channel: int, message: dict[str, object]) -> None:
    """Send a message as a line of JSON."""
    os.write(channel, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
