"""Tables in the terminal hold the numbers of what they show."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from exitpoll import Policy, evaluate, sweep
from exitpoll.cli.tables import benchmark_table, comparison_table, depths_table, evaluation_table, groups_table
from exitpoll.decide.compare import SPEEDUPS, compare
from tests.report.samples import benchmark
from tests.samples import random_trace

POLICY = Policy("margin", 0.5)


def lines_of(table, width=200):
    """Return the rows of a table as lists of cells."""
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return [
        [cell.strip() for cell in line.strip("│").split("│")] for line in out.getvalue().splitlines() if "│" in line
    ]


@pytest.fixture(scope="module")
def evaluation():
    trace = random_trace(0)
    return evaluate(trace, POLICY, groups=["even" if row % 2 else "odd" for row in range(len(trace))])


def test_an_evaluation(evaluation):
    rows = lines_of(evaluation_table(evaluation))
    assert [row[0] for row in rows] == [row.name for row in evaluation.rows]
    assert rows[0][1] == f"{100 * evaluation.rows[0].score.value:.1f}"
    assert rows[0][-1] == f"{evaluation.rows[0].speedup:.2f}×"


def test_depths_as_bars(evaluation):
    rows = lines_of(depths_table(evaluation.depths))
    assert {int(layer): int(count) for layer, count, _ in rows} == dict(evaluation.depths)
    most = max(evaluation.depths.values())
    assert all(len(bar) == round(30 * int(count) / most) for _, count, bar in rows)


def test_groups(evaluation):
    rows = lines_of(groups_table(evaluation))
    assert [row[:2] for row in rows] == [["even", "30"], ["odd", "30"]]


def test_a_comparison():
    trace = random_trace(0)
    comparison = compare(trace, sweep(trace, ["votes", "margin"]))
    rows = {row[0]: row[1:] for row in lines_of(comparison_table(comparison, SPEEDUPS))}
    for name, scores in comparison.best_scores.items():
        assert rows[name] == ["" if np.isnan(score) else f"{100 * score:.1f}" for score in scores]
    assert "static exit" in rows


def test_a_benchmark():
    rows = lines_of(benchmark_table(benchmark()))
    assert len(rows) == len(benchmark().timings)
    assert rows[0] == ["plain transformers", "torch", "1", "2.00", "4.0", "1.00", "1.00", "1.00"]


def test_numbers_are_never_cut(evaluation):
    narrow, wide = (lines_of(evaluation_table(evaluation), width) for width in (74, 200))
    assert len(narrow) > len(wide)  # names wrap instead
    assert [row[1:] for row in narrow if row[1]] == [row[1:] for row in wide]
