"""Progress bars in the terminal, and plain lines where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from exitpoll.report.wording import percent

if TYPE_CHECKING:
    from exitpoll.training.trainer import OnProgress, Progress


@contextmanager
def training_bars(console: Console) -> Iterator[OnProgress]:
    """Show a bar for each stage, with the loss and every exit's score.

    Args:
        console: Where to show them.

    Yields:
        What to hand to `train` as `on_progress`.
    """
    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
        console=console,
        disable=not console.is_terminal,
    )
    tasks: dict[str, TaskID] = {}
    shown: dict[str, Sequence[float]] = {}

    def show(progress: Progress) -> None:
        stage = progress.stage
        if stage not in tasks:
            tasks[stage] = bars.add_task(f"training {stage}" if progress.loss is not None else stage, figures="")
        figures = "" if progress.loss is None else f"loss {progress.loss:.3f}"
        if progress.exit_scores is not None:
            figures += f" · exits {' '.join(map(percent, progress.exit_scores))}"
            if shown.get(stage) is not progress.exit_scores:
                shown[stage] = progress.exit_scores
                console.print(f"  step {progress.step}/{progress.steps}  {figures}", highlight=False, soft_wrap=True)
        bars.update(tasks[stage], completed=progress.step, total=progress.steps, figures=figures)

    with bars:
        yield show


@contextmanager
def counting_bar(console: Console, description: str) -> Iterator[Callable[[int, int], None]]:
    """Show how many texts are done.

    Args:
        console: Where to show it.
        description: What is being done.

    Yields:
        What to call with the number of texts done and of all texts.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task(description, total=None)
        yield lambda done, texts: bars.update(task, completed=done, total=texts)


@contextmanager
def predicting_bar(console: Console) -> Iterator[Callable[[int, float], None]]:
    """Show how many texts are answered, how many a second, and how deep they went.

    Args:
        console: Where to show it.

    Yields:
        What to call with the number of texts done and their mean depth.
    """
    columns = (TextColumn("answered {task.completed} texts"), TextColumn("{task.fields[figures]}"))
    started = time.monotonic()
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task("", total=None, figures="")

        def show(done: int, depth: float) -> None:
            rate = done / max(1e-9, time.monotonic() - started)
            bars.update(task, completed=done, figures=f"{rate:.0f} a second · mean depth {depth:.2f}")

        yield show


@contextmanager
def stages_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Show one thing after another being done.

    Args:
        console: Where to show it.

    Yields:
        What to call with what is being done, how much of it is done and how much there is.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=of)

        yield show
