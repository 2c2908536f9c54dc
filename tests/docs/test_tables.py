"""Tables, counts and numbers of the documents are what the source and the results files say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from docs import tables
from exitpoll.data.tasks import TASKS, Task
from exitpoll.decide import thresholds
from exitpoll.decide.formulas import margin
from exitpoll.decide.metrics import METRICS, SINGLE_LABEL, Metric
from exitpoll.decide.strategies import STRATEGIES, Strategy
from exitpoll.models.encoders import FAMILIES
from exitpoll.training.methods import METHODS, Method
from exitpoll.training.objectives import OBJECTIVES, Objective
from tests.docs.conftest import ROOT


@pytest.mark.parametrize("page", [path.relative_to(ROOT).as_posix() for path in tables.pages()])
def test_a_page_is_what_the_script_writes(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == tables.filled(text), "run: python docs/tables.py"


def test_every_block_is_used():
    used = {name for path in tables.pages() for name in re.findall(r"<!-- /([^>]+) -->", path.read_text())}
    assert used == set(tables.BLOCKS)


def bind(settings, problem_type):
    """Bind a new loss."""


NEW_ROWS = {
    "strategies": (STRATEGIES, Strategy(margin, "a new score", grid=thresholds.shares)),
    "metrics": (METRICS, Metric(METRICS["accuracy"].counts, METRICS["accuracy"].score, (SINGLE_LABEL,))),
    "objectives": (OBJECTIVES, Objective(bind)),
    "methods": (METHODS, Method("relevancy", "joint", "margin", paper="Nobody (2030)")),
    "tasks": (TASKS, Task("nobody/dataset")),
    "encoders": (FAMILIES, FAMILIES["bert"]),
}


@pytest.mark.parametrize("name", NEW_ROWS)
def test_a_new_row_is_in_the_documentation(name, monkeypatch):
    rows, row = NEW_ROWS[name]
    before, count = tables.BLOCKS[name](), f"count {name}"
    words = tables.BLOCKS[count]() if count in tables.BLOCKS else None
    monkeypatch.setitem(rows, "brand_new", row)
    after = tables.BLOCKS[name]()
    assert set(before.splitlines()) < set(after.splitlines())
    [added] = set(after.splitlines()) - set(before.splitlines())
    assert "`brand_new`" in added
    assert words is None or tables.BLOCKS[count]() != words


def test_counts_are_words():
    assert tables.in_words("") == "zero"
    assert tables.in_words(range(12)) == "twelve"
    assert tables.in_words(range(1200)) == "1,200"


def test_a_block_without_a_writer_is_refused():
    with pytest.raises(SystemExit, match="no block is called 'nobody'"):
        tables.filled("<!-- nobody -->x<!-- /nobody -->")


def test_the_tables_that_contributing_names_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`([A-Z]+)` in `(src/exitpoll/[a-z_/]+\.py)`", text)
    assert len(named) == len(NEW_ROWS)
    for table, path in named:
        assert re.search(rf"^{table}: ", (ROOT / path).read_text(encoding="utf-8"), flags=re.M), path
    for path in re.findall(r"`((?:src|tests|docs)/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path


def test_the_stated_costs_are_within_their_bars():
    for name in ("training_step", "objective_cost"):
        assert tables.results("benchmarks", name)["within_bar"]
    assert all(tables.results("benchmarks", "decisions")["within_bar"].values())


def test_an_engine_that_never_exits_early_costs_what_plain_transformers_does():
    """Law 3, in wall-clock time, as the benchmark measured it."""
    timings = [row for task in tables.results("benchmarks", "engine")["tasks"].values() for row in task["timings"]]
    way = ("torch", "engine, all layers")
    ratios = [row["against_plain"] for row in timings if (row["runtime"], row["way"]) == way]
    assert len(ratios) == 8
    assert min(ratios) > 0.93  # batches of 32 of some hundred texts scatter by 5 %


def test_the_page_of_results_is_what_the_runs_came_to(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    script = runpy.run_path(str(ROOT / "experiments" / "reproduce_page.py"))
    results = script["read_results"]()
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for name, words in script["BLOCKS"].items():
        [content] = re.findall(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", page, flags=re.S)
        assert content == words(results)
    pictures = set(re.findall(r"\]\((figures/[^)]+)\)", page))
    runs = set(re.findall(r"\]\(https://github.com/exitpoll/exitpoll/blob/main/(experiments/[^)]+)\)", page))
    assert len(pictures | runs) > 20
    assert [name for name in pictures if not (ROOT / "docs" / name).exists()] == []
    assert [name for name in runs if not (ROOT / name).exists()] == []
    assert {cell.run for cell in results.cells} == {Path(name).stem for name in runs}
