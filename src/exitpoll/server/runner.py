"""What runs texts: a thread of the server's own process, or model processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from exitpoll.decide.policy import Policy
from exitpoll.engine.arrivals import Step
from exitpoll.engine.costs import CallCosts
from exitpoll.engine.live import LiveScheduler
from exitpoll.engine.runtime import LoadedModel
from exitpoll.server.metrics import Metrics
from exitpoll.server.model_thread import Job, ModelThread
from exitpoll.server.settings import ServerSettings
from exitpoll.server.worker_pool import WorkerPool


class Runner(Protocol):
    """What runs texts: a thread of this process, or other processes."""

    model: LoadedModel

    def start(self) -> None:
        """Start to run texts."""

    def stop(self) -> None:
        """End."""

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""

    @property
    def is_up(self) -> bool:
        """Whether a model is loaded."""

    def stalled_for(self) -> float:
        """Return for how many seconds nothing can run, because a call does not end."""

    @property
    def pool_texts(self) -> Mapping[int, int]:
        """Texts that wait half-way, by the layers that they have run."""

    def submit(self, job: Job) -> None:
        """Let the texts of a request run."""

    def cancel(self, job: Job) -> None:
        """Drop what is under way of a request, before its next layer; dropped texts are not delivered."""

    def forget(self, policy: Policy) -> None:
        """Let go of a policy that no further request will name; texts under way keep it."""


def runner_for(
    model: LoadedModel,
    costs: CallCosts,
    settings: ServerSettings,
    metrics: Metrics,
    on_step: Callable[[Step, float], None],
) -> Runner:
    """Return what runs texts, which is not started yet.

    Args:
        model: The model; without weights if processes run it.
        costs: What calls cost.
        settings: How many processes there are, and how long a call may take.
        metrics: Counts processes that die.
        on_step: Told of every call and its seconds, in a thread of the runner.

    Returns:
        The runner.
    """
    if not settings.workers:
        return ModelThread(model, LiveScheduler(model.runtime, costs), on_step)
    return WorkerPool(
        model,
        costs,
        on_step,
        workers=settings.workers,
        stall_timeout=settings.stall_timeout,
        on_restart=metrics.worker_restarts.inc,
    )
