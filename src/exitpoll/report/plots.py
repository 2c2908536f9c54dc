"""Figures, drawn by matplotlib (the extra `plots`): each a function from figures found to a picture.

`save` writes a picture as PNG or SVG. `as_svg` gives one for a web page: its ink takes the colour of the page's text,
so that it can be read on light and dark. Lines differ in dashes and markers too, so colour is never all there is.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.compare import Comparison
from exitpoll.decide.sweep import front_of
from exitpoll.errors import MissingExtraError
from exitpoll.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from exitpoll.benchmark.timing import Benchmark

COLORS = (  # of lines and bars; each at least 3 : 1 against white and against the dark page
    *("#4a80b8", "#1f93b3", "#2a8f3d", "#a3871a", "#e0566a", "#b8508f"),
    *("#c46210", "#64933f", "#a8668a", "#2f9484", "#8a8a22", "#7a6ff0"),
)
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
_INK = "#010203"  # stands for the colour of the page's text


def draw_curves(comparison: Comparison, chosen: tuple[float, float] | None = None) -> Figure:
    """Draw score against speed-up: every strategy's front, the static exits, the full model, the oracles.

    Args:
        comparison: What a sweep found.
        chosen: Speed-up and score of a policy, to be marked.

    Returns:
        The picture.
    """
    figure = new_figure((9, 5.5))
    axes = figure.subplots()
    for number, name in enumerate(comparison.best_scores):
        curves = [curve for curve in comparison.curves if curve.strategy == name]
        speedup = np.concatenate([curve.speedup for curve in curves])
        score = np.concatenate([curve.score for curve in curves])
        front = front_of(speedup, score)[::-1]  # by rising speed-up
        # A step: the best score at that speed-up or faster.
        style: dict[str, Any] = {"color": COLORS[number % 12], "linestyle": DASHES[number % 6]}
        if number >= len(DASHES):
            style |= {"marker": "ox+sd*"[number % 6], "markevery": 0.12, "markersize": 4}
        axes.step(speedup[front], 100 * score[front], where="pre", label=name, linewidth=1.3, **style)
    static, ink = comparison.static_exits, axes.spines["left"].get_edgecolor()
    places = [each.speedup for each in static], [100 * each.score for each in static]
    axes.plot(*places, ".:", color=ink, label="static exit", markersize=6, linewidth=1)
    axes.axhline(100 * comparison.full_score, color="grey", linewidth=0.8, label="full model")
    fastest, (low, high) = max(4.5, min(6.0, static[0].speedup)), _range(comparison)
    for each, marker in zip(comparison.oracles, "^vD", strict=False):  # at the edge if they are beyond it
        place = min(each.speedup, fastest), float(np.clip(100 * each.score, low, high))
        label = f"{each.name} ({100 * each.score:.1f} at {each.speedup:.1f}×)"
        axes.plot(*place, marker, color=ink, label=label, linestyle="none", clip_on=False)
    if chosen is not None:
        place = min(chosen[0], fastest), float(np.clip(100 * chosen[1], low, high))
        label = f"this policy ({100 * chosen[1]:.1f} at {chosen[0]:.2f}×)"
        star: dict[str, Any] = {"marker": "*", "color": "#e0566a", "markeredgecolor": ink, "markersize": 15}
        axes.plot(*place, label=label, linestyle="none", clip_on=False, zorder=5, **star)
    axes.set_xlim(1, fastest)
    axes.set_ylim(low, high)
    axes.set_xlabel("speed-up (layers of the model ÷ mean depth)")
    axes.set_ylabel(f"{comparison.metric}, %")
    texts = " ".join(str(comparison.about.get(name, "")) for name in ("data", "split")).strip()
    title = f"best score at a speed-up or faster: {texts + ', ' if texts else ''}{comparison.texts} texts"
    axes.set_title(title, fontsize=11, parse_math=False)  # names of files may have dollar signs
    axes.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside right upper")
    return figure


def draw_parts(benchmark: Benchmark) -> Figure:
    """Draw where the engine's time goes, for every runtime and batch size, beside plain transformers.

    Args:
        benchmark: What was timed.

    Returns:
        The picture.
    """
    figure = new_figure((9, 1.2 + 0.32 * len(benchmark.breakdowns)))
    axes = figure.subplots()
    names = [f"{each.runtime}, {each.batch_size} at a time" for each in benchmark.breakdowns]
    plain = {each.batch_size: each.milliseconds for each in benchmark.timings if each.way == "plain transformers"}
    left = np.zeros(len(names))
    hatches = ("", "//", "..", "\\\\", "xx", "--", "oo")
    for number, part in enumerate(benchmark.breakdowns[0].milliseconds):
        shares = [100 * each.milliseconds[part] / plain[each.batch_size] for each in benchmark.breakdowns]
        look: dict[str, Any] = {"color": COLORS[number], "hatch": hatches[number % 7], "edgecolor": "white"}
        axes.barh(names, shares, left=left, label=part, height=0.7, linewidth=0, **look)
        left += shares
    axes.invert_yaxis()
    axes.set_xlabel("time a text, in % of what plain transformers takes at the same batch size")
    axes.set_title(f"where the time goes: {benchmark.texts} texts of {benchmark.mean_tokens:.0f} tokens", fontsize=11)
    axes.grid(alpha=0.3, axis="x")
    axes.legend(fontsize=8, ncols=2, loc="lower right")
    return figure


def draw_depths(depths: Mapping[int, int]) -> Figure:
    """Draw how many texts left after each layer.

    Args:
        depths: Layers with an exit, and how many texts left there.

    Returns:
        The picture.
    """
    figure = new_figure((6.4, 3.2))
    axes = figure.subplots()
    total = sum(depths.values())
    shares = [100 * count / max(total, 1) for count in depths.values()]
    bars = axes.bar([str(layer) for layer in depths], shares, color=COLORS[0])
    axes.bar_label(bars, [f"{share:.0f}" for share in shares], fontsize=8)
    axes.set_xlabel("layers run")
    axes.set_ylabel("share of texts, %")
    return figure


def draw_exits(layers: Sequence[int], scores: Mapping[str, NDArray]) -> Figure:
    """Draw how good every exit is.

    Args:
        layers: The layer of each exit.
        scores: What is measured, and by exit, (exits,), how well.

    Returns:
        The picture.
    """
    figure = new_figure((6.4, 3.2))
    axes = figure.subplots()
    for number, (name, values) in enumerate(scores.items()):
        look: dict[str, Any] = {"color": COLORS[number], "linestyle": DASHES[number], "marker": "os^"[number]}
        axes.plot(layers, 100 * np.asarray(values), label=name, **look)
    axes.set_xticks(layers)
    axes.set_xlabel("exit after layer")
    axes.set_ylabel("%")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def draw_agreement(layers: Sequence[int], agreement: NDArray) -> Figure:
    """Draw on how many texts two exits say the same.

    Args:
        layers: The layer of each exit.
        agreement: (exits, exits), as shares.

    Returns:
        The picture.
    """
    figure = new_figure((6.4, 5.2))
    axes = figure.subplots()
    low = float(agreement.min())
    axes.imshow(agreement, cmap="Blues", vmin=low - 0.05, vmax=1.05)
    for row, column in np.ndindex(*agreement.shape):
        dark = agreement[row, column] > (low + 1) / 2
        shade = "white" if dark else "black"
        axes.text(column, row, f"{100 * agreement[row, column]:.0f}", ha="center", va="center", fontsize=7, color=shade)
    axes.set_xticks(range(len(layers)), [str(layer) for layer in layers])
    axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    axes.set_xlabel("exit after layer")
    axes.set_ylabel("exit after layer")
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a picture, whole or not at all.

    Args:
        figure: The picture.
        path: The file to write; its ending says whether PNG or SVG.
    """
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, format=path.suffix.removeprefix("."))
    write_bytes(path, picture.getvalue())


def as_svg(draw: Callable[[], Figure], name: str, title: str) -> str:
    """Draw a picture for a web page.

    Args:
        draw: Draws it.
        name: Tells its parts from those of other pictures on the page.
        title: What it shows, for those who cannot see it.

    Returns:
        An <svg> element.
    """
    check_installed()
    import matplotlib as mpl

    inks = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    settings = dict.fromkeys(inks, _INK) | {"svg.fonttype": "none", "svg.hashsalt": name, "legend.framealpha": 0.0}
    picture = io.StringIO()
    with mpl.rc_context(settings):
        draw().savefig(picture, format="svg", transparent=True, metadata={"Date": None})
    svg = picture.getvalue()
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{name}-", svg[svg.index("<svg") :])
    return svg.replace(_INK, "currentColor").replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


def new_figure(size: tuple[float, float]) -> Figure:
    """Start a picture.

    Args:
        size: Width and height in inches.

    Returns:
        An empty picture.
    """
    check_installed()
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def check_installed() -> None:
    """Say what is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("drawing figures", "plots") from error


def _range(comparison: Comparison) -> tuple[float, float]:
    """Show the scores that someone might choose: down to the worst best score of a strategy, and a little air."""
    scores = [score for each in comparison.best_scores.values() for score in each if not np.isnan(score)]
    low, high = min([*scores, comparison.full_score]), max([*scores, comparison.full_score])
    low = max(low, high - 3 * (high - float(np.median(scores or [high]))) - 0.02)
    air = 0.08 * (high - low) + 0.002
    return 100 * (low - air), 100 * (high + air)
