"""The paper's figures, drawn from findings: each a function from plain values to a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.report.plots import COLORS, DASHES, new_figure, save
from exitpoll.study.paper import FULL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Findings = Mapping[str, Any]
_MARKERS = "os^vDP*X"


def draw_all(findings: Findings, folder: Path) -> list[Path]:
    """Draw every figure that the findings have the material for.

    Args:
        findings: As written by `reproduce`: tasks and variants.
        folder: Where to write PNG files.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in _figures(findings):
        save(draw(), folder / f"{name}.png")
        written.append(folder / f"{name}.png")
    return written


def _figures(findings: Findings) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """Name the figures there is material for."""
    tasks = findings["tasks"]
    complete = {task: found for task, found in tasks.items() if "k" in found}
    if complete:
        yield "curves", partial(draw_curves, complete)
        yield "oracle", partial(draw_oracles, complete)
        yield "leaving", partial(draw_leaving, complete)
    for task, found in complete.items():
        yield f"k-{task}", partial(draw_k, found, task)
        yield f"alpha-{task}", partial(draw_alpha, found, task)
        yield f"closest-{task}", partial(draw_closest, found, task)
    if findings.get("variants"):
        yield "lambda", partial(draw_lambda, findings["variants"], findings["varied"])
    if findings.get("states"):
        yield "states", partial(draw_states, findings["states"], findings["varied"])
    layers = max((len(found["layers"]) for found in complete.values()), default=12)
    yield "values", partial(draw_values, layers)


def draw_curves(tasks: Findings) -> Figure:
    """Draw score against speed-up for every task, at the test texts' own best thresholds: ours, PABEE and others.

    Args:
        tasks: Findings by task.

    Returns:
        The picture.
    """
    figure, places = _grid(len(tasks))
    names = list(dict.fromkeys(name for found in tasks.values() for name in found["curves"]))
    for axes, (task, found) in zip(places, tasks.items(), strict=False):
        full = next((each["score"] for each in found["points"] if each["name"] == FULL), None)
        _lines(axes, found["curves"], names, full)
        axes.set_title(f"{task} ({found['metric'].replace('_', ' ')}, %)", fontsize=10)
    _share_legend(figure, places)
    return figure


def draw_oracles(tasks: Findings) -> Figure:
    """Draw, for every task, static models, methods and the oracle.

    Args:
        tasks: Findings by task.

    Returns:
        The picture.
    """
    figure, places = _grid(len(tasks))
    names = list(dict.fromkeys(each["name"] for found in tasks.values() for each in found["points"]))
    for axes, found in zip(places, tasks.values(), strict=False):
        for each in found["points"]:
            number = names.index(each["name"])
            look: dict[str, Any] = {"color": COLORS[number % 12], "marker": _MARKERS[number % 8]}
            axes.plot(each["speedup"], 100 * each["score"], linestyle="none", label=each["name"], **look)
        oracle = found["oracle"]["first_right"]
        axes.plot(oracle["speedup"], 100 * oracle["score"], "k*", markersize=12, label="oracle", linestyle="none")
        axes.axvline(1, color="grey", linewidth=0.6)
    for axes, task in zip(places, tasks, strict=False):
        axes.set_title(task, fontsize=10)
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        axes.grid(alpha=0.3)
    _share_legend(figure, places)
    return figure


def draw_leaving(tasks: Findings) -> Figure:
    """Draw which share of the texts leaves after each layer with the right answer, at equal speed-up.

    Args:
        tasks: Findings by task.

    Returns:
        The picture.
    """
    figure, places = _grid(len(tasks))
    for axes, (task, found) in zip(places, tasks.items(), strict=False):
        for number, (name, each) in enumerate(found["leaving"].items()):
            where = np.asarray(found["layers"]) + 0.27 * (number - 1)
            look: dict[str, Any] = {"color": COLORS[(0, 4, 2)[number]], "hatch": ("", "//", "..")[number]}
            axes.bar(where, 100 * np.asarray(each["shares"]), width=0.26, label=name, edgecolor="white", **look)
        speeds = ", ".join(f"{each['speedup']:.2f}×" for each in found["leaving"].values())
        axes.set_title(f"{task} ({speeds})", fontsize=9)
        axes.set_xticks(found["layers"])
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3, axis="y")
    figure.supxlabel("leaves after layer", fontsize=10)
    figure.supylabel("share of all texts, right, %", fontsize=10)
    _share_legend(figure, places)
    return figure


def draw_k(found: Findings, task: str) -> Figure:
    """Draw what k does to votes, beside patience and entropy.

    Args:
        found: Findings of a task.
        task: Its name.

    Returns:
        The picture.
    """
    figure, axes = _one(f"effect of k: {task}", "speed-up", f"{found['metric'].replace('_', ' ')}, %")
    _lines(axes, found["k"], list(found["k"]), found["exits"][-1], "last exit")
    axes.legend(fontsize=8)
    return figure


def draw_lambda(variants: Sequence[Findings], task: str) -> Figure:
    """Draw what the weight of diversity does, by votes.

    Args:
        variants: Findings of the variants.
        task: The task they were run on.

    Returns:
        The picture.
    """
    figure, axes = _one(f"effect of λ, by votes: {task}", "speed-up", "score, %")
    shown = {each["name"]: each["curve"] for each in variants if "λ" in each["name"]}
    _lines(axes, shown, sorted(shown, key=lambda name: float(name.split()[2])), None)
    axes.legend(fontsize=8)
    return figure


def draw_alpha(found: Findings, task: str) -> Figure:
    """Draw α = λ·p_c of every layer through a training.

    Args:
        found: Findings of a task.
        task: Its name.

    Returns:
        The picture.
    """
    figure, axes = _one(f"α of every layer through the training: {task}", "training step", "α = λ·p_c")
    values = np.asarray(found["alpha"]["alpha"])  # (lines, exits - 1)
    for number, (layer, shade) in enumerate(zip(found["layers"][1:], _shades(values.shape[1]), strict=True)):
        axes.plot(found["alpha"]["steps"], values[:, number], color=shade, marker=".", label=f"layer {layer}")
    axes.grid(alpha=0.3)
    figure.legend(fontsize=7, loc="outside right upper")
    return figure


def draw_closest(found: Findings, task: str) -> Figure:
    """Draw how often each earlier head was the nearest of each head.

    Args:
        found: Findings of a task.
        task: Its name.

    Returns:
        The picture.
    """
    title = f"which earlier layer says the like, % of training texts: {task}"
    figure, axes = _one(title, "nearest earlier layer", "layer", (5.6, 5))
    shares = 100 * np.asarray(found["closest"])[1:, :-1]  # (later, earlier)
    axes.imshow(np.where(shares > 0, shares, np.nan), cmap="Blues", vmin=0, vmax=100)
    for row, column in np.ndindex(*shares.shape):
        if column <= row:
            shade = "white" if shares[row, column] > 55 else "black"
            axes.text(column, row, f"{shares[row, column]:.0f}", ha="center", va="center", fontsize=7, color=shade)
    axes.set_xticks(range(len(shares)), [str(layer) for layer in found["layers"][:-1]])
    axes.set_yticks(range(len(shares)), [str(layer) for layer in found["layers"][1:]])
    return figure


def draw_states(states: Findings, task: str) -> Figure:
    """Draw t-SNE of every layer's hidden states at three moments of training, with and without diversity.

    Args:
        states: What heads read, laid out, with and without diversity.
        task: The task.

    Returns:
        The picture.
    """
    moments = max(len(each) for each in states.values())
    figure = new_figure((3 * moments + 1, 6))
    places = figure.subplots(len(states), moments, squeeze=False)
    for row, (name, steps) in zip(places, states.items(), strict=True):
        for axes, (step, each) in zip(row, steps.items(), strict=False):
            for number, (place, shade) in enumerate(
                zip(np.asarray(each["places"]), _shades(len(each["places"])), strict=True)
            ):
                axes.scatter(*place.T, s=4, color=shade, label=f"exit {number + 1}")
            axes.set_title(f"{name}, step {step}\nneighbours' cosine {each['alike']:.2f}", fontsize=8)
            axes.set_xticks([])
            axes.set_yticks([])
    handles, labels = places[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=7, loc="outside right upper", markerscale=3)
    figure.suptitle(f"hidden states of the texts of one class: {task}", fontsize=11)
    return figure


def draw_values(layers: int = 12, ks: Sequence[float] = (0.0, 0.25, 0.5, 0.75)) -> Figure:
    """Draw all values that V_l, the most votes for one of two classes over l^k, can take (the paper's equation 23).

    Args:
        layers: How many exits there are.
        ks: The exponents.

    Returns:
        The picture.
    """
    figure = new_figure((9, 6))
    places = figure.subplots(2, 2).ravel()
    for axes, k in zip(places, ks, strict=True):
        most = [(here, votes) for here in range(1, layers + 1) for votes in range(-(-here // 2), here + 1)]
        layer, votes = np.array(most).T
        axes.scatter(layer, votes / layer**k, s=12, c=votes, cmap="viridis")
        axes.set_title(f"k = {k:g}", fontsize=10)
        axes.set_xticks(range(1, layers + 1))
        axes.grid(alpha=0.3)
    figure.supxlabel("layer l", fontsize=10)
    figure.supylabel("V_l for l/2 … l votes", fontsize=10)
    return figure


def _one(title: str, along: str, up: str, size: tuple[float, float] = (6.4, 4)) -> tuple[Figure, Axes]:
    """Start a picture with one place."""
    figure = new_figure(size)
    axes = figure.subplots()
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(along)
    axes.set_ylabel(up)
    return figure, axes


def _shades(count: int) -> NDArray:
    """Give colours from dark to light, (count, 4): for layers from the first to the last."""
    from matplotlib import colormaps

    return colormaps["viridis"](np.linspace(0, 0.92, count))


def _grid(tasks: int) -> tuple[Figure, list[Axes]]:
    """Start a picture with a place for every task."""
    columns = min(3, tasks)
    rows = -(-tasks // columns)
    figure = new_figure((3.6 * columns + 1.6, 2.7 * rows + 0.3))
    places = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for empty in places[tasks:]:
        empty.remove()
    return figure, places[:tasks]


def _lines(
    axes: Axes,
    curves: Mapping[str, Sequence[Sequence[float]]],
    names: Sequence[str],
    full: float | None,
    name_of_full: str = FULL,
) -> None:
    """Draw fronts as steps, over the speed-ups that someone might choose; a name has its look in every place."""
    shown = []
    for number, name in enumerate(names):
        if name not in curves:
            continue
        speedup, score = np.asarray([[1, curves[name][0][1]], *curves[name]]).T  # whoever may be slower is no worse
        look: dict[str, Any] = {"color": COLORS[(0, 6, 4, 2, 11, 5)[number % 6]], "linestyle": DASHES[number % 6]}
        axes.step(speedup, 100 * score, where="pre", label=name, linewidth=1.3, **look)
        shown += [100 * value for speed, value in zip(speedup, score, strict=True) if 1 <= speed <= 3]
    if full is not None:
        axes.axhline(100 * full, color="grey", linewidth=0.8, label=name_of_full)
        shown.append(100 * full)
    axes.set_xlim(1, 3.5)
    if shown:
        low, high = np.percentile(shown, 5), max(shown)
        axes.set_ylim(low - 0.1 * (high - low), high + 0.08 * (high - low) + 0.1)
    axes.grid(alpha=0.3)


def _share_legend(figure: Figure, places: Sequence[Axes]) -> None:
    """Explain all places of a picture at once, by the one that shows most."""
    handles, labels = max((axes.get_legend_handles_labels() for axes in places), key=lambda each: len(each[1]))
    figure.legend(handles, labels, fontsize=8, loc="outside right upper")
