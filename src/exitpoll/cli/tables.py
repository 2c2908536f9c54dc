"""The tables that verbs print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from exitpoll.cli.grid import Grid
from exitpoll.report.wording import percent

if TYPE_CHECKING:
    from exitpoll.benchmark.timing import Benchmark
    from exitpoll.decide.bootstrap import Estimate
    from exitpoll.decide.compare import Comparison
    from exitpoll.decide.evaluate import Evaluation
    from exitpoll.training.train import Trained

BAR = 30  # characters of the longest bar


def training_table(trained: Trained) -> Grid:
    """Tabulate every exit's scores after training."""
    grid = Grid(f"{trained.metric} by exit, in %", ["exit", "layer", "calibration", "test"], numbered=True)
    rows = zip(trained.exit_layers, trained.calibration_scores, trained.test_scores, strict=True)
    for number, (layer, calibration, test) in enumerate(rows, start=1):
        grid.add(str(number), str(layer), percent(calibration), percent(test))
    return grid


def comparison_table(comparison: Comparison, speedups: Sequence[float]) -> Grid:
    """Tabulate the best score of every strategy at or above a speed-up, the best of a column in bold."""
    title = f"best {comparison.metric} in % on {comparison.texts} texts; full model {percent(comparison.full_score)}"
    if comparison.unit == "milliseconds":
        title += "; speed-ups in measured milliseconds, one text at a time"
    grid = Grid(title, ["strategy", *(f"≥{speedup:g}×" for speedup in speedups)])
    best = comparison.best_scores
    columns = zip(*best.values(), strict=True)
    highest = [max((score for score in column if not np.isnan(score)), default=np.nan) for column in columns]
    for name, scores in best.items():
        bold = {column for column, (score, top) in enumerate(zip(scores, highest, strict=True), 1) if score == top}
        grid.add(name, *map(percent, scores), bold=bold)
    grid.add_section()
    grid.add("static exit", *map(percent, comparison.best_static))
    for oracle in comparison.oracles:
        reached = [percent(oracle.score) if round(oracle.speedup, 2) >= speedup else "" for speedup in speedups]
        grid.add(f"{oracle.name} ({oracle.speedup:.2f}×)", *reached)
    return grid


def evaluation_table(evaluation: Evaluation) -> Grid:
    """Tabulate the policy, the full model, static exits and oracles with their intervals."""
    title = f"{evaluation.metric} in % on {evaluation.texts} texts, with 95 % intervals; loss: against the full model"
    grid = Grid(title, ["", "score", "interval", "loss", "interval", "speed-up"])
    for row in evaluation.rows:
        score = (percent(row.score.value), _interval(row.score))
        loss = (percent(row.drop.value), _interval(row.drop))
        grid.add(row.name, *score, *loss, f"{row.speedup:.2f}×")
    return grid


def depths_table(depths: Mapping[int, int]) -> Grid:
    """Tabulate how many texts exit after every layer, with bars."""
    grid = Grid("where texts exit", ["after layer", "texts"], numbered=True)
    most = max(depths.values())
    for layer, count in depths.items():
        grid.add(str(layer), str(count), bar="█" * round(BAR * count / most))
    return grid


def groups_table(evaluation: Evaluation) -> Grid:
    """Tabulate the cost of early exit for every group of texts."""
    columns = ("group", "texts", "full model", "policy", "loss", "interval", "differ", "speed-up")
    grid = Grid(f"{evaluation.metric} in % by group", columns)
    for name, group in evaluation.groups.items():
        policy, full = group.rows[:2]
        scores = (percent(full.score.value), percent(policy.score.value))
        loss = (percent(policy.drop.value), _interval(policy.drop), percent(policy.differs))
        grid.add(name, str(group.texts), *scores, *loss, f"{policy.speedup:.2f}×")
    return grid


def benchmark_table(benchmark: Benchmark) -> Grid:
    """Tabulate the wall-clock time of every way, in milliseconds a text and as ratios."""
    title = f"{benchmark.texts} texts of {benchmark.mean_tokens:.0f} tokens, {benchmark.threads} threads"
    grid = Grid(title, ["", "runtime", "batch", "ms", "depth", "× plain", "× full", "of layers"])
    for number, timing in enumerate(benchmark.timings):
        if number and timing.batch_size != benchmark.timings[number - 1].batch_size:
            grid.add_section()
        ratios = (f"{ratio:.2f}" for ratio in (timing.against_plain, timing.against_full, timing.of_layers))
        grid.add(
            timing.way,
            timing.runtime,
            str(timing.batch_size),
            f"{timing.milliseconds:.2f}",
            f"{timing.depth:.1f}",
            *ratios,
        )
    grid.caption = (
        "× plain, × full: wall-clock speed-up over plain transformers and over the engine with all layers; "
        "of layers: the share of the speed-up in layers that wall-clock time keeps"
    )
    return grid


def _interval(estimate: Estimate) -> str:
    """Format an interval, in %."""
    return f"{percent(estimate.low)}…{percent(estimate.high)}"
