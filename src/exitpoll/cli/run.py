"""Run one command, and report whatever goes wrong in one line."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence

from cyclopts import CycloptsError, MissingArgumentError, UnusedCliTokensError

from exitpoll.cli.app import COMPLETION, QUIET, app, build_app
from exitpoll.cli.console import VisibleFormatter, fail, flush, reset_modes
from exitpoll.cli.groups import VERBS
from exitpoll.cli.interrupts import Interrupts
from exitpoll.errors import InputError
from exitpoll.training.ranks import is_first


def run(words: Sequence[str], interrupts: Interrupts) -> None:
    """Run one command.

    Args:
        words: The command line, after `exitpoll`.
        interrupts: What to say and return after Ctrl-C.
    """
    reset_modes()
    _set_up_streams()
    _set_up_logging()
    try:
        interrupts.are_caught = True
        _dispatch(words)
        flush()
        interrupts.are_caught = False
    except KeyboardInterrupt:
        fail(interrupts.message, interrupts.code)
    except InputError as error:
        fail(error.with_flags(), 2)
    except MissingArgumentError as error:
        fail(_describe_missing(error), 2)
    except UnusedCliTokensError as error:
        fail(_describe_unused(error), 2)
    except (CycloptsError, OSError) as error:
        fail(str(error), 2)
    except Exception as error:
        if not is_first():
            sys.stderr = sys.__stderr__  # in a process that otherwise leaves it to another to print
        if "EXITPOLL_TRACEBACK" in os.environ:
            raise
        fail(f"unexpected {type(error).__name__}: {error} (EXITPOLL_TRACEBACK=1 shows where)", 2)


def _dispatch(words: Sequence[str]) -> None:
    """Run a verb, or list all of them."""
    first = next((word for word in words if word not in QUIET), "-")
    if first not in VERBS and not first.startswith("-"):
        raise InputError(_describe_unknown(first))
    chosen = app if first in (*VERBS, COMPLETION) else build_app(with_summaries=True)
    chosen.meta(words, exit_on_error=False, print_error=False, result_action="return_value")


def _describe_unknown(verb: str) -> str:
    """Name the verbs, and the one that was probably meant."""
    from difflib import get_close_matches

    close = get_close_matches(verb, VERBS, n=1)
    meant = f' Did you mean "{close[0]}"?' if close else ""
    return f'Unknown command "{verb}".{meant} The commands are: {", ".join(VERBS)}'


def _describe_missing(error: MissingArgumentError) -> str:
    """Name the argument that a verb needs, or the option that was given without a value."""
    if error.argument is None or error.keyword is not None:
        return str(error)
    verb = " ".join(error.command_chain or ())
    return f"{verb} needs {error.argument.name}; see: exitpoll {verb} --help"


def _describe_unused(error: UnusedCliTokensError) -> str:
    """Name the words of a command line that no argument takes."""
    verb = " ".join(error.command_chain or ())
    words = ", ".join(f'"{word}"' for word in error.unused_tokens or ())
    return f"{verb} does not take {words}; see: exitpoll {verb} --help"


def _set_up_streams() -> None:
    """Print what a terminal cannot encode as ?, and nothing where another process of the same training prints."""
    if not is_first():
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the process ends)
    if "RANK" in os.environ:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its warnings come from every process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot encode × must not stop the work


def _set_up_logging() -> None:
    """Print warnings of all libraries in one line."""
    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter("%(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
