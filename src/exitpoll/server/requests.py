"""Requests of whatever dialect: what they ask for, and what is kept of them while they are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from exitpoll.data.batching import Text
from exitpoll.server.model_thread import Job
from exitpoll.server.policies import NamedPolicy

if TYPE_CHECKING:
    from opentelemetry.context import Context


@dataclass(frozen=True)
class Ask:
    """What a request asks for, in whatever dialect."""

    texts: Sequence[object]  # texts or pairs, unchecked
    policy: str | None = None
    max_depth: int | None = None
    explain: bool = False
    timeout: float | None = None  # seconds
    truncate: bool = True  # whether texts longer than the model reads are cut, or refused


@dataclass
class Running:
    """A request under way."""

    job: Job
    results: asyncio.Queue
    policy: NamedPolicy
    max_depth: int | None
    texts: list[Text]
    lengths: list[int]
    tokenize_seconds: float
    layer_tokens: list[int]  # that every text counts for while it is under way
    open: set[int] = field(default_factory=set)  # indices of texts under way
    audited: set[int] = field(default_factory=set)  # indices of texts that will also run to full depth
    is_broken: bool = False  # whether audits have refuted the guarantee
    trace: Context | None = None  # where the spans of its texts belong

    @property
    def guarantee(self) -> str | None:
        """The guarantee that holds for its answers; none for a depth that the policy was not calibrated for."""
        return self.policy.guarantee if self.max_depth is None and not self.is_broken else None
