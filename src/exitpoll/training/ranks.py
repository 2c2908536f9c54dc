"""The processes of one training, as torchrun and accelerate launch start them: which one this is, what they exchange.

Only the first creates folders, keeps the journal, chooses checkpoints, prints and publishes. Imports torch when it is
needed, so that the command line can ask early whether it should print.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from exitpoll.errors import InputError

if TYPE_CHECKING:
    from accelerate import PartialState
    from numpy.typing import NDArray
    from torch import Tensor

Value = TypeVar("Value")


def is_first() -> bool:
    """Return whether this is the first of the processes that train together, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def processes() -> PartialState:
    """Return how many processes train together and which one this is; on CPUs, they talk by gloo."""
    import torch
    from accelerate import PartialState

    return PartialState(cpu=not torch.accelerator.is_available())


@contextmanager
def losses_explained() -> Iterator[None]:
    """Say in one line that another process has ended, which torch says in terms of sockets."""
    from torch.distributed import DistError

    try:
        yield
    except RuntimeError as error:
        if isinstance(error, DistError) or "gloo" in str(error):
            message = "another process of this training has ended; rerun with resume to continue"
            raise InputError(message, options=["resume"]) from error
        raise


def shards_weights() -> bool:
    """Return whether every process keeps only its part of the weights while it trains (FSDP)."""
    return os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true")


def split_evenly(batch_size: int) -> int:
    """Compute the texts that one process takes of every batch.

    Args:
        batch_size: Texts in a batch of all processes together.

    Returns:
        Texts in a batch of one process.
    """
    count = processes().num_processes
    if batch_size % count:
        raise InputError(
            f"batch_size {batch_size} cannot be divided among {count} processes: use a multiple of {count}"
        )
    return batch_size // count


def own_texts(texts: int, each: int) -> int:
    """Compute how many texts of a batch belong to this process; the others of its part are there to fill it up.

    Args:
        texts: Texts in the batch of all processes, fewer than usual in the last batch of an epoch.
        each: Texts in a full batch of one process.

    Returns:
        A number from 0 to `each`.
    """
    return min(max(texts - processes().process_index * each, 0), each)


def first_alone(action: Callable[[], Value]) -> Value:
    """Do something in the first process only, while the others wait.

    Args:
        action: What to do; an `InputError` of it is raised in all processes.

    Returns:
        What it returned, in all processes.
    """
    if processes().num_processes == 1:
        return action()
    from torch.distributed import broadcast_object_list

    outcome: list[Any] = [None, None, ()]  # a value, or a message and its options
    if processes().is_main_process:
        try:
            outcome[0] = action()
        except InputError as error:
            outcome[1:] = str(error), error.options
    broadcast_object_list(outcome)
    value, problem, options = outcome
    if problem is not None:
        raise InputError(problem, options=options)
    return value


def mean_of(loss: Tensor) -> float:
    """Return the mean of a number over all processes."""
    from accelerate.utils import reduce

    return float(reduce(loss.detach(), "mean"))


def sum_of(values: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes."""
    from accelerate.utils import reduce

    return reduce(values.detach().clone(), "sum")


def sum_of_array(values: NDArray) -> NDArray:
    """Return the sum of an array over all processes."""
    import torch

    if processes().num_processes == 1:
        return values
    return sum_of(torch.from_numpy(values).to(processes().device)).cpu().numpy()


def leave() -> None:
    """End this process, where it is one of several and all has been written.

    torch 2.13 aborts about every second process that has talked by gloo and then ends in the usual way.
    """
    if processes().num_processes > 1:
        processes().destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
