"""Tables are never cut, however narrow the terminal is."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from exitpoll.cli import console
from exitpoll.cli.grid import Grid
from exitpoll.cli.tables import benchmark_table, comparison_table, depths_table, evaluation_table, groups_table
from exitpoll.decide.compare import SPEEDUPS, compare
from exitpoll.decide.evaluate import evaluate
from exitpoll.decide.policy import Policy
from exitpoll.decide.sweep import sweep
from tests.report.samples import benchmark
from tests.samples import random_trace

WIDTHS = (40, 60, 80, 120)


def printed(grid, width):
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(grid)
    return out.getvalue()


def tables():
    trace = random_trace(0)
    groups = ["a rather long name" if row % 2 else "odd" for row in range(len(trace))]
    evaluation = evaluate(trace, Policy("margin", 0.5), groups=groups)
    yield evaluation_table(evaluation)
    yield depths_table(evaluation.depths)
    yield groups_table(evaluation)
    yield comparison_table(compare(trace, sweep(trace, ["votes", "margin"])), SPEEDUPS)
    yield benchmark_table(benchmark())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("grid", list(tables()), ids=lambda grid: grid.title[:20])
def test_nothing_is_cut(grid, width):
    text = printed(grid, width)
    assert max(map(len, text.splitlines())) <= width
    words = set(re.split(r"[\s│┃,]+", text))
    for row in grid.rows:
        for cell in row.cells:
            assert set(cell.replace(",", "").split()) <= words, (cell, text)


def test_a_wide_terminal_shows_a_table_and_a_narrow_one_lines():
    grid = Grid("scores", ["", "first", "second", "third"])
    grid.add("a name of several words", "10.0", "20.0", "30.0")
    assert "│ a name of several words │  10.0 │" in printed(grid, 60)
    assert "│ a name  │" in printed(grid, 36)  # wraps between words
    assert [line.rstrip() for line in printed(grid, 30).splitlines()] == [
        "scores",
        "a name of several words",
        "  first 10.0, second 20.0,",
        "  third 30.0",
    ]


def test_bars_are_left_out_before_the_table_is():
    grid = Grid("where", ["after layer", "texts"], numbered=True)
    grid.add("1", "20", bar="█" * 30)
    assert "█" in printed(grid, 60)
    assert "█" not in printed(grid, 40)
    assert "│           1 │    20 │" in printed(grid, 40)


def test_cells_show_control_characters_and_brackets():
    grid = Grid("[b]title\x1b[0m", ["", "n"])
    grid.add("[red]\x1b[31mname", "1")
    for width in (20, 80):
        text = printed(grid, width)
        assert "\x1b" not in text
        assert r"[red]\x1b[31mname" in text.replace("\n", "")


def test_a_pipe_is_as_wide_as_the_table(capsys):
    grid = Grid("scores", ["", *map(str, range(40))])
    grid.add("name", *(f"{number:.4f}" for number in range(40)))
    console.show(grid)
    out = capsys.readouterr().out
    assert "39.0000" in out
    assert max(map(len, out.splitlines())) > 200
