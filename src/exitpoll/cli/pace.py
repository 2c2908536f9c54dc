"""How long the quickstart takes on this machine, from the time of a few training steps, and how much it can do."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exitpoll.data.splits import Texts

BATCH = 32  # texts in a training step
TIMED_STEPS = 4  # the fastest counts, so that a busy moment does not
ENOUGH = 4.0  # seconds of timing, where the machine is slow
LONGEST = 15.0  # minutes: with more, it trains on fewer texts
FEWER = (6000, 3000, 1500)  # texts to train on instead of more


@dataclass(frozen=True)
class Pace:
    """How fast this machine trains."""

    seconds_a_step: float
    threads: int  # with so many


@dataclass(frozen=True)
class Work:
    """What the quickstart does, in training steps that take as long."""

    epochs: int
    others: int  # what does not depend on the number of texts: packages, export, timings, figures

    def minutes(self, train: int, held_out: int, seconds_a_step: float) -> float:
        """Estimate how long it takes.

        Args:
            train: How many texts it trains on.
            held_out: How many texts are in the calibration and test splits.
            seconds_a_step: How long a training step takes here.

        Returns:
            Minutes.
        """
        # Held-out texts are run through once in an epoch, at the end of the training, for their trace and the export.
        forward = (self.epochs + 3) * held_out / BATCH / 3  # of the three passes of a step, one is forward
        return (self.epochs * math.ceil(train / BATCH) + forward + self.others) * seconds_a_step / 60


def choose_texts(work: Work, train: int, held_out: int, seconds_a_step: float) -> int:
    """Choose how many texts to train on: all, or as many as time allows.

    Args:
        work: What is to be done.
        train: How many texts there are to train on.
        held_out: How many texts are in the calibration and test splits.
        seconds_a_step: How long a training step takes here.

    Returns:
        All of them, or a round number.
    """
    candidates = [train, *(fewer for fewer in FEWER if fewer < train)]
    in_time = (few for few in candidates if work.minutes(few, held_out, seconds_a_step) <= LONGEST)
    return next(in_time, candidates[-1])


def measure(encoder: str, texts: Texts) -> Pace:
    """Time training steps with all threads and with one.

    On a busy machine, threads that wait for each other make two slower than one.

    Args:
        encoder: What is to be trained.
        texts: What it is to be trained on; the first of them are used.

    Returns:
        The faster of the two.
    """
    import torch

    step, threads = _training_step(encoder, texts), torch.get_num_threads()
    paces = []
    for number in {threads, 1}:
        torch.set_num_threads(number)
        paces.append(Pace(_time(step), number))
    torch.set_num_threads(threads)
    return min(paces, key=lambda pace: pace.seconds_a_step)


def _training_step(encoder: str, texts: Texts) -> Callable[[], object]:
    """Return a function that runs texts through a new model, forward and backward."""
    from exitpoll.models.device import choose_device
    from exitpoll.models.model import EarlyExitModel
    from exitpoll.models.pretrained import encoder_folder
    from exitpoll.models.tokenizer import load_tokenizer

    device = choose_device("auto")
    model = EarlyExitModel.from_encoder(encoder, labels=2).to(device).train()
    tokenizer = load_tokenizer(str(encoder_folder(encoder)))
    first, second = (None if part is None else list(part)[:BATCH] for part in (texts.first, texts.second))
    length = model.config.max_length
    tokens = tokenizer(first, second, padding=True, truncation=True, max_length=length, return_tensors="pt").to(device)
    return lambda: model(**tokens).exit_logits.sum().backward()


def _time(step: Callable[[], object]) -> float:
    """Return how many seconds the fastest of a few steps takes, after one that warms up."""
    seconds: list[float] = []
    while len(seconds) < 1 + TIMED_STEPS and sum(seconds) < ENOUGH:
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def describe(minutes: float) -> str:
    """Write a time as people say it."""
    if minutes < 1.5:
        return "about a minute"
    return f"about {minutes:.0f} minutes" if minutes < 90 else f"about {minutes / 60:.1f} hours"
