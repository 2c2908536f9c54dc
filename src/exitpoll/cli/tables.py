"""What the verbs show: tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.markup import escape
from rich.table import Table

from exitpoll.report.wording import percent

if TYPE_CHECKING:
    from exitpoll.benchmark.timing import Benchmark
    from exitpoll.decide.compare import Comparison
    from exitpoll.decide.evaluate import Estimate, Evaluation
    from exitpoll.training.train import Trained


_NAMES = ("", "strategy", "group", "runtime")  # columns of words


def training_table(trained: Trained) -> Table:
    """Show every exit's scores after a training."""
    table = _table(f"{trained.metric} by exit, in %", "exit", "layer", "calibration", "test")
    rows = zip(trained.exit_layers, trained.calibration_scores, trained.test_scores, strict=True)
    for number, (layer, calibration, test) in enumerate(rows, start=1):
        table.add_row(str(number), str(layer), percent(calibration), percent(test))
    return table


def comparison_table(comparison: Comparison, speedups: Sequence[float]) -> Table:
    """Show the best score of every strategy at least so fast, the best of each column in bold."""
    title = f"best {comparison.metric} in % on {comparison.texts} texts; full model {percent(comparison.full_score)}"
    table = _table(title, "strategy", *(f"≥{speedup:g}×" for speedup in speedups))
    best = comparison.best_scores
    columns = zip(*best.values(), strict=True)
    highest = [max((score for score in column if not np.isnan(score)), default=np.nan) for column in columns]
    for name, scores in best.items():
        table.add_row(name, *(_bold(percent(score), score == top) for score, top in zip(scores, highest, strict=True)))
    table.add_section()
    table.add_row("static exit", *map(percent, comparison.best_static))
    for oracle in comparison.oracles:
        reached = [percent(oracle.score) if round(oracle.speedup, 2) >= speedup else "" for speedup in speedups]
        table.add_row(f"{oracle.name} ({oracle.speedup:.2f}×)", *reached)
    return table


def evaluation_table(evaluation: Evaluation) -> Table:
    """Show the policy, the full model, static exits and oracles with their intervals."""
    title = f"{evaluation.metric} in % on {evaluation.texts} texts, with 95 % intervals; loss: against the full model"
    table = _table(title, "", "score", "interval", "loss", "interval", "faster")
    for row in evaluation.rows:
        figures = (percent(row.score.value), _interval(row.score), percent(row.drop.value), _interval(row.drop))
        table.add_row(row.name, *figures, f"{row.speedup:.2f}×")
    return table


def depths_table(depths: Mapping[int, int]) -> Table:
    """Show how many texts left after each layer, as bars."""
    table = _table("where texts left", "after layer", "texts", "")
    most = max(depths.values())
    for layer, count in depths.items():
        table.add_row(str(layer), str(count), "█" * round(30 * count / most))
    table.columns[2].justify = "left"
    return table


def groups_table(evaluation: Evaluation) -> Table:
    """Show what leaving early costs each group of texts."""
    columns = ("texts", "full", "policy", "loss", "interval", "differ", "faster")
    table = _table(f"{evaluation.metric} in % by group", "group", *columns)
    for name, group in evaluation.groups.items():
        policy, full = group.rows[:2]
        scores = (percent(full.score.value), percent(policy.score.value), percent(policy.drop.value))
        figures = (_interval(policy.drop), percent(policy.differs), f"{policy.speedup:.2f}×")
        table.add_row(escape(name), str(group.texts), *scores, *figures)
    return table


def benchmark_table(benchmark: Benchmark) -> Table:
    """Show how long a text took in every way, and in ratios."""
    title = f"{benchmark.texts} texts of {benchmark.mean_tokens:.0f} tokens, {benchmark.threads} threads"
    table = _table(title, "", "runtime", "batch", "ms", "depth", "× plain", "× full", "of layers")
    for number, timing in enumerate(benchmark.timings):
        if number and timing.batch_size != benchmark.timings[number - 1].batch_size:
            table.add_section()
        ratios = (f"{each:.2f}" for each in (timing.against_plain, timing.against_full, timing.of_layers))
        figures = (str(timing.batch_size), f"{timing.milliseconds:.2f}", f"{timing.depth:.1f}", *ratios)
        table.add_row(timing.way, timing.runtime, *figures)
    return table


def _interval(estimate: Estimate) -> str:
    """Write an interval."""
    return f"{percent(estimate.low)}…{percent(estimate.high)}"


def _bold(text: str, yes: bool) -> str:
    """Make a cell stand out."""
    return f"[bold]{text}[/bold]" if yes else text


def _table(title: str, first: str, *others: str) -> Table:
    """Make an empty table, names on the left and figures on the right."""
    table = Table(title=title, title_justify="left")
    table.add_column(first, justify="left" if first in _NAMES else "right", no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table
