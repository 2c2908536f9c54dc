"""Progress of long work: one dataclass and one callback for everything that reports it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Progress:
    """The progress of a task."""

    task: str  # what is being done; in training, the stage
    done: int
    total: int | None = None  # None if it is not known in advance, as in prediction
    loss: float | None = None  # of training
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
