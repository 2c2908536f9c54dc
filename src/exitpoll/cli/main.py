"""The command line: every verb is a function in `exitpoll.cli.verbs`."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading

from cyclopts import CycloptsError

from exitpoll.cli.app import app
from exitpoll.cli.console import fail
from exitpoll.errors import InputError

_ON_AGAIN = {
    "train": "stopped; it goes on with the same command and --resume",
    "predict": "stopped; it goes on with the same command and --resume",
    "quickstart": "stopped; the same command goes on from here",
    "search": "stopped; the same command goes on from here",
    "reproduce": "stopped; the same command goes on from here",
}


def main() -> None:
    """Run the command line; whatever goes wrong is one line on stderr and exit code 2."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no × must not stop the work
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up, as on Ctrl-C
    try:
        app(exit_on_error=False, print_error=False, result_action="return_value")
    except KeyboardInterrupt:
        verb = sys.argv[1] if len(sys.argv) > 1 else ""
        fail(_ON_AGAIN.get(verb, "stopped"), 130)
    except (InputError, CycloptsError, OSError) as error:
        fail(str(error), 2)
    except Exception as error:
        if "EXITPOLL_TRACEBACK" in os.environ:
            raise
        fail(f"unexpected {type(error).__name__}: {error} (EXITPOLL_TRACEBACK=1 shows where)", 2)
