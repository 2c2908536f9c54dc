"""Tables have thresholds from calibration texts and scores from test texts; submissions use the same thresholds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from exitpoll import InputError
from exitpoll.files import locked
from exitpoll.study.execute import execute, execute_all
from exitpoll.study.paper import OURS_ROW, ROWS, ROWS_BY_NAME
from exitpoll.study.plan import Plan
from exitpoll.study.reproduce import reproduce
from exitpoll.study.tables import compute_cells, format_against_paper, format_table
from tests.study.conftest import FAST, hide_labels
from tests.tiny import write_toy_folder

NAMES = [row.name for row in ROWS]
FITTED = ("RightTool", "ours, learned", "ours on the full model")  # on the texts that thresholds are chosen on


def test_from_runs_to_tables(plan, cache):
    seen = []
    outcomes, failed = execute_all(
        plan.runs(), cache, on_run=lambda progress: seen.append((progress.done, progress.total))
    )
    assert not failed
    assert seen == [(number, 10) for number in range(10)]
    bases = {run.base.name for run in plan.runs() if run.base is not None}
    assert {folder.parent.name for folder in cache.glob("*/model")} == bases  # all other models are removed
    cells = compute_cells(plan, outcomes)
    by_row = {cell.row: cell for cell in cells}
    missing = set(NAMES) - set(by_row)
    assert missing <= {"PABEE", "ours, patience", "ours, votes"}  # whose few thresholds may all be out of the range
    assert by_row["first half"].speedup == pytest.approx(1.5)
    assert by_row["LayerDrop"].speedup == pytest.approx(1.5)
    assert by_row["HeadPrune"].speedup > 1
    for cell in cells:
        assert 0 <= cell.score <= 1
        assert cell.low <= cell.score <= cell.high
        if cell.policy is not None:
            assert cell.speedup > 1
            assert (cell.score_on_dev is None) == (cell.row in FITTED)
    written = format_table(cells, ["trec"], NAMES)
    assert written.count("\n") == len(ROWS) + 1
    assert f"(runs/{by_row['DeeBERT'].run}/run.json)" in written
    assert "nan" not in format_table(cells, ["trec"], NAMES, on_dev=True)
    against_paper = format_against_paper(cells, ["trec"], NAMES)
    assert "RightTool" not in against_paper
    above = 100 * (by_row["DeeBERT"].score_on_dev - by_row["full model"].score)
    assert f"| DeeBERT | {above:+.1f} (-0.5) |" in against_paper

    again = execute(plan.run("trec", OURS_ROW, 0), cache)
    assert again.summary["seconds"] == outcomes[-2].summary["seconds"]  # it was reused, not repeated
    assert not (again.folder / "model").exists()
    assert (again.folder / "training.jsonl").exists()


def test_standard_deviation_over_seeds(plan, cache):
    seeds = replace(plan, seeds=(0, 1), rows=[ROWS[0]])
    cells = compute_cells(seeds, execute_all(seeds.runs(), cache)[0])
    assert "±" in format_table(cells, ["trec"], ["full model"])


def test_the_verb(run, data, encoder_folder, tmp_path):
    arguments = ["--encoder", encoder_folder, "--data", data, "--out", tmp_path / "out", "--tasks", "trec"]
    small = ["--methods", "full model", "ours, entropy", "--epochs", "1", "--logs-per-epoch", "1"]
    code, printed, error = run("reproduce", "multiclass", *arguments, *small)
    assert code == 0, error
    assert "run 2 of 2: trec-ensemble-s0-" in printed
    assert "## Multi-class tasks" in (tmp_path / "out" / "tables.md").read_text()
    cells = json.loads((tmp_path / "out" / "cells.json").read_text())
    assert [cell["row"] for cell in cells] == ["full model", "ours, entropy"]
    assert (tmp_path / "out" / "runs" / cells[0]["run"] / "run.json").exists()
    code, _, error = run("reproduce", "multiclass", *arguments, "--methods", "magic")
    assert code == 2
    assert "method 'magic' is in no table" in error


def test_a_second_reproduction_in_the_same_folder_is_told_who_runs(plan, tmp_path):
    with locked(tmp_path / "runs", "reproduce"), pytest.raises(InputError, match="is being written by reproduce, proc"):
        reproduce(plan, tmp_path, with_tables=False, varied=None)


def test_submissions_to_glue(encoder_folder, tmp_path):
    folder = write_toy_folder(tmp_path / "data" / "rte", train=96, others=48)
    texts = hide_labels(folder)
    rows = [ROWS_BY_NAME[name] for name in ("full model", "ours, entropy", "ours, votes")]
    plan = Plan(str(encoder_folder), 3, str(folder.parent), ["rte"], rows, settings=FAST)
    reproduce(plan, tmp_path, with_tables=True, varied=None)
    written = sorted(path.relative_to(tmp_path / "submissions") for path in tmp_path.rglob("RTE.tsv"))
    in_table = {cell["row"] for cell in json.loads((tmp_path / "cells.json").read_text())}
    assert "ours, entropy" in in_table  # votes may have no threshold in the range
    assert {str(path.parent) for path in written} == {name.replace(", ", "-").replace(" ", "-") for name in in_table}
    answers = (tmp_path / "submissions" / "ours-entropy" / "RTE.tsv").read_text().splitlines()
    assert answers[0] == "index\tprediction"
    assert [line.split("\t")[0] for line in answers[1:]] == [str(number) for number in range(texts)]
    classes = {line.rsplit("\t", 1)[1] for line in (folder / "train.tsv").read_text().splitlines()[1:]}
    assert {line.split("\t")[1] for line in answers[1:]} <= classes
