"""The results of `reproduce.py`, gathered from one file per task, and how single figures of them are written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from exitpoll.decide.bootstrap import Estimate
from exitpoll.study.comparisons import ALL, SPEEDUPS, Gain, averages
from exitpoll.study.findings import StateFindings, TaskFindings, VariantFindings
from exitpoll.study.tables import Cell

FOLDER = Path(__file__).parent / "results" / "reproduce"


@dataclass(frozen=True)
class Results:
    """All results."""

    cells: Sequence[Cell]  # of the paper's tables
    gains: Sequence[Gain]  # of every contrast, by task and on average
    gains_with_new_seeds: Sequence[Gain]  # over the full model, with seeds that no choice was made on
    tasks: dict[str, TaskFindings]
    varied: str  # the task of variants and states
    variants: list[VariantFindings]  # the first is ours
    states: dict[str, dict[str, StateFindings]]  # by training and step

    def gain(self, contrast: str, speedup: float, task: str = ALL) -> Gain | None:
        """Return the gain of a contrast at a speed-up, if it was computed."""
        wanted = contrast, speedup, task
        return next((gain for gain in self.gains if (gain.contrast, gain.speedup, gain.task) == wanted), None)

    def gains_at(self, contrast: str, speedups: Sequence[float] = SPEEDUPS, task: str = ALL) -> list[Gain]:
        """Return the gains of a contrast at some speed-ups, as far as they were computed."""
        gains = (self.gain(contrast, speedup, task) for speedup in speedups)
        return [gain for gain in gains if gain is not None]

    def signs(self, contrast: str, speedups: Sequence[float] = SPEEDUPS) -> set[int]:
        """Return the signs of the average gains, 0 if not significant or not without some task."""
        return {0 if gain.rests_on else gain.gain.sign for gain in self.gains_at(contrast, speedups)}

    def variant(self, name: str, strategy: str) -> Estimate:
        """Return how far a variant is above ours by a strategy."""
        [variant] = [variant for variant in self.variants if variant["name"] == name]
        above = variant["above_ours"][strategy]
        assert above is not None
        return Estimate(**above)

    def scores(self, task: str, row: str, *, on_dev: bool = False) -> list[float]:
        """Return a method's scores with every seed, in %; with `on_dev`, thresholds are chosen on the scored texts."""
        cells = [cell for cell in self.cells if (cell.task, cell.row) == (task, row)]
        scores = [cell.score_on_dev if on_dev else cell.score for cell in cells]
        return [100 * score for score in scores if score is not None]


def read_results() -> Results:
    """Read the results of all tasks."""
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    [varied] = [part for part in parts if part["varied"] is not None]
    gains = [Gain.from_dict(plain) for part in parts for plain in part["contests"]]
    return Results(
        cells=[Cell(**plain) for part in parts for plain in part["cells"]],
        gains=[*gains, *averages(gains)],
        gains_with_new_seeds=[Gain.from_dict(plain) for plain in varied["kept_afresh"]],
        tasks={task: findings for part in parts for task, findings in part["tasks"].items()},
        varied=varied["varied"],
        variants=varied["variants"],
        states=varied["states"],
    )


def format_estimate(gain: Estimate) -> str:
    """Format a gain and its interval in points; bold if significantly different from zero."""
    text = f"{100 * gain.value:+.1f} ({100 * gain.low:+.1f} … {100 * gain.high:+.1f})"
    return text if gain.sign == 0 else f"**{text}**"


def format_gain(gain: Gain) -> str:
    """Format a gain; in italics if it is significant only as long as none of the tasks in brackets is left out."""
    text = format_estimate(gain.gain)
    return f"*{text.strip('*')}* [{', '.join(gain.rests_on)}]" if gain.rests_on else text


def format_gains(gains: Iterable[Gain]) -> str:
    """Format gains with their speed-ups."""
    return ", ".join(f"{format_gain(gain)} at {gain.speedup:g}×" for gain in gains)


def format_range(values: Iterable[float], unit: str = " %", digits: int = 0) -> str:
    """Format the smallest and the largest of some figures."""
    ordered = sorted(values)
    low, high = (f"{value:.{digits}f}" for value in (ordered[0], ordered[-1]))
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


VERDICTS = (  # the sign of a gain, and whether it depends on single tasks
    ("yes", 1, False),
    ("no, the opposite", -1, False),
    ("yes, but depending on single tasks,", 1, True),
    ("no, the opposite, but depending on single tasks,", -1, True),
)


def answer(results: Results, contrast: str) -> str:
    """Return at which speed-ups the first way is significantly better or worse than the second, with all gains."""
    gains = results.gains_at(contrast)
    verdicts = []
    for verdict, sign, depends in VERDICTS:
        speedups = [gain.speedup for gain in gains if gain.gain.sign == sign and bool(gain.rests_on) is depends]
        if speedups:
            verdicts.append(f"{verdict} at {', '.join(f'{speedup:g}×' for speedup in speedups)}")
    text = "; ".join(verdicts) or "no significant difference"
    return f"{text[0].upper()}{text[1:]}: {format_gains(gains)}."
