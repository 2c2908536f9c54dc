"""What `reproduce.py` found, brought together from a file for each task, and how single figures of it are written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exitpoll.decide.evaluate import Estimate
from exitpoll.study.comparisons import ALL, SPEEDUPS, Gain, averages
from exitpoll.study.tables import Cell

FOLDER = Path(__file__).parent / "results" / "reproduce"


@dataclass(frozen=True)
class Results:
    """All that was found."""

    cells: Sequence[Cell]  # of the paper's tables
    gains: Sequence[Gain]  # every question by task, and on average
    afresh: Sequence[Gain]  # what is kept with seeds that no choice was made on
    tasks: Mapping[str, Any]  # the figures' material
    varied: str  # the task of the variants
    variants: Sequence[Mapping[str, Any]]
    states: Mapping[str, Any]

    def gain(self, question: str, speedup: float, task: str = ALL) -> Gain | None:
        """Find the answer to a question."""
        wanted = question, speedup, task
        return next((each for each in self.gains if (each.question, each.speedup, each.task) == wanted), None)

    def signs(self, question: str, speedups: Sequence[float] = SPEEDUPS) -> set[int]:
        """Say whether the first way is surely above the second at some speed-ups, whichever task is left out."""
        found = (self.gain(question, speedup) for speedup in speedups)
        return {0 if each.rests_on else each.gain.sign for each in found if each is not None}

    def variant(self, name: str, way: str) -> Estimate:
        """Say how far a variant is above ours by a strategy."""
        [found] = [each["above_ours"][way] for each in self.variants if each["name"] == name]
        return Estimate(**found)

    def scores(self, task: str, row: str, *, on_dev: bool = False) -> list[float]:
        """List a method's scores in the table with every seed, or those chosen on the texts reported on; in %."""
        here = [each for each in self.cells if (each.task, each.row) == (task, row)]
        found = [each.score_on_dev if on_dev else each.score for each in here]
        return [100 * each for each in found if each is not None]


def read_results() -> Results:
    """Bring together what was found task by task."""
    parts = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    [varied] = [part for part in parts if part["varied"] is not None]
    gains = [_gain(each) for part in parts for each in part["contests"]]
    return Results(
        cells=[Cell(**each) for part in parts for each in part["cells"]],
        gains=[*gains, *averages(gains)],
        afresh=[_gain(each) for each in varied["kept_afresh"]],
        tasks={task: each for part in parts for task, each in part["tasks"].items()},
        **{name: varied[name] for name in ("varied", "variants", "states")},
    )


def _gain(plain: Mapping[str, Any]) -> Gain:
    """Read a gain from plain values."""
    return Gain(**{**plain, "gain": Estimate(**plain["gain"])})


def in_points(gain: Estimate) -> str:
    """Write a gain and its interval in points; bold where the interval leaves out nought."""
    words = f"{100 * gain.value:+.1f} ({100 * gain.low:+.1f} … {100 * gain.high:+.1f})"
    return words if gain.sign == 0 else f"**{words}**"


def in_words(each: Gain) -> str:
    """Write a gain; in italics where it could not be told from nought if one of the named tasks were left out."""
    words = in_points(each.gain)
    return f"*{words.strip('*')}* [{', '.join(each.rests_on)}]" if each.rests_on else words


def span(values: Iterable[float], unit: str = " %", digits: int = 0) -> str:
    """Write the least and the largest of some figures."""
    ordered = sorted(values)
    low, high = (f"{value:.{digits}f}" for value in (ordered[0], ordered[-1]))
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


def answer(results: Results, question: str) -> str:
    """Say where the first way is surely above the second, where below, and how far at each speed-up."""
    here = [each for speedup in SPEEDUPS if (each := results.gain(question, speedup)) is not None]
    said = [
        f"{verdict} at {', '.join(f'{each.speedup:g}×' for each in there)}"
        for verdict, sign, alone in (
            ("yes", 1, False),
            ("on the contrary", -1, False),
            ("yes, if no task is left out,", 1, True),
            ("on the contrary, if no task is left out,", -1, True),
        )
        if (there := [each for each in here if each.gain.sign == sign and bool(each.rests_on) is alone])
    ]
    verdict = "; ".join(said) or "no difference that can be told from nought"
    return f"{verdict[0].upper()}{verdict[1:]}: {said_at(results, question)}."


def said_at(results: Results, question: str, speedups: Sequence[float] = SPEEDUPS, task: str = ALL) -> str:
    """Say how far the first way is above the second at some speed-ups, on average or on a task."""
    here = [each for speedup in speedups if (each := results.gain(question, speedup, task)) is not None]
    return ", ".join(f"{in_words(each)} at {each.speedup:g}×" for each in here)
