"""Watch a guarantee on live texts: a bound on the disagreement that is valid at any time, however often it is read.

Some texts, drawn by a coin, are also answered by the full model. Whether the answers differ is bet on: the hypothesis
is that the risk is at most the limit. For a higher risk q, the wealth of a bet grows by q / limit where answers differ
and shrinks by (1 − q) / (1 − limit) where they do not. If the hypothesis is true, the mean of the wealth never grows,
and it ever reaches 1 / δ with probability at most δ: Ville's inequality, as in Waudby-Smith and Ramdas (2023). The
monitor spreads its wealth over several q. So a false alarm has probability at most δ over the whole life of a server. A
test made for a fixed number of texts and repeated after each would raise one sooner or later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from exitpoll.decide.certificate import FULL_MODEL
from exitpoll.decide.policy import Policy
from exitpoll.errors import InputError
from exitpoll.files import JsonObject, read_json, write_json

STAKES = {1.5: 0.1, 2.0: 0.2, 3.0: 0.45, 6.0: 0.15, 15.0: 0.1}  # multiples of the limit, with shares of the wealth
MOST_TEXTS = 1 << 53


@dataclass
class Monitor:
    """Counts of the texts on which live answers were compared with the full model's.

    Args:
        limit: The risk that is guaranteed: the share of texts whose answer may differ.
        confidence: 1 minus the probability of a false alarm, over any number of texts.
        tolerance: For regression: values that are at most so far apart count as the same answer.
        on_alarm: Called once, with the monitor, when the guarantee is found to be broken.
    """

    limit: float
    confidence: float = 0.95
    tolerance: float | None = None
    on_alarm: Callable[[Monitor], None] | None = None
    texts: int = 0
    differing: int = 0
    alarm_after: int | None = None  # texts

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("limit", "confidence"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)!r:.40} must be above 0 and below 1")

    @classmethod
    def of(cls, policy: Policy, on_alarm: Callable[[Monitor], None] | None = None) -> Monitor | None:
        """Return a monitor of a policy's guarantee.

        Args:
            policy: The policy.
            on_alarm: Called once, when the guarantee is found to be broken.

        Returns:
            The monitor; None if the policy guarantees nothing that can be watched without labels: only the disagreement
            with the full model can.
        """
        guarantee = None if policy.certificate is None else policy.certificate.guarantee
        if guarantee is None or guarantee.risk != "disagreement" or guarantee.reference != FULL_MODEL:
            return None
        return cls(guarantee.at_most, guarantee.confidence, guarantee.tolerance, on_alarm)

    def add(self, differs: bool | Iterable[bool]) -> bool:
        """Count texts.

        Args:
            differs: Whether the answer to a text differs from the full model's; or that of several texts, in order.

        Returns:
            Whether the guarantee is found to be broken, now or before.
        """
        for one in differs if isinstance(differs, Iterable) else [differs]:
            self.texts += 1
            self.differing += bool(one)
            if one and self.alarm_after is None and self.log_wealth(self.limit) >= self._goal:
                self.alarm_after = self.texts
                if self.on_alarm is not None:
                    self.on_alarm(self)
        return self.is_broken

    def compare(self, live: object, full: object) -> bool:
        """Count a text by its two answers.

        Args:
            live: The answer that was given: a label, labels, or a value.
            full: The full model's answer.

        Returns:
            Whether the guarantee is found to be broken.
        """
        if self.tolerance is not None and isinstance(live, float) and isinstance(full, float):
            return self.add(not abs(live - full) <= self.tolerance)
        return self.add(live != full)

    @property
    def is_broken(self) -> bool:
        """Whether the risk was found to be above the limit; this stays."""
        return self.alarm_after is not None

    @property
    def lower_bound(self) -> float:
        """The risk is at least this, at all times together with the probability `confidence`."""
        low, high = 0.0, self.differing / max(self.texts, 1)
        for _ in range(40):
            middle = (low + high) / 2
            is_refuted = middle > 0 and self.log_wealth(middle) >= self._goal
            low, high = (middle, high) if is_refuted else (low, middle)
        return low

    @property
    def _goal(self) -> float:
        """The logarithm of the wealth at which a limit is refuted."""
        return -math.log1p(-self.confidence)

    def log_wealth(self, limit: float) -> float:
        """Compute the logarithm of what bets against a limit have made of 1.

        Args:
            limit: The risk that the bets are against.

        Returns:
            The logarithm.
        """
        same = self.texts - self.differing
        logs = []
        for multiple, share in STAKES.items():
            risk = min(multiple * limit, (1 + limit) / 2)  # above the limit, and below 1
            grown = self.differing * math.log(risk / limit) + same * (math.log1p(-risk) - math.log1p(-limit))
            logs.append(math.log(share) + grown)
        highest = max(logs)
        return highest + math.log(sum(math.exp(value - highest) for value in logs))

    # ---- files ------------------------------------------------------------------------------------------------------

    def to_dict(self) -> JsonObject:
        """Return the state as plain values: counts, never texts."""
        names = ("limit", "confidence", "tolerance", "texts", "differing", "alarm_after")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_dict(cls, content: object, on_alarm: Callable[[Monitor], None] | None = None) -> Monitor:
        """Read what `to_dict` returned.

        Args:
            content: A JSON object.
            on_alarm: Called once, if the guarantee is found to be broken from now on.

        Returns:
            The monitor.
        """
        try:
            assert isinstance(content, dict)
            monitor = cls(**content, on_alarm=on_alarm)
            counts = [monitor.texts, monitor.differing, monitor.alarm_after or 0]
            assert all(type(count) is int and 0 <= count <= min(monitor.texts, MOST_TEXTS) for count in counts)
            assert monitor.tolerance is None or monitor.tolerance >= 0
        except (AssertionError, TypeError, InputError) as error:
            raise InputError(f"{content!r:.80} is not the state of a monitor") from error
        return monitor

    def save(self, path: str | Path) -> None:
        """Write the state atomically.

        Args:
            path: The file to write.
        """
        write_json(Path(path), self.to_dict())

    @classmethod
    def load(cls, path: str | Path, on_alarm: Callable[[Monitor], None] | None = None) -> Monitor:
        """Load what `save` wrote.

        Args:
            path: The file to read.
            on_alarm: Called once, if the guarantee is found to be broken from now on.

        Returns:
            The monitor.
        """
        if not Path(path).exists():
            raise InputError(f"there is no state of a monitor at '{path}'")
        return cls.from_dict(read_json(Path(path)), on_alarm)
