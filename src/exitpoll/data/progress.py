"""Progress of long work: one dataclass and one callback for everything that reports it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Progress:
    """The progress of a task."""

    task: str  # what is being done; in training, the stage
    done: int
    total: int | None = None  # None if it is not known in advance, as in prediction
    loss: float | None = None  # of training: mean over the batches since the last evaluation
    exit_scores: Sequence[float] | None = None  # of training: on the calibration split, when last scored
    mean_depth: float | None = None  # of prediction


OnProgress = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Show no progress."""


def named(task: str, on_progress: OnProgress) -> OnProgress:
    """Report progress under another name.

    Args:
        task: The new name.
        on_progress: Called with the renamed progress.

    Returns:
        A callback that takes progress of any name.
    """
    return lambda progress: on_progress(replace(progress, task=task))


@contextmanager
def shown(progress: bool, on_progress: OnProgress = ignore) -> Iterator[OnProgress]:
    """Show progress bars on stderr if asked to, for functions with an argument `progress`.

    Args:
        progress: Whether to show bars.
        on_progress: Called as well.

    Yields:
        What to call with progress.
    """
    if not progress:
        yield on_progress
        return
    from rich.console import Console  # takes time to import, and most callers show no bars

    from exitpoll.data.bars import progress_bars

    with progress_bars(Console(stderr=True)) as show:

        def show_and_call(report: Progress) -> None:
            show(report)
            on_progress(report)

        yield show_and_call
