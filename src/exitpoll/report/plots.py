"""Figures, drawn by matplotlib (the extra `plots`).

`save` writes a figure as PNG or SVG. Lines differ in dashes and markers too, so that colour never matters alone.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from exitpoll.benchmark.timing import Benchmark, Way
from exitpoll.decide.compare import Comparison
from exitpoll.decide.costs import Unit
from exitpoll.errors import check_installed
from exitpoll.files import write_bytes
from exitpoll.report.clock import time_by_part
from exitpoll.report.curves import Front, best_front, fronts_of, score_range

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = (  # of lines and bars; contrast of 3 : 1 or more against white and against the dark page
    *("#4a80b8", "#1f93b3", "#2a8f3d", "#a3871a", "#e0566a", "#b8508f"),
    *("#c46210", "#64933f", "#a8668a", "#2f9484", "#8a8a22", "#7a6ff0"),
)
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "oo")
_SPEEDUP_LABELS: dict[Unit, str] = {
    "layers": "speed-up (layers of the model ÷ mean depth)",
    "milliseconds": "speed-up (milliseconds of the full model ÷ mean milliseconds, one text at a time)",
}
Style = dict[str, object]
POLICY: Style = {"color": COLORS[0], "linewidth": 2.2, "zorder": 3}
BEST: Style = {"color": COLORS[6], "linestyle": "--", "linewidth": 1.6, "zorder": 3}
REST: Style = {"color": "#b9c1cb", "linewidth": 0.9}


def check_can_draw() -> None:
    """Check that matplotlib is installed."""
    check_installed(["matplotlib"], "drawing figures", "plots")


# ---- score against speed-up -----------------------------------------------------------------------------------------


def draw_curves(
    comparison: Comparison, chosen: tuple[float, float] | None = None, strategy: str | None = None
) -> Figure:
    """Draw score against speed-up: every strategy's front, the static exits, the full model, the oracles.

    Args:
        comparison: The result of a sweep.
        chosen: Speed-up and score of a policy, to be marked.
        strategy: The strategy of the policy, to be drawn in colour with the best of all, and the others in grey; all
            are in colour by default.

    Returns:
        The figure.
    """
    figure = new_figure((9, 5.5))
    axes = figure.subplots()
    fastest, (low, high) = max(4.5, min(6.0, comparison.static_exits[0].speedup)), score_range(comparison)
    axes.set_xlim(1, fastest)
    axes.set_ylim(100 * low, 100 * high)
    for number, front in enumerate(fronts_of(comparison)):
        style = _style(number) if strategy is None else POLICY if front.name == strategy else REST
        _draw_front(axes, front, style)
    if strategy is not None:
        _draw_front(axes, best_front(comparison), BEST)
    _draw_reference_points(axes, comparison, chosen)
    axes.set_xlabel(_SPEEDUP_LABELS[comparison.unit])
    axes.set_ylabel(f"{comparison.metric} (%)")
    texts = " ".join(str(comparison.about.get(name, "")) for name in ("data", "split")).strip()
    title = f"best score at or above a speed-up: {texts + ', ' if texts else ''}{comparison.texts} texts"
    axes.set_title(title, fontsize=11, parse_math=False)  # names of files may have dollar signs
    axes.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside right upper")
    return figure


def _style(number: int) -> Style:
    """Return colour, dashes and, where dashes repeat, a marker, so that no two lines look the same."""
    style: Style = {"color": COLORS[number % 12], "linestyle": DASHES[number % 6], "linewidth": 1.3}
    if number >= len(DASHES):
        style |= {"marker": "ox+sd*"[number % 6], "markevery": 0.12, "markersize": 4}
    return style


def _draw_front(axes: Axes, front: Front, style: Style) -> None:
    """Draw the best score at or above every speed-up, as steps."""
    axes.step(front.speedup, 100 * front.score, where="pre", label=front.name, **style)


def _draw_reference_points(axes: Axes, comparison: Comparison, chosen: tuple[float, float] | None) -> None:
    """Draw static exits, the full model, the oracles and the chosen policy; points beyond the axes at their edge."""
    ink, fastest, (low, high) = axes.spines["left"].get_edgecolor(), axes.get_xlim()[1], axes.get_ylim()
    static = comparison.static_exits
    speedups, scores = [point.speedup for point in static], [100 * point.score for point in static]
    axes.plot(speedups, scores, ".:", color=ink, label="static exit", markersize=6, linewidth=1)
    axes.axhline(100 * comparison.full_score, color="grey", linewidth=0.8, label="full model")

    def inside(speedup: float, score: float) -> tuple[float, float]:
        return min(speedup, fastest), float(np.clip(100 * score, low, high))

    for oracle, marker in zip(comparison.oracles, "^vD", strict=False):
        label = f"{oracle.name} ({100 * oracle.score:.1f} at {oracle.speedup:.1f}×)"
        place = inside(oracle.speedup, oracle.score)
        axes.plot(*place, marker, label=label, color=ink, linestyle="none", clip_on=False)
    if chosen is not None:
        label = f"this policy ({100 * chosen[1]:.1f} at {chosen[0]:.2f}×)"
        axes.plot(
            *inside(*chosen),
            "*",
            label=label,
            color="#e0566a",
            markeredgecolor=ink,
            markersize=15,
            linestyle="none",
            clip_on=False,
            zorder=5,
        )


# ---- other figures --------------------------------------------------------------------------------------------------


def draw_parts(benchmark: Benchmark) -> Figure:
    """Draw the engine's time by part, for every runtime and batch size, relative to plain transformers.

    Args:
        benchmark: What was timed.

    Returns:
        The figure.
    """
    breakdowns = time_by_part(benchmark)
    figure = new_figure((9, 1.2 + 0.32 * len(breakdowns)))
    axes = figure.subplots()
    names = [f"{breakdown.runtime}, batch size {breakdown.batch_size}" for breakdown in breakdowns]
    plain = {timing.batch_size: timing.milliseconds for timing in benchmark.timings if timing.way == Way.PLAIN}
    left = np.zeros(len(names))
    for number, part in enumerate(breakdowns[0].milliseconds):
        shares = [100 * breakdown.milliseconds[part] / plain[breakdown.batch_size] for breakdown in breakdowns]
        color, hatch = COLORS[number], HATCHES[number % len(HATCHES)]
        axes.barh(
            names, shares, left=left, label=part, height=0.7, linewidth=0, color=color, hatch=hatch, edgecolor="white"
        )
        left += shares
    axes.invert_yaxis()
    axes.set_xlabel("wall-clock time per text, in % of plain transformers at the same batch size")
    length = f"{benchmark.mean_tokens:.0f} tokens on average"
    axes.set_title(f"wall-clock time by part of the engine: {benchmark.texts} texts, {length}", fontsize=11)
    axes.grid(alpha=0.3, axis="x")
    axes.legend(fontsize=8, ncols=2, loc="lower right")
    return figure


def draw_depths(depths: Mapping[int, int]) -> Figure:
    """Draw the share of texts that exit after every layer.

    Args:
        depths: The number of texts by the layer of their exit.

    Returns:
        The figure.
    """
    figure = new_figure((6.4, 3.2))
    axes = figure.subplots()
    total = sum(depths.values())
    shares = [100 * count / max(total, 1) for count in depths.values()]
    bars = axes.bar([str(layer) for layer in depths], shares, color=COLORS[0])
    axes.bar_label(bars, [f"{share:.0f}" for share in shares], fontsize=8)
    axes.margins(y=0.1)  # room for the labels
    axes.set_xlabel("exit after layer")
    axes.set_ylabel("texts (%)")
    return figure


def draw_exits(exit_layers: Sequence[int], scores: Mapping[str, NDArray]) -> Figure:
    """Draw how good every exit is by itself.

    Args:
        exit_layers: The layers of the exits.
        scores: By the name of what is measured, the scores of the exits, (exits,).

    Returns:
        The figure.
    """
    figure = new_figure((6.4, 3.2))
    axes = figure.subplots()
    for number, (name, values) in enumerate(scores.items()):
        line, marker = DASHES[number], "os^"[number]
        axes.plot(
            exit_layers, 100 * np.asarray(values), label=name, color=COLORS[number], linestyle=line, marker=marker
        )
    axes.set_xticks(exit_layers)
    axes.set_xlabel("exit after layer")
    axes.set_ylabel("%")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def draw_agreement(exit_layers: Sequence[int], agreement: NDArray) -> Figure:
    """Draw the share of texts on which two exits give the same answer.

    Args:
        exit_layers: The layers of the exits.
        agreement: The shares, (exits, exits).

    Returns:
        The figure.
    """
    figure = new_figure((6.4, 5.2))
    axes = figure.subplots()
    low = float(agreement.min())
    axes.imshow(agreement, cmap="Blues", vmin=low - 0.05, vmax=1.05)
    for row, column in np.ndindex(*agreement.shape):
        share = agreement[row, column]
        color = "white" if share > (low + 1) / 2 else "black"
        axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=7, color=color)
    axes.set_xticks(range(len(exit_layers)), [str(layer) for layer in exit_layers])
    axes.set_yticks(range(len(exit_layers)), [str(layer) for layer in exit_layers])
    axes.set_xlabel("exit after layer")
    axes.set_ylabel("exit after layer")
    return figure


# ---- files ----------------------------------------------------------------------------------------------------------


def new_figure(size: tuple[float, float]) -> Figure:
    """Return an empty figure.

    Args:
        size: Width and height in inches.

    Returns:
        The figure.
    """
    check_can_draw()
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write a figure atomically.

    Args:
        figure: The figure.
        path: The file to write; its suffix is the format, .png or .svg.
    """
    content = io.BytesIO()
    figure.savefig(content, dpi=150, format=path.suffix.removeprefix("."))
    write_bytes(path, content.getvalue())
