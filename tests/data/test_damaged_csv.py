"""A quotation mark that is never closed costs its own row: every other row of a CSV file is read, and none vanishes."""

from __future__ import annotations

import csv
import io
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitpoll import InputError
from exitpoll.data import separated
from exitpoll.data.rows import checked
from exitpoll.data.separated import read_csv

HEADER = "text,label\n"
GOOD = "".join(f"row {number},{number % 2}\n" for number in range(30))

# Every clean cell begins with a letter. A text that begins with a separator or a line break puts a quotation mark in
# front of it, which closes an open one as it should be closed: then nothing is wrong with the file.
cells = st.builds(str.__add__, st.sampled_from("abc"), st.text('ab ,"\n', max_size=6))
clean_rows = st.tuples(cells, cells)
damaged_lines = st.sampled_from(['"dam,1', 'dam,"1', '"dam","1', '"da"m,1', '"da""m,1', "dam", "dam,1,2"])


def read(folder, content):
    path = folder / "a.csv"
    path.write_bytes(content.encode())
    return list(read_csv(path))


def numbers_of(rows):
    return [int(row.place.rsplit(" ", 1)[1]) for row in rows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("csv")


def test_the_rows_behind_an_unclosed_quote_are_read(folder):
    rows = read(folder, HEADER + GOOD + '"never closed,1\n' + GOOD)
    assert len(rows) == 61
    assert [number for number, row in enumerate(rows) if row.problem] == [30]
    assert "line 32: the quotation mark that opens in line 32 is not closed properly" in rows[30].problem
    assert rows[30].values == {"text": '"never closed', "label": "1"}
    assert rows[-1].values == {"text": "row 29", "label": "1"}
    with pytest.raises(InputError, match=r"a.csv line 32: the quotation mark that opens in line 32 is not closed"):
        list(checked(read_csv(folder / "a.csv")))


@given(parts=st.lists(st.one_of(clean_rows, damaged_lines)), ending=st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_only_damaged_rows_are_skipped(folder, parts, ending):
    content = io.StringIO()
    writer = csv.writer(content, lineterminator=ending)
    for part in parts:
        if isinstance(part, str):
            content.write(part + ending)
        else:
            writer.writerow(part)
    rows = read(folder, "text,label" + ending + content.getvalue())
    assert [tuple(row.values.values()) for row in rows if not row.problem] == [row for row in parts if len(row) == 2]
    assert [row.problem is not None for row in rows] == [isinstance(part, str) for part in parts]


@given(body=st.text('ab ,"\n'))
def test_every_line_is_in_one_row(folder, body):
    lines = (HEADER + body).split("\n")
    expected = 2  # the line that comes next
    rows = read(folder, HEADER + body)
    for row, number in zip(rows, numbers_of(rows), strict=True):
        assert not any(line.strip() for line in lines[expected - 1 : number - 1])
        assert number >= expected
        breaks = 0 if row.problem else sum(str(cell).count("\n") for cell in row.values.values())
        expected = number + 1 + breaks
    assert not any(line.strip() for line in lines[expected - 1 :])


def test_fields_of_several_lines_are_one_row(folder):
    rows = read(folder, HEADER + '"two\nlines",1\n"a ""b""\n\n, c",0\n"d",1\n')
    assert [row.values["text"] for row in rows] == ["two\nlines", 'a "b"\n\n, c', "d"]
    assert numbers_of(rows) == [2, 4, 7]


def test_the_line_in_which_the_open_quote_stands_is_named(folder):
    first, second, third = read(folder, HEADER + '"two\nlines","open\ngood,1\n')
    assert "line 2: the quotation mark that opens in line 3 is not closed" in first.problem
    assert "line 3: the quotation mark that opens in line 3 is not closed" in second.problem
    assert (third.problem, third.values) == (None, {"text": "good", "label": "1"})


def test_the_end_of_a_damaged_field_is_not_taken_for_a_row(folder):
    rows = read(folder, HEADER + '"two\nlines"x,1\ngood,0\n')
    assert [row.problem is None for row in rows] == [False, False, True]
    assert "a quotation mark inside a field" in rows[1].problem


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("only", {"text": "only", "label": None}),
        ("a,1,extra", {"text": "a", "label": "1"}),
        ('"a"b,1', {"text": '"a"b', "label": "1"}),
        ('"a, b,1', {"text": "a, b,1", "label": None}),
    ],
)
def test_a_damaged_row_keeps_the_cells_that_can_be_read(folder, line, values):
    row, _ = read(folder, HEADER + line + "\ngood,0\n")
    assert row.problem
    assert row.values == values


def test_an_unclosed_quote_takes_no_more_memory_than_a_large_field(folder, monkeypatch):
    monkeypatch.setattr(separated, "LARGEST_RECORD", 2**16)
    path = folder / "large.csv"
    with path.open("w") as file:
        file.write(HEADER + '"never closed,1\n')
        file.writelines(f"row {number},1\n" for number in range(200_000))
    tracemalloc.start()
    good = sum(row.problem is None for row in read_csv(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert good == 200_000
    assert peak < 4e6
