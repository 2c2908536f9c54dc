"""The entry point `exitpoll`: it runs a verb, and reports whatever goes wrong in one line."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading

from cyclopts import CycloptsError

from exitpoll.cli.app import VERBS, app
from exitpoll.cli.console import fail
from exitpoll.errors import InputError

_INTERRUPTED = {
    "train": "interrupted; rerun with --resume to continue",
    "predict": "interrupted; rerun with --resume to continue",
    "quickstart": "interrupted; rerun the same command to continue",
    "search": "interrupted; rerun the same command to continue",
    "reproduce": "interrupted; rerun the same command to continue",
}


def main() -> None:
    """Run the command line; an error is one line on stderr and exit code 2."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot encode × must not stop the work
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up, as on Ctrl-C
    words = sys.argv[1:]
    verb = words[0] if words else ""
    try:
        if verb not in VERBS:
            app.resolved_commands()  # loads the verbs, whose docstrings the list of commands shows
        app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except KeyboardInterrupt:
        fail(_INTERRUPTED.get(verb, "interrupted"), 130)
    except InputError as error:
        fail(error.with_flags(), 2)
    except (CycloptsError, OSError) as error:
        fail(str(error), 2)
    except Exception as error:
        if "EXITPOLL_TRACEBACK" in os.environ:
            raise
        fail(f"unexpected {type(error).__name__}: {error} (EXITPOLL_TRACEBACK=1 shows where)", 2)
