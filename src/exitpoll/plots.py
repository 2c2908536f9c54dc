"""Figures, drawn by matplotlib (the extra `plots`)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from exitpoll.comparison import Comparison
from exitpoll.curves import front_of
from exitpoll.errors import MissingExtraError
from exitpoll.folders import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from exitpoll.benchmarking import Benchmark

_COLOURS = (
    *("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377"),
    *("#bb5500", "#117733", "#882255", "#44aa99", "#999933", "#000000"),
)


def draw_curves(comparison: Comparison, path: Path) -> None:
    """Draw score against speed-up: every strategy's front, the static exits, the full model.

    Args:
        comparison: What a sweep found.
        path: The PNG file to write, whole or not at all.
    """
    figure = _figure((9, 5.5))
    axes = figure.subplots()
    names = list(comparison.best_scores)
    for name, colour in zip(names, _COLOURS, strict=False):
        curves = [curve for curve in comparison.curves if curve.strategy == name]
        speedup = np.concatenate([curve.speedup for curve in curves])
        score = np.concatenate([curve.score for curve in curves])
        front = front_of(speedup, score)[::-1]  # by rising speed-up
        # A step: the best score at that speed-up or faster.
        axes.step(speedup[front], 100 * score[front], where="pre", label=name, color=colour, linewidth=1.3)
    static = comparison.exits
    axes.plot(
        [each.speedup for each in static],
        [100 * each.score for each in static],
        "k.:",
        label="static exit",
        markersize=5,
        linewidth=1,
    )
    axes.axhline(100 * comparison.full_score, color="grey", linewidth=0.8, label="full model")
    axes.set_xlim(1, max(4.5, min(6.0, static[0].speedup)))
    axes.set_ylim(*_range(comparison))
    axes.set_xlabel("speed-up (layers of the model ÷ mean depth)")
    axes.set_ylabel(f"{comparison.metric}, %")
    texts = " ".join(str(comparison.about.get(name, "")) for name in ("data", "split")).strip()
    axes.set_title(
        f"best score at a speed-up or faster: {texts + ', ' if texts else ''}{comparison.texts} texts", fontsize=11
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=2, loc="lower left")
    _save(figure, path)


def draw_parts(benchmark: Benchmark, path: Path) -> None:
    """Draw where the engine's time goes, for every runtime and batch size, beside plain transformers.

    Args:
        benchmark: What was timed.
        path: The PNG file to write, whole or not at all.
    """
    figure = _figure((9, 1.2 + 0.32 * len(benchmark.breakdowns)))
    axes = figure.subplots()
    names = [f"{each.runtime}, {each.batch_size} at a time" for each in benchmark.breakdowns]
    plain = {each.batch_size: each.milliseconds for each in benchmark.timings if each.way == "plain transformers"}
    left = np.zeros(len(names))
    for part, colour in zip(benchmark.breakdowns[0].milliseconds, _COLOURS, strict=False):
        shares = [100 * each.milliseconds[part] / plain[each.batch_size] for each in benchmark.breakdowns]
        axes.barh(names, shares, left=left, label=part, color=colour, height=0.7)
        left += shares
    axes.invert_yaxis()
    axes.set_xlabel("time a text, in % of what plain transformers takes at the same batch size")
    axes.set_title(f"where the time goes: {benchmark.texts} texts of {benchmark.mean_tokens:.0f} tokens", fontsize=11)
    axes.grid(alpha=0.3, axis="x")
    axes.legend(fontsize=8, ncols=2, loc="lower right")
    _save(figure, path)


def _figure(size: tuple[float, float]) -> Figure:
    """Start a figure, or say what is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("drawing figures", "plots") from error
    return Figure(figsize=size, layout="constrained")


def _save(figure: Figure, path: Path) -> None:
    """Write a figure whole or not at all."""
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, format="png")
    write_bytes(path, picture.getvalue())


def _range(comparison: Comparison) -> tuple[float, float]:
    """Show the scores that someone might choose: down to the worst best score of a strategy, and a little air."""
    scores = [score for each in comparison.best_scores.values() for score in each if not np.isnan(score)]
    low, high = min([*scores, comparison.full_score]), max([*scores, comparison.full_score])
    low = max(low, high - 3 * (high - float(np.median(scores or [high]))) - 0.02)
    air = 0.08 * (high - low) + 0.002
    return 100 * (low - air), 100 * (high + air)
