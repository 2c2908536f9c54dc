"""The paper's figures, drawn from the findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.strategies import KS
from exitpoll.report.plots import COLORS, DASHES, new_figure, save
from exitpoll.study.findings import Findings, Front, StateFindings, TaskFindings, VariantFindings
from exitpoll.study.paper import FULL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TasksFindings = Mapping[str, TaskFindings]  # by task

_MARKERS = "os^vDP*X"
_CURVE_COLORS = [COLORS[number] for number in (0, 6, 4, 2, 11, 5)]
_BAR_COLORS, _BAR_HATCHES = [COLORS[number] for number in (0, 4, 2)], ("", "//", "..")


def draw_all(findings: Findings, folder: Path) -> list[Path]:
    """Draw every figure that the findings have data for.

    Args:
        findings: The findings.
        folder: Where to write PNG files.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in _figures(findings):
        paths.append(folder / f"{name}.png")
        save(draw(), paths[-1])
    return paths


def _figures(findings: Findings) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """Yield the names of the figures that there are data for, and functions that draw them."""
    tasks = {task: data for task, data in findings["tasks"].items() if "k" in data}
    if tasks:
        yield "curves", partial(draw_curves, tasks)
        yield "oracle", partial(draw_oracles, tasks)
        yield "leaving", partial(draw_leaving, tasks)
    for task, data in tasks.items():
        yield f"k-{task}", partial(draw_k, data, task)
        yield f"alpha-{task}", partial(draw_alpha, data, task)
        yield f"closest-{task}", partial(draw_closest, data, task)
    varied = findings["varied"]
    if varied is not None and findings["variants"]:
        yield "lambda", partial(draw_lambda, findings["variants"], varied)
    if varied is not None and findings["states"]:
        yield "states", partial(draw_states, findings["states"], varied)
    layers = max((len(data["layers"]) for data in tasks.values()), default=12)
    yield "values", partial(draw_values, layers)


# ---- a panel for every task -----------------------------------------------------------------------------------------


def draw_curves(tasks: TasksFindings) -> Figure:
    """Draw score against speed-up for every task, at the thresholds that are best on the test texts themselves.

    Args:
        tasks: Findings by task.

    Returns:
        The figure.
    """
    figure, panels = _panels(tasks)
    names = _unique(name for data in tasks.values() for name in data["curves"])
    for axes, task, data in panels:
        full = next((point["score"] for point in data["points"] if point["name"] == FULL), None)
        _plot_fronts(axes, data["curves"], names, full)
        axes.set_title(f"{task} ({_metric_label(data)})", fontsize=10)
    _add_legend(figure)
    return figure


def draw_oracles(tasks: TasksFindings) -> Figure:
    """Draw static models, methods and the oracle for every task.

    Args:
        tasks: Findings by task.

    Returns:
        The figure.
    """
    figure, panels = _panels(tasks)
    names = _unique(point["name"] for data in tasks.values() for point in data["points"])
    for axes, task, data in panels:
        for point in data["points"]:
            number = names.index(point["name"])
            axes.plot(
                point["speedup"],
                100 * point["score"],
                linestyle="none",
                label=point["name"],
                color=COLORS[number % len(COLORS)],
                marker=_MARKERS[number % len(_MARKERS)],
            )
        oracle = data["oracle"]["first_right"]
        axes.plot(oracle["speedup"], 100 * oracle["score"], "k*", markersize=12, label="oracle", linestyle="none")
        axes.axvline(1, color="grey", linewidth=0.6)
        axes.set_title(task, fontsize=10)
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        axes.grid(alpha=0.3)
    _add_legend(figure)
    return figure


def draw_leaving(tasks: TasksFindings) -> Figure:
    """Draw the share of texts that leave with the right answer, by layer and at equal speed-up.

    Args:
        tasks: Findings by task.

    Returns:
        The figure.
    """
    figure, panels = _panels(tasks)
    for axes, task, data in panels:
        strategies = data["leaving"]
        for number, (name, leaving) in enumerate(strategies.items()):
            axes.bar(
                np.asarray(data["layers"]) + 0.27 * (number - 1),
                100 * np.asarray(leaving["shares"]),
                width=0.26,
                label=name,
                edgecolor="white",
                color=_BAR_COLORS[number],
                hatch=_BAR_HATCHES[number],
            )
        speedups = ", ".join(f"{leaving['speedup']:.2f}×" for leaving in strategies.values())
        axes.set_title(f"{task} ({speedups})", fontsize=9)
        axes.set_xticks(data["layers"])
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3, axis="y")
    figure.supxlabel("exit after layer", fontsize=10)
    figure.supylabel("share of all texts, answered correctly, %", fontsize=10)
    _add_legend(figure)
    return figure


# ---- one task -------------------------------------------------------------------------------------------------------


def draw_k(data: TaskFindings, task: str) -> Figure:
    """Draw the effect of k on votes, beside patience and entropy.

    Args:
        data: Findings of a task.
        task: Its name.

    Returns:
        The figure.
    """
    figure, axes = _single(f"effect of k: {task}", "speed-up", _metric_label(data))
    _plot_fronts(axes, data["k"], list(data["k"]), data["exits"][-1], "last exit")
    axes.legend(fontsize=8)
    return figure


def draw_lambda(variants: Sequence[VariantFindings], task: str) -> Figure:
    """Draw the effect of λ, the weight of the diversity term, on votes.

    Args:
        variants: Findings of the variants.
        task: The task they were run on.

    Returns:
        The figure.
    """
    figure, axes = _single(f"effect of λ, by votes: {task}", "speed-up", "score, %")
    by_weight = {weight: variant for variant in variants if (weight := variant["diversity_weight"]) is not None}
    curves = {by_weight[weight]["name"]: by_weight[weight]["curve"] for weight in sorted(by_weight)}
    _plot_fronts(axes, curves, list(curves), None)
    axes.legend(fontsize=8)
    return figure


def draw_alpha(data: TaskFindings, task: str) -> Figure:
    """Draw α = λ·p_c of every layer during training.

    Args:
        data: Findings of a task.
        task: Its name.

    Returns:
        The figure.
    """
    figure, axes = _single(f"α of every layer during training: {task}", "training step", "α = λ·p_c")
    alpha = np.asarray(data["alpha"]["alpha"])  # (steps, exits - 1)
    for layer, values, color in zip(data["layers"][1:], alpha.T, _layer_colors(alpha.shape[1]), strict=True):
        axes.plot(data["alpha"]["steps"], values, color=color, marker=".", label=f"layer {layer}")
    axes.grid(alpha=0.3)
    _add_legend(figure, fontsize=7)
    return figure


def draw_closest(data: TaskFindings, task: str) -> Figure:
    """Draw how often every earlier head was the closest to a head.

    Args:
        data: Findings of a task.
        task: Its name.

    Returns:
        The figure.
    """
    title = f"closest earlier layer, % of training texts: {task}"
    figure, axes = _single(title, "closest earlier layer", "layer", (5.6, 5))
    shares = 100 * np.asarray(data["closest"])[1:, :-1]  # (later, earlier)
    axes.imshow(np.where(shares > 0, shares, np.nan), cmap="Blues", vmin=0, vmax=100)
    for row, column in np.ndindex(*shares.shape):
        if column <= row:
            color = "white" if shares[row, column] > 55 else "black"
            axes.text(column, row, f"{shares[row, column]:.0f}", ha="center", va="center", fontsize=7, color=color)
    axes.set_xticks(range(len(shares)), [str(layer) for layer in data["layers"][:-1]])
    axes.set_yticks(range(len(shares)), [str(layer) for layer in data["layers"][1:]])
    return figure


def draw_states(states: Mapping[str, Mapping[str, StateFindings]], task: str) -> Figure:
    """Draw t-SNE projections of every layer's hidden states at three training steps, with and without diversity.

    Args:
        states: Projections by training and step.
        task: The task.

    Returns:
        The figure.
    """
    columns = max(len(by_step) for by_step in states.values())
    figure = new_figure((3 * columns + 1, 6))
    grid = figure.subplots(len(states), columns, squeeze=False)
    for row, (training, by_step) in zip(grid, states.items(), strict=True):
        for axes, (step, state) in zip(row, by_step.items(), strict=False):
            places = np.asarray(state["places"])  # (exits, texts, 2)
            for number, color in enumerate(_layer_colors(len(places))):
                axes.scatter(*places[number].T, s=4, color=color, label=f"exit {number + 1}")
            axes.set_title(f"{training}, step {step}\ncosine of neighbours {state['alike']:.2f}", fontsize=8)
            axes.set_xticks([])
            axes.set_yticks([])
    _add_legend(figure, fontsize=7, markerscale=3)
    figure.suptitle(f"hidden states of the texts of one class: {task}", fontsize=11)
    return figure


def draw_values(layers: int = 12, ks: Sequence[float] = KS) -> Figure:
    """Draw all values that V_l, the votes for the winning one of two classes over l^k, can take.

    See Sun et al. (2021), Eq. 23.

    Args:
        layers: The number of exits.
        ks: The exponents, four.

    Returns:
        The figure.
    """
    figure = new_figure((9, 6))
    winning = [(layer, votes) for layer in range(1, layers + 1) for votes in range(-(-layer // 2), layer + 1)]
    layer, votes = np.array(winning).T
    for axes, k in zip(figure.subplots(2, 2).ravel(), ks, strict=True):
        axes.scatter(layer, votes / layer**k, s=12, c=votes, cmap="viridis")
        axes.set_title(f"k = {k:g}", fontsize=10)
        axes.set_xticks(range(1, layers + 1))
        axes.grid(alpha=0.3)
    figure.supxlabel("layer l", fontsize=10)
    figure.supylabel("V_l for l/2 … l votes", fontsize=10)
    return figure


# ---- parts ----------------------------------------------------------------------------------------------------------


def _single(title: str, x_label: str, y_label: str, size: tuple[float, float] = (6.4, 4)) -> tuple[Figure, Axes]:
    """Start a figure with one panel."""
    figure = new_figure(size)
    axes = figure.subplots()
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    return figure, axes


def _panels(tasks: TasksFindings) -> tuple[Figure, list[tuple[Axes, str, TaskFindings]]]:
    """Start a figure with a panel for every task."""
    columns = min(3, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = new_figure((3.6 * columns + 1.6, 2.7 * rows + 0.3))
    grid = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for empty in grid[len(tasks) :]:
        empty.remove()
    return figure, [(axes, task, data) for axes, (task, data) in zip(grid, tasks.items(), strict=False)]


def _plot_fronts(
    axes: Axes, curves: Mapping[str, Front], names: Sequence[str], full: float | None, full_name: str = FULL
) -> None:
    """Plot fronts as steps, over the speed-ups of interest; the color of a curve follows from its place in `names`."""
    shown = []
    for number, name in enumerate(names):
        if name not in curves:
            continue
        slowest = [1, curves[name][0][1]]  # at lower speed-ups the first score can be had, too
        speedup, score = np.asarray([slowest, *curves[name]]).T
        color, dashes = _CURVE_COLORS[number % len(_CURVE_COLORS)], DASHES[number % len(DASHES)]
        axes.step(speedup, 100 * score, where="pre", label=name, linewidth=1.3, color=color, linestyle=dashes)
        shown += list(100 * score[(speedup >= 1) & (speedup <= 3)])
    if full is not None:
        axes.axhline(100 * full, color="grey", linewidth=0.8, label=full_name)
        shown.append(100 * full)
    axes.set_xlim(1, 3.5)
    if shown:
        low, high = np.percentile(shown, 5), max(shown)
        axes.set_ylim(low - 0.1 * (high - low), high + 0.08 * (high - low) + 0.1)
    axes.grid(alpha=0.3)


def _add_legend(figure: Figure, fontsize: int = 8, markerscale: float | None = None) -> None:
    """Add one legend for all panels, from the panel with the most entries."""
    entries = [axes.get_legend_handles_labels() for axes in figure.axes]
    handles, labels = max(entries, key=lambda entry: len(entry[1]))
    figure.legend(handles, labels, fontsize=fontsize, markerscale=markerscale, loc="outside right upper")


def _layer_colors(count: int) -> NDArray:
    """Return colors from dark to light, for layers from the first to the last, (count, 4)."""
    from matplotlib import colormaps

    return colormaps["viridis"](np.linspace(0, 0.92, count))


def _metric_label(data: TaskFindings) -> str:
    """Return the label of an axis of scores."""
    return f"{data['metric'].replace('_', ' ')}, %"


def _unique(names: Iterable[str]) -> list[str]:
    """Return names without repetition, in their order."""
    return list(dict.fromkeys(names))
