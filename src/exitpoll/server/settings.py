"""Settings of a server: its limits, each with a default and an error of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path

from exitpoll.engine.live import MAX_WAIT
from exitpoll.errors import InputError

MOST_WORKERS = 256
BROWNOUT = re.compile(r"[^@]+@(0(\.\d+)?|1(\.0+)?)")


@dataclass(frozen=True)
class ServerSettings:
    """Limits of a server.

    Args:
        max_body_bytes: Most bytes in the body of a request.
        max_texts: Most texts in a request.
        max_characters: Most characters in a text, or in both texts of a pair.
        max_queue: Most work under way, in layer-tokens: tokens of all texts, each times all layers of the model. Above
            it requests are refused with 429.
        timeout: Seconds after which a request is given up; a request may ask for less.
        body_timeout: Seconds for the body of a request to arrive.
        drain_delay: Seconds between the first failing readiness probe and the end of listening.
        drain_timeout: Seconds for requests under way to be answered when the server ends.
        stall_timeout: Seconds in one call of the model after which its process is killed and replaced or, without
            such processes, the liveness probe fails.
        api_key: The key that requests must bear; None for none.
        protect_metrics: Whether metrics need the key too.
        audit: The share of texts that also run to full depth, to watch the guarantee; 0 for none.
        audit_state: The file that keeps the counts of these texts over restarts.
        step_back: Whether the default becomes a more cautious policy when audits find its guarantee broken.
        brownout: A policy with a guarantee, and the share of `max_queue` above which requests that name no policy get
            it: "fast@0.8".
        workers: How many processes run the model, each with a copy of it; 0 runs it in a thread of this process.
        header_timeout: Seconds for the headers of a request to arrive; 0 for no limit.
        max_wait: Seconds after its arrival that a text goes before all newer ones, however near their deadlines are.
    """

    max_body_bytes: int = 2_000_000
    max_texts: int = 256
    max_characters: int = 500_000
    max_queue: int = 2_000_000
    timeout: float = 60.0
    body_timeout: float = 30.0
    drain_delay: float = 0.0
    drain_timeout: float = 30.0
    stall_timeout: float = 30.0
    api_key: str | None = None
    protect_metrics: bool = False
    audit: float = 0.0
    audit_state: Path | None = None
    brownout: str | None = None
    workers: int = 0
    header_timeout: float = 10.0
    step_back: bool = False
    max_wait: float = MAX_WAIT

    def __post_init__(self) -> None:
        """Check the numbers."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and not 0 <= value < float("inf"):
                raise InputError(f"{field.name} {value:g} must be 0 or more, and finite", options=[field.name])
        limits = ("max_body_bytes", "max_texts", "max_characters", "max_queue")
        for name in (*limits, "timeout", "body_timeout", "stall_timeout"):
            if not getattr(self, name):
                raise InputError(f"{name} must be above 0", options=[name])
        if self.workers > MOST_WORKERS:
            raise InputError(f"workers {self.workers} must be at most {MOST_WORKERS}", options=["workers"])
        if self.step_back and not self.audit:
            raise InputError("step_back needs audits, which find broken guarantees: set audit", options=["audit"])
        if self.audit > 1:
            raise InputError(f"audit {self.audit:g} is a share of texts: at most 1", options=["audit"])
        if self.api_key is not None and (not self.api_key.strip() or not self.api_key.isascii()):
            raise InputError("api_key is empty, or not ASCII", options=["api_key"])
        if self.brownout is not None and not BROWNOUT.fullmatch(self.brownout):
            message = f"brownout {self.brownout!r:.40} must be a policy and a share of the queue, as in fast@0.8"
            raise InputError(message, options=["brownout"])

    @property
    def brownout_policy(self) -> str | None:
        """The policy under load."""
        return None if self.brownout is None else self.brownout.partition("@")[0]

    @property
    def brownout_work(self) -> float:
        """Layer-tokens under way above which requests that name no policy get that one."""
        return float("inf") if self.brownout is None else float(self.brownout.partition("@")[2]) * self.max_queue
