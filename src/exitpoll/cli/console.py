"""What the verbs print, and how: lines and tables on stdout, bars and errors on stderr."""

from __future__ import annotations

import logging
import os
import sys
from textwrap import shorten
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

if TYPE_CHECKING:
    from exitpoll.decide.evaluate import Evaluation
    from exitpoll.decide.policy import Policy
    from exitpoll.engine.inputs import InputTexts
    from exitpoll.training.train import Trained

console = Console()
errors = Console(stderr=True)


def say(line: str) -> None:
    """Print a line as it is."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def fail(message: str, code: int) -> NoReturn:
    """Say what went wrong in one line, and stop."""
    line = shorten(message, 600)
    errors.print(f"exitpoll: {line}", style="red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(code)


def notes_of(read: InputTexts) -> list[str]:
    """Say what a reader of the figures should know of the splits."""
    return [f"note: {note}" for note in read.notes]


def show_training(trained: Trained) -> None:
    """Print the table of a training, exit by exit."""
    from exitpoll.cli.tables import training_table

    console.print(training_table(trained))
    for note in trained.notes:
        say(f"note: {note}")
    if trained.truncated:
        length = trained.model.config.max_length
        say(f"note: {trained.truncated} of {trained.texts} texts were longer than {length} tokens and truncated")
    say(f"wrote {trained.folder} after {trained.seconds:.0f} s")


def show_evaluation(evaluation: Evaluation, policy: Policy) -> None:
    """Print what was measured, and whether the promise held."""
    from exitpoll.cli.tables import depths_table, evaluation_table, groups_table
    from exitpoll.report.wording import verdict

    for line in verdict(evaluation, policy):
        say(line)
    console.print(evaluation_table(evaluation))
    console.print(depths_table(evaluation.depths))
    if evaluation.groups:
        console.print(groups_table(evaluation))


def quieten_transformers() -> None:
    """Keep load reports and bars of transformers out of our output, without importing it; errors still show."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for name in ("huggingface_hub", "httpx", "httpx2"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if "transformers" in sys.modules:
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
