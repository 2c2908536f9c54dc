"""The result of an adoption: what is guaranteed, how much faster it is, and how to load it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from exitpoll.benchmark.timing import Benchmark, Gain, Way
from exitpoll.decide.policy import Policy
from exitpoll.files import JsonObject

INT8 = "onnx-int8"  # the runtime whose logits are others than those of float32
WORTH_HAVING = 1.1  # times as few layers
ADAPTED_IN_VAIN = (
    "the encoder was trained too, so even at full depth some answers are not the original's: adopt again without "
    "adapt, which keeps them, or with more texts"
)


@dataclass(frozen=True)
class Adapting:
    """What training the encoder too gains, on the texts that choose: speed-ups in layers without and with it."""

    frozen: float = 1.0
    adapted: float = 1.0
    changed: float = 0.0  # share of answers at full depth that are no longer the original's

    @property
    def pays(self) -> bool:
        """Whether the trained encoder is kept."""
        return self.adapted > self.frozen

    def __str__(self) -> str:
        """Say what came out."""
        compared = f"{self.adapted:.1f} × fewer layers, and {self.frozen:.1f} × with the encoder as it was"
        kept = "gains" if self.pays else "does not pay, so the encoder stays as it was"
        changed = f"it changes {100 * self.changed:.1f} % of the answers at full depth"
        return f"training the encoder too {kept}: {compared}; {changed} (on the texts that choose the policy)"


@dataclass(frozen=True)
class InRuntime:
    """What was certified in one runtime."""

    runtime: str
    met: bool  # whether the guarantee holds
    speedup: float  # in layers, on the texts that certify
    differs: float | None  # share of these texts whose answer is another than the original's
    bound: float | None  # upper bound of that share
    strategy: str
    exits: bool = True  # whether texts exit early

    @classmethod
    def of(cls, runtime: str, policy: Policy) -> InRuntime:
        """Read the certificate of a policy."""
        certificate = policy.certificate
        assert certificate is not None
        figures = certificate.met, certificate.speedup, certificate.measured, certificate.bound
        return cls(runtime, *figures, policy.name, policy.threshold is not None)


@dataclass(frozen=True)
class Choice:
    """How the engine runs a model by default."""

    runtime: str
    exits: bool  # whether texts exit early


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
    adapting: Adapting | None  # what training the encoder too gained, if that was asked for
    seconds: float  # of all sessions
    notes: Sequence[str] = ()

    @property
    def chosen(self) -> InRuntime:
        """What was certified in the default runtime."""
        return next(row for row in self.in_runtimes if row.runtime == self.runtime)

    def lines(self) -> list[str]:
        """Describe the result: how much faster, what is guaranteed, how to load it."""
        adapting = [] if self.adapting is None else [str(self.adapting)]
        return [*self._speed(), *self._promise(), *adapting, self._loading()]

    @property
    def adapted(self) -> bool:
        """Whether the encoder is another than the original's."""
        return self.adapting is not None and self.adapting.pays

    def _speed(self) -> list[str]:
        """Say how much faster the default runtime is, and how much of that is early exit."""
        gains = [gain for gain in self.gains if gain.runtime == self.runtime]
        if not gains:
            return []
        parts = []
        for gain in gains:
            size = "one text" if gain.batch_size == 1 else f"{gain.batch_size} texts"
            if self.chosen.exits:
                exits = f"{gain.by_exits.value:.1f} × of it by early exit"
                parts.append(f"{gain.total.value:.1f} × for {size} at a time ({exits})")
            else:
                parts.append(f"{gain.without_exits.value:.1f} × for {size} at a time")
        without = "" if self.chosen.exits else ", all layers"
        return [f"faster than plain transformers, in {self.runtime}{without}: {', '.join(parts)}"]

    def _promise(self) -> list[str]:
        """State the guarantee, or why there is none worth having."""
        chosen, oracle = self.chosen, f"{self.oracle_speedup:.1f} ×"
        if chosen.met and not chosen.exits:
            return [
                f"guaranteed: {self.guarantee}; no text exits early, because exits that keep this cost more time than "
                f"they save, or there are none: {_reason(self)} ({oracle} with a perfect choice)"
            ]
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
        advice = "; try adapt" if adopted.adapting is None else ""
        return f"the exits below the last seldom give its answer, so the encoder decides late{advice}"
    return "the exits often agree with the last one, but do not know when; more texts would help"


def fastest(in_runtimes: Sequence[InRuntime], timed: Benchmark, *, same_full_depth: bool) -> Choice:
    """Return the fastest way to run the model of those that keep the guarantee, over all batch sizes timed.

    Args:
        in_runtimes: What was certified. In int8, exits are certified only where all layers are too.
        timed: The timings.
        same_full_depth: Whether all layers in float32 answer as the original does.

    Returns:
        The way; if the guarantee holds in none, torch at full depth, which answers as the original unless adapted.
    """
    speeds: dict[Choice, float] = {}
    for timing in timed.timings:
        if timing.way in (Way.ENGINE, Way.FULL_DEPTH):
            choice = Choice(timing.runtime, exits=timing.way == Way.ENGINE)
            speeds[choice] = speeds.get(choice, 1.0) * timing.against_plain
    keeping = {Choice(row.runtime, exits=True) for row in in_runtimes if row.met and row.exits}
    if same_full_depth:
        keeping |= {Choice(row.runtime, exits=False) for row in in_runtimes if row.met or row.runtime != INT8}
    return max(keeping & speeds.keys(), key=speeds.__getitem__, default=Choice("torch", exits=False))
