"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from rich.markup import escape
from rich.table import Table

from exitpoll.report.wording import percent

if TYPE_CHECKING:
    from exitpoll.benchmark.timing import Benchmark
    from exitpoll.decide.bootstrap import Estimate
    from exitpoll.decide.compare import Comparison
    from exitpoll.decide.evaluate import Evaluation
    from exitpoll.training.train import Trained

BAR = 30  # characters of the longest bar


def training_table(trained: Trained) -> Table:
    """Tabulate every exit's scores after training."""
    table = _table(f"{trained.metric} by exit, in %", ["exit", "layer", "calibration", "test"], justify="right")
    rows = zip(trained.exit_layers, trained.calibration_scores, trained.test_scores, strict=True)
    for number, (layer, calibration, test) in enumerate(rows, start=1):
        table.add_row(str(number), str(layer), percent(calibration), percent(test))
    return table


def comparison_table(comparison: Comparison, speedups: Sequence[float]) -> Table:
    """Tabulate the best score of every strategy at or above a speed-up, the best of a column in bold."""
    title = f"best {comparison.metric} in % on {comparison.texts} texts; full model {percent(comparison.full_score)}"
    table = _table(title, ["strategy", *(f"≥{speedup:g}×" for speedup in speedups)])
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
    """Tabulate the policy, the full model, static exits and oracles with their intervals."""
    title = f"{evaluation.metric} in % on {evaluation.texts} texts, with 95 % intervals; loss: against the full model"
    table = _table(title, ["", "score", "interval", "loss", "interval", "speed-up"])
    for row in evaluation.rows:
        score = (percent(row.score.value), _interval(row.score))
        loss = (percent(row.drop.value), _interval(row.drop))
        table.add_row(row.name, *score, *loss, f"{row.speedup:.2f}×")
    return table


def depths_table(depths: Mapping[int, int]) -> Table:
    """Tabulate how many texts exit after every layer, with bars."""
    table = _table("where texts exit", ["after layer", "texts", ""], justify="right")
    most = max(depths.values())
    for layer, count in depths.items():
        table.add_row(str(layer), str(count), "█" * round(BAR * count / most))
    table.columns[2].justify = "left"
    return table


def groups_table(evaluation: Evaluation) -> Table:
    """Tabulate the cost of early exit for every group of texts."""
    columns = ("group", "texts", "full model", "policy", "loss", "interval", "differ", "speed-up")
    table = _table(f"{evaluation.metric} in % by group", columns)
    for name, group in evaluation.groups.items():
        policy, full = group.rows[:2]
        scores = (percent(full.score.value), percent(policy.score.value))
        loss = (percent(policy.drop.value), _interval(policy.drop), percent(policy.differs))
        table.add_row(escape(name), str(group.texts), *scores, *loss, f"{policy.speedup:.2f}×")
    return table


def benchmark_table(benchmark: Benchmark) -> Table:
    """Tabulate the wall-clock time of every way, in milliseconds a text and as ratios."""
    title = f"{benchmark.texts} texts of {benchmark.mean_tokens:.0f} tokens, {benchmark.threads} threads"
    table = _table(title, ["", "runtime", "batch", "ms", "depth", "× plain", "× full", "of layers"])
    for number, timing in enumerate(benchmark.timings):
        if number and timing.batch_size != benchmark.timings[number - 1].batch_size:
            table.add_section()
        ratios = (f"{ratio:.2f}" for ratio in (timing.against_plain, timing.against_full, timing.of_layers))
        table.add_row(
            timing.way,
            timing.runtime,
            str(timing.batch_size),
            f"{timing.milliseconds:.2f}",
            f"{timing.depth:.1f}",
            *ratios,
        )
    table.caption = (
        "× plain, × full: wall-clock speed-up over plain transformers and over the engine with all layers; "
        "of layers: the share of the speed-up in layers that wall-clock time keeps"
    )
    return table


def _interval(estimate: Estimate) -> str:
    """Format an interval, in %."""
    return f"{percent(estimate.low)}…{percent(estimate.high)}"


def _bold(text: str, yes: bool) -> str:
    """Make a cell bold if it is to be."""
    return f"[bold]{text}[/bold]" if yes else text


def _table(title: str, columns: Sequence[str], justify: Literal["left", "right"] = "left") -> Table:
    """Return an empty table: numbers to the right and never cut, names in the first column wrapped if need be."""
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column(columns[0], justify=justify)
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table
