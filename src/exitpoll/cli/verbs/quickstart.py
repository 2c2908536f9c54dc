"""exitpoll quickstart: every step once, on real data."""

from __future__ import annotations

import shlex
from pathlib import Path

from exitpoll.cli.app import app
from exitpoll.cli.console import console, say
from exitpoll.errors import InputError


def quickstart(
    *, encoder: str = "embedded", data: str = "embedded", fast: bool = False, out: Path | None = None
) -> None:
    """Run the whole story once, on real data: train, record, compare, promise, predict, export, time, report.

    Cut off and started again, it goes on with the step it was at.

    Example: exitpoll quickstart --fast

    Args:
        encoder: What to train; the one of the extra demo by default.
        data: What to train on; movie reviews of the extra demo by default.
        fast: Use fewer texts and one epoch: two minutes, and not the best of models.
        out: The folder for everything; quickstart, or quickstart-fast, by default.
    """
    from exitpoll.cli.quickstart import answers_in_words, check_installed, prepare, steps

    folder = out or Path("quickstart-fast" if fast else "quickstart")
    check_installed(encoder)
    prepare(folder, {"encoder": encoder, "data": data, "fast": fast})
    todo = list(steps(folder, encoder=encoder, data=data, fast=fast))
    for number, step in enumerate(todo, start=1):
        done = step.makes.exists()
        console.rule(f"{number} of {len(todo)}: {step.title}{' (done before)' if done else ''}", align="left")
        say(f"$ exitpoll {shlex.join(step.words)}")
        if not done and not _run(step.words) and step.otherwise:
            say(f"so, without a guarantee:\n$ exitpoll {shlex.join(step.otherwise)}")
            _run(step.otherwise)
        if step.words[0] == "predict":
            for line in answers_in_words(step.makes, _layers(folder / "model")):
                say(line)
    say(f"open {todo[-1].makes.resolve()} in a browser")


def _run(words: list[str]) -> bool:
    """Run a verb, and tell whether it came to what it was to; that a promise cannot be kept is nothing to stop for."""
    try:
        app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except SystemExit as stop:
        if stop.code != 1:
            raise
        return False
    except InputError as error:
        if words[0] != "calibrate":
            raise
        say(str(error))
        return False
    return True


def _layers(model: Path) -> int:
    """Count the layers of a trained model."""
    from exitpoll.models.folder import read_training

    return int(read_training(model)["exit_layers"][-1])
