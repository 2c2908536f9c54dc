"""Progress bars in the terminal or a notebook, and a line for every evaluation during training."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from exitpoll.data.progress import OnProgress, Progress


@contextmanager
def progress_bars(console: Console) -> Iterator[OnProgress]:
    """Show a bar for every task that reports progress.

    Args:
        console: Where to show them; if it is neither a terminal nor a notebook, only the evaluations during training
            are printed.

    Yields:
        What to pass as `on_progress`.
    """
    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[details]}"),
        console=console,
        disable=not (console.is_terminal or console.is_jupyter),
    )
    tasks: dict[str, TaskID] = {}
    printed: dict[str, Sequence[float]] = {}
    started = time.monotonic()

    def show(progress: Progress) -> None:
        name, scores = progress.task, progress.exit_scores
        if name not in tasks:
            description = name if progress.loss is None else f"training {name}"
            tasks[name] = bars.add_task(description, total=progress.total, details="")
        details = _details(progress, time.monotonic() - started)
        if scores is not None and printed.get(name) is not scores:
            printed[name] = scores
            console.print(f"  step {progress.done}/{progress.total}  {details}", highlight=False, soft_wrap=True)
        bars.update(tasks[name], completed=progress.done, total=progress.total, details=details)

    with bars:
        yield show


def _details(progress: Progress, seconds: float) -> str:
    """Format the numbers that a task reports beside its progress."""
    parts = []
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.3f}")
    if progress.exit_scores is not None:
        parts.append("exits " + " ".join(f"{100 * score:.1f}" for score in progress.exit_scores))
    if progress.mean_depth is not None:
        parts.append(f"{progress.done / max(1e-9, seconds):.0f} texts/s")
        parts.append(f"mean depth {progress.mean_depth:.2f}")
    return " · ".join(parts)
