"""Output of the verbs: lines and tables on stdout, progress bars and errors on stderr."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

from exitpoll.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from exitpoll.decide.evaluate import Evaluation
    from exitpoll.decide.policy import Policy
    from exitpoll.engine.inputs import InputTexts
    from exitpoll.training.train import Trained

console = Console()
errors = Console(stderr=True)


def say(*lines: str) -> None:
    """Print lines as they are, without markup or wrapping."""
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def say_written(folder: Path, names: Sequence[str]) -> None:
    """Print which files were written to a folder."""
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    say(f"wrote {listed} to {folder}")


def fail(message: str, code: int) -> NoReturn:
    """Print an error in one line, and exit."""
    line = shorten(message, 600)
    errors.print(f"exitpoll: {line}", style="red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(code)


def notes_of(read: InputTexts) -> list[str]:
    """Return what a reader of the numbers should know about the splits, as lines."""
    return [f"note: {note}" for note in read.notes]


def show_training(trained: Trained) -> None:
    """Print the scores of a training by exit, and its notes."""
    from exitpoll.cli.tables import training_table

    console.print(training_table(trained))
    say(*(f"note: {note}" for note in trained.notes))
    if trained.truncated:
        length = trained.model.config.max_length
        say(f"note: {trained.truncated} of {trained.texts} texts were longer than {length} tokens and truncated")
    say(f"wrote {trained.folder} after {trained.seconds:.0f} s")


def show_evaluation(evaluation: Evaluation, policy: Policy) -> None:
    """Print what was measured, and whether the guarantee held."""
    from exitpoll.cli.tables import depths_table, evaluation_table, groups_table
    from exitpoll.report.wording import verdict

    say(*verdict(evaluation, policy))
    console.print(evaluation_table(evaluation))
    console.print(depths_table(evaluation.depths))
    if evaluation.groups:
        console.print(groups_table(evaluation))


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
        say(f"no figure: {error}")
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
