"""exitpoll quickstart: every step once, on real data."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from exitpoll.cli.app import app
from exitpoll.cli.console import quieten_transformers, say
from exitpoll.cli.groups import IN_DATA, IN_METHOD, IN_MODEL
from exitpoll.cli.options import OptionalOut
from exitpoll.errors import InputError

if TYPE_CHECKING:
    from exitpoll.cli.quickstart import Step


def quickstart(
    *,
    encoder: Annotated[str, IN_MODEL] = "embedded",
    data: Annotated[str, IN_DATA] = "embedded",
    fast: Annotated[bool, IN_METHOD] = False,
    out: OptionalOut = None,
) -> None:
    """Run every step once on real data, from training to a report.

    It says first how long that takes here; on a slow machine it trains on fewer texts.

    Rerun the same command after an interruption: it continues with the step that was interrupted.

    Example: exitpoll quickstart --fast

    Args:
        encoder: The encoder to train; the one of the extra demo by default.
        data: What to train on; movie reviews of the extra demo by default.
        fast: Use fewer texts and one epoch: takes about two minutes and gives a weaker model.
        out: The folder for everything; quickstart, or quickstart-fast, by default.
    """
    import torch

    from exitpoll.cli.quickstart import (
        MODEL,
        Choices,
        check_requirements,
        describe_answers,
        describe_speed,
        prepare,
        steps,
    )

    folder, choices = out or Path("quickstart-fast" if fast else "quickstart"), Choices(encoder, data, fast)
    check_requirements(encoder)
    quieten_transformers()
    started = prepare(folder, choices)
    say(*started.lines)
    if started.pace is not None:
        torch.set_num_threads(started.pace.threads)
    todo = list(steps(folder, started))
    for number, step in enumerate(todo, start=1):
        _do(step, f"{number} of {len(todo)}: {step.title}")
        if step.verb == "predict":
            say(*describe_answers(step.makes, _layers(folder / MODEL)))
    say("", *describe_speed(folder / "bench" / "bench.json"), f"open {todo[-1].makes.resolve()} in a browser")


def _do(step: Step, title: str) -> None:
    """Show a step, and run it unless it is done."""
    done = step.makes.exists()
    say("", f"── {title}{' (done before)' if done else ''}")
    say(f"$ exitpoll {shlex.join(step.words)}")
    if done or _run(step.words) or not step.fallback:
        return
    fallback = [step.verb, *step.fallback]
    say("so, without a guarantee:", f"$ exitpoll {shlex.join(fallback)}")
    _run(fallback)


def _run(words: Sequence[str]) -> bool:
    """Run a verb, and return whether it succeeded; a guarantee that is not possible does not stop the quickstart."""
    try:
        app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except SystemExit as stop:
        if stop.code != 1:
            raise
        return False
    except InputError as error:
        if words[0] != "calibrate":
            raise
        say(error.with_flags())
        return False
    return True


def _layers(model_folder: Path) -> int:
    """Return the number of layers of a trained model."""
    from exitpoll.models.folder import read_training

    return int(read_training(model_folder)["exit_layers"][-1])
