"""Rows of files: large fields, rows that cannot be read, and what stays as it was."""

from __future__ import annotations

import csv
import subprocess
import sys

import pytest

from exitpoll import InputError
from exitpoll.data.json_rows import read_jsonl
from exitpoll.data.rows import checked
from exitpoll.data.separated import read_csv, read_tsv

LARGE = "x" * 300_000  # Python's limit is 128 kB


def test_importing_exitpoll_leaves_the_field_size_limit_of_csv():
    code = (
        "import csv; before = csv.field_size_limit(); import exitpoll, exitpoll.data.splits; "
        "print(before == csv.field_size_limit())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "True"


@pytest.mark.parametrize(("read", "separator"), [(read_csv, ","), (read_tsv, "\t")])
def test_large_fields_are_read_without_changing_the_limit(tmp_path, read, separator):
    limit = csv.field_size_limit()
    path = tmp_path / "a.txt"
    path.write_text(f"text{separator}label\n{LARGE}{separator}1\nsmall{separator}0\n")
    limits_between_rows, values = [], []
    for row in read(path):
        limits_between_rows.append(csv.field_size_limit())
        values.append(row.values)
    assert values == [{"text": LARGE, "label": "1"}, {"text": "small", "label": "0"}]
    assert limits_between_rows == [limit, limit]
    assert csv.field_size_limit() == limit


def test_the_limit_is_restored_after_an_error(tmp_path):
    limit = csv.field_size_limit()
    (tmp_path / "a.csv").write_text('text,label\n"never closed,1\n')
    [row] = read_csv(tmp_path / "a.csv")
    assert "unexpected end of data" in row.problem
    assert csv.field_size_limit() == limit


def test_a_problem_belongs_to_its_row_alone(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,label\ngood,1\n"two\nlines \xff",0\n\nbad,0\n"a"b,1\nplot,2,3\nend,1\n')
    rows = list(read_csv(path))
    problems = [row.problem for row in rows]
    assert [row.place for row in rows] == [f"{path} line {number}" for number in (2, 3, 6, 7, 8, 9)]
    assert [problem is None for problem in problems] == [True, False, True, False, False, True]
    assert problems[1].startswith(f"{path} line 3: invalid UTF-8 (")
    assert problems[3].startswith(f"{path} line 7: ")
    assert problems[4] == f"{path} line 8: 3 fields where the header has 2"
    assert rows[-1].values == {"text": "end", "label": "1"}


def test_the_first_problem_of_a_row_is_reported(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"text\tlabel\nbad \xff\t1\t2\n")
    [row] = read_tsv(tmp_path / "a.tsv")
    assert "invalid UTF-8" in row.problem


def test_checked_refuses_rows_that_cannot_be_read(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n[1]\n')
    rows = checked(read_jsonl(tmp_path / "a.jsonl"))
    assert next(rows).values == {"text": "good"}
    with pytest.raises(InputError, match=r"line 2: expected a JSON object, got list"):
        next(rows)
