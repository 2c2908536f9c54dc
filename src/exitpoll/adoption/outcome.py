"""The result of an adoption: what is guaranteed, how much faster it is, and how to load it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from exitpoll.benchmark.timing import Benchmark, Gain
from exitpoll.decide.policy import Policy
from exitpoll.files import JsonObject

WORTH_HAVING = 1.1  # times as few layers
ADAPTED_IN_VAIN = (
    "the encoder was trained too, so even at full depth some answers are not the original's: adopt again without "
    "adapt, which keeps them, or with more texts"
)


@dataclass(frozen=True)
class InRuntime:
    """What was certified in one runtime."""

    runtime: str
    met: bool  # whether the guarantee holds with early exit
    speedup: float  # in layers, on the texts that certify
    differs: float | None  # share of these texts whose answer is another than the original's
    bound: float | None  # upper bound of that share
    strategy: str

    @classmethod
    def of(cls, runtime: str, policy: Policy) -> InRuntime:
        """Read the certificate of a policy."""
        certificate = policy.certificate
        assert certificate is not None
        return cls(runtime, certificate.met, certificate.speedup, certificate.measured, certificate.bound, policy.name)


@dataclass(frozen=True)
class Adopted:
    """What `adopt` made, as adopted.json keeps it."""

    folder: Path
    classifier: str  # its name, or that of its folder
    guarantee: str  # in words
    texts: Mapping[str, int]  # by what they were for
    runtime: str  # that the engine uses by default
    in_runtimes: Sequence[InRuntime]
    gains: Sequence[Gain]
    oracle_speedup: float  # if every text left at the first exit from which on all answer as the last one
    adapted: bool  # whether the encoder was trained too
    seconds: float  # of all sessions
    notes: Sequence[str] = ()

    @property
    def chosen(self) -> InRuntime:
        """What was certified in the default runtime."""
        return next(row for row in self.in_runtimes if row.runtime == self.runtime)

    def lines(self) -> list[str]:
        """Describe the result: how much faster, what is guaranteed, how to load it."""
        return [*self._speed(), *self._promise(), self._loading()]

    def _speed(self) -> list[str]:
        """Say how much faster the default runtime is, and how much of that is early exit."""
        gains = [gain for gain in self.gains if gain.runtime == self.runtime]
        if not gains:
            return []
        parts = []
        for gain in gains:
            size = "one text" if gain.batch_size == 1 else f"{gain.batch_size} texts"
            exits = f"{gain.by_exits.value:.1f} × of it by early exit"
            parts.append(f"{gain.total.value:.1f} × for {size} at a time ({exits})")
        return [f"faster than plain transformers, in {self.runtime}: {', '.join(parts)}"]

    def _promise(self) -> list[str]:
        """State the guarantee, or why there is none worth having."""
        chosen, oracle = self.chosen, f"{self.oracle_speedup:.1f} ×"
        if not chosen.met:
            return [
                f"no guarantee with early exit: {self.guarantee} could not be certified at any speed-up; even leaving "
                f"every text at the first exit that agrees for good would be {oracle}",
                *([ADAPTED_IN_VAIN] if self.adapted else []),
            ]
        line = f"guaranteed: {self.guarantee}; {chosen.speedup:.1f} × fewer layers ({oracle} with a perfect choice)"
        weak = [] if chosen.speedup >= WORTH_HAVING else [f"this speed-up is hardly worth having: {_reason(self)}"]
        return [line, *weak]

    def _loading(self) -> str:
        """Say how to load it."""
        return f"load it: exitpoll.Engine.load('{self.folder}'), or: exitpoll predict {self.folder} --data …"

    def to_dict(self) -> JsonObject:
        """Return plain values, for JSON."""
        return {**asdict(self), "folder": self.folder.name}


def _reason(adopted: Adopted) -> str:
    """Say whether the heads or the choice of the exit stand in the way."""
    if adopted.oracle_speedup < 1.5:
        advice = "" if adopted.adapted else "; try adapt"
        return f"the exits below the last seldom give its answer, so the encoder decides late{advice}"
    return "the exits often agree with the last one, but do not know when; more texts would help"


def fastest(in_runtimes: Sequence[InRuntime], timed: Benchmark) -> str:
    """Return the runtime that is fastest of those in which the guarantee holds, over all batch sizes timed.

    Args:
        in_runtimes: What was certified.
        timed: The timings.

    Returns:
        Its name; if the guarantee holds in none, "torch", which answers as the original does unless it was adapted.
    """
    speeds: dict[str, float] = {}
    for gain in timed.gains:
        speeds[gain.runtime] = speeds.get(gain.runtime, 1.0) * gain.total.value
    certified = [row.runtime for row in in_runtimes if row.met and row.runtime in speeds]
    return max(certified, key=speeds.__getitem__, default="torch")
