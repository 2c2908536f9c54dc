"""AdoptSettings: how to adopt a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exitpoll.decide.certificate import ORIGINAL, Guarantee
from exitpoll.errors import InputError
from exitpoll.models.folder import RUNTIMES


@dataclass(frozen=True)
class AdoptSettings:
    """How to adopt a classifier.

    Args:
        max_disagreement: The share of texts, at most, whose answer may differ from the original classifier's.
        confidence: How sure that is.
        tolerance: For regression: values at most so far from the original's count as the same answer; a tenth of the
            standard deviation of its values by default.
        adapt: Train the encoder too, on the original's answers: more texts exit early, and full depth changes.
        runtimes: The runtimes to export for and to time; all that are installed by default.
        seed: Seed of the division of the texts and of the training.
        report: Whether to write the HTML report.
    """

    max_disagreement: float = 0.01
    confidence: float = 0.95
    tolerance: float | None = None
    adapt: bool = False
    runtimes: Sequence[str] | None = None
    seed: int = 0
    report: bool = True

    def __post_init__(self) -> None:
        """Check the names of the runtimes."""
        unknown = [name for name in self.runtimes or () if name not in RUNTIMES]
        if unknown:
            raise InputError(f"runtime {unknown[0]!r:.60} is unknown; choose among: {', '.join(RUNTIMES)}")

    @property
    def guarantee(self) -> Guarantee:
        """What is to be certified."""
        return Guarantee("disagreement", self.max_disagreement, self.confidence, self.tolerance, ORIGINAL)
