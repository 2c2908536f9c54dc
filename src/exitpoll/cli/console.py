"""Output of the verbs: lines and tables on stdout, progress bars and errors on stderr.

Whatever comes from data or a folder is printed with its control characters escaped.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console, RenderableType

from exitpoll.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from exitpoll.decide.evaluate import Evaluation
    from exitpoll.decide.policy import Policy
    from exitpoll.engine.inputs import InputTexts
    from exitpoll.training.train import Trained

UNLIMITED = 1000  # columns, where no terminal limits them
OUTPUT_CLOSED = 141  # as shells report a process that SIGPIPE ended
# Control characters, separators of lines, characters that turn the direction of writing, and halves of surrogate pairs.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class OutputConsole(Console):
    """A console that ends the process in silence where nobody reads its output any more, as in `| head -1`."""

    def on_broken_pipe(self) -> None:
        """Exit with the code that shells know."""
        stop_writing()


@dataclass
class Modes:
    """How the verbs print; options of one command."""

    quiet: bool = False  # neither progress nor notes
    json: bool = False  # only the result goes to stdout, as JSON


console = OutputConsole()
errors = OutputConsole(stderr=True)
modes = Modes()


def reset_modes() -> None:
    """Print as by default, at the start of a command."""
    modes.quiet = modes.json = False


def print_as_json(yes: bool) -> None:
    """Keep stdout for the result as JSON, if that is wanted: other lines go to stderr.

    Args:
        yes: Whether it is wanted.
    """
    modes.json = yes


def visible(text: str) -> str:
    r"""Escape what a terminal would obey instead of show, as in names and cells of a stranger's files.

    Args:
        text: The text.

    Returns:
        The text, with control characters as in "\x1b".
    """
    return _INVISIBLE.sub(lambda match: ascii(match[0])[1:-1], text)


def progress_console() -> Console:
    """Return where to show progress: on stderr, or nowhere with -q."""
    return Console(stderr=True, quiet=modes.quiet)


def say(*lines: str) -> None:
    """Print lines of a result, without markup or wrapping."""
    if not (modes.json and modes.quiet):
        for line in lines:
            _lines_console().print(visible(line), highlight=False, markup=False, soft_wrap=True)


def remark(*lines: str) -> None:
    """Print lines that -q leaves out: notes, and where something was written."""
    if not modes.quiet:
        say(*lines)


def show(table: RenderableType) -> None:
    """Print a table of a result; in a file or a pipe it is as wide as it needs to be."""
    if modes.json and modes.quiet:
        return
    stream = _lines_console()
    if not stream.is_terminal:
        stream = OutputConsole(file=stream.file, width=UNLIMITED)
    stream.print(table)


def show_result(result: Mapping[str, object]) -> None:
    """Print the result as JSON, if that is wanted.

    Args:
        result: What the verb found or wrote.
    """
    if modes.json:
        write_out(json.dumps(_plain(result), default=str) + "\n")


def write_out(text: str) -> None:
    """Write text to stdout as it is, and at once."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        stop_writing()


def flush() -> None:
    """Write what is still in the buffer of stdout."""
    write_out("")


def stop_writing() -> NoReturn:
    """End the process in silence, because nobody reads its output any more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # not a file, in tests
            os.dup2(nowhere, stream.fileno())  # what is left in buffers is written there when Python exits
    sys.exit(OUTPUT_CLOSED)


def say_written(folder: Path, names: Sequence[str]) -> None:
    """Print which files were written to a folder."""
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    remark(f"wrote {listed} to {folder}")


def fail(message: str, code: int) -> NoReturn:
    """Print an error in one line, and exit."""
    line = visible(shorten(message, 600))
    errors.print(f"exitpoll: {line}", style="red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(code)


class VisibleFormatter(logging.Formatter):
    """Formats a log record with its control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines."""
        return "\n".join(map(visible, super().format(record).splitlines()))


def _plain(value: object) -> object:
    """Turn NaN and infinite numbers into null, which JSON can hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _lines_console() -> Console:
    """Return where lines and tables go."""
    return errors if modes.json else console


def notes_of(read: InputTexts) -> list[str]:
    """Return what a reader of the numbers should know about the splits, as lines."""
    return [f"note: {note}" for note in read.notes]


@contextlib.contextmanager
def notes_shown() -> Iterator[None]:
    """Print the notes of a training as soon as it knows them: what stands in for what is said before it takes hours."""
    logger = logging.getLogger("exitpoll.training.train")
    handler, level = _NotesHandler(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # or the handler of warnings would print them again
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = True


class _NotesHandler(logging.Handler):
    """Prints what is logged as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a note."""
        remark(f"note: {record.getMessage()}")


def show_training(trained: Trained) -> None:
    """Print the scores of a training by exit; its notes are shown while it runs."""
    from exitpoll.cli.tables import training_table

    show(training_table(trained))
    if trained.truncated:
        length = trained.model.config.max_length
        remark(f"note: {trained.truncated} of {trained.texts} texts were longer than {length} tokens and truncated")
    remark(f"wrote {trained.folder} after {trained.seconds:.0f} s")


def show_evaluation(evaluation: Evaluation, policy: Policy) -> None:
    """Print what was measured, and whether the guarantee held."""
    from exitpoll.cli.tables import depths_table, evaluation_table, groups_table
    from exitpoll.report.wording import verdict

    say(*verdict(evaluation, policy))
    show(evaluation_table(evaluation))
    show(depths_table(evaluation.depths))
    if evaluation.groups:
        show(groups_table(evaluation))


def save_figure(draw: Callable[[], Figure], path: Path) -> list[str]:
    """Draw and write a figure, or print which packages are missing.

    Args:
        draw: Draws it.
        path: The file to write.

    Returns:
        The name of the file; none if it was not written.
    """
    from exitpoll.report.plots import save

    try:
        save(draw(), path)
    except MissingExtraError as error:
        remark(f"no figure: {error}")
        return []
    return [path.name]


def quieten_transformers() -> None:
    """Silence the load reports and progress bars of transformers, without importing it; errors are still shown."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for name in ("huggingface_hub", "httpx", "httpx2"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if "transformers" in sys.modules:
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
