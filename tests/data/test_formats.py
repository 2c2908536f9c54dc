"""Files as people have them: compressed, JSON, plain texts, other separators; and what tells that a file is none."""

from __future__ import annotations

import gzip
import json
import sys

import pytest
from pyarrow import output_stream

from exitpoll import InputError, load_splits
from exitpoll.data.readers import kind_of, read_file, read_rows

ROWS = [{"text": f"good film {number}", "label": "pos"} for number in range(20)]
ROWS += [{"text": f"bad, plot {number}", "label": "neg"} for number in range(20)]
TABLES = {
    "csv": "text,label\n" + "".join(f'"{row["text"]}",{row["label"]}\n' for row in ROWS),
    "tsv": "text\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in ROWS),
    "jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "json": json.dumps(ROWS, indent=2),
    "txt": "".join(row["text"] + "\n" for row in ROWS),
}


def write(path, content):
    """Write a file, compressed as its suffix says."""
    with output_stream(path, compression="detect") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return path


def values_in(path):
    return [row.values for row in read_file(path)]


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", TABLES)
def test_every_kind_is_read_compressed_or_not(tmp_path, kind, compression):
    path = write(tmp_path / f"a.{kind}{compression}", TABLES[kind])
    expected = ROWS if kind != "txt" else [{"text": row["text"]} for row in ROWS]
    assert values_in(path) == expected


def test_parts_that_were_compressed_one_by_one_are_read_to_the_end(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert values_in(tmp_path / "a.txt.gz") == [{"text": "one"}, {"text": "two"}]
    parts = [write(tmp_path / f"{name}.zst", name + "\n").read_bytes() for name in ("one", "two")]
    (tmp_path / "a.txt.zst").write_bytes(b"".join(parts))
    assert values_in(tmp_path / "a.txt.zst") == [{"text": "one"}, {"text": "two"}]


def test_a_folder_of_compressed_shards(tmp_path):
    lines = TABLES["jsonl"].splitlines(keepends=True)
    write(tmp_path / "train-00000-of-00002.jsonl.gz", "".join(lines[::2]))
    write(tmp_path / "train-00001-of-00002.jsonl.gz", "".join(lines[1::4]))
    write(tmp_path / "Test.csv.zst", "text,label\nan odd film,pos\n")
    (tmp_path / "train.txt").write_text("a file of notes\n")
    splits = load_splits(tmp_path)
    assert len(splits.train) + len(splits.calibration) == 30
    assert list(splits.test.first) == ["an odd film"]


def test_a_file_and_its_compressed_copy_are_two(tmp_path):
    for name in ("train.csv", "train.csv.gz"):
        write(tmp_path / name, TABLES["csv"])
    with pytest.raises(InputError, match=r"more than one train file: train.csv, train.csv.gz; keep one"):
        load_splits(tmp_path)


@pytest.mark.parametrize("compression", ["gz", "zst"])
@pytest.mark.parametrize("damage", [lambda content: content[:-20], lambda content: b"no such thing"])
def test_damaged_compression(tmp_path, compression, damage):
    path = write(tmp_path / f"a.csv.{compression}", TABLES["csv"])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"a.csv.\w+' cannot be decompressed: .*; is it damaged or cut off\?"):
        read_file(path)


def test_the_packages_for_zstandard_are_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.csv.zst", TABLES["csv"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"compressed by Zstandard, needs more packages: pip install 'exitpoll\[data"):
        read_file(path)


@pytest.mark.parametrize("name", ["a.csv.bz2", "a.parquet.gz", "a.gz", "a.tar.gz", "csv"])
def test_unknown_kinds(tmp_path, name):
    assert kind_of(tmp_path / name) is None
    with pytest.raises(InputError, match="is of an unknown kind"):
        read_rows(tmp_path / name)


class TestJson:
    @pytest.mark.parametrize(
        "content",
        [
            {"text": ["a", "b"], "id": [1, 2]},
            {"text": {"0": "a", "1": "b"}, "id": {"0": 1, "1": 2}},  # as pandas writes it
            [{"text": "a", "id": 1}, {"text": "b", "id": 2}],
        ],
    )
    def test_rows_and_columns(self, tmp_path, content):
        path = tmp_path / "a.json"
        path.write_text(json.dumps(content), encoding="utf-8-sig")
        assert values_in(path) == [{"text": "a", "id": 1}, {"text": "b", "id": 2}]

    def test_lines(self, tmp_path):
        assert values_in(write(tmp_path / "a.json", TABLES["jsonl"])) == ROWS

    @pytest.mark.parametrize("content", ["{}", "3", '{"text": "a"}', '{"a": [1], "b": [1, 2]}', '{"a": [1], "b": 2}'])
    def test_what_is_not_a_table(self, tmp_path, content):
        with pytest.raises(InputError, match=r"a.json' is not a table: expected an array of objects, or an object of"):
            read_file(write(tmp_path / "a.json", content))

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ('[\n{"text": "a"},\n{oops}]', "line 3: not JSON"),
            (b'[{"text": "\xff"}]', "cannot be read as JSON"),
            ("[" * 100_000, "cannot be read as JSON"),
            ("", "line 1: not JSON"),
            ("[]", "has no rows"),
            ('[{"text": "a"}, 3]', "item 2: expected a JSON object, got int"),
            ('[{"text": "\\ud800"}]', "item 1: half a character, the lone surrogate"),
        ],
    )
    def test_what_cannot_be_read(self, tmp_path, content, message):
        with pytest.raises(InputError, match=message):
            read_file(write(tmp_path / "a.json", content))


class TestSeparators:
    @pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs")])
    def test_the_header_decides(self, tmp_path, separator, name):
        lines = [f"a text, in two parts {number}{separator}{number % 2}" for number in range(40)]
        path = write(tmp_path / "a.csv", "\n".join(["", f'"text"{separator}label', *lines]))
        splits = load_splits(path)
        assert splits.train.first[0].startswith("a text, in two parts ")
        assert f"'a.csv' is read as separated by {name}, as its header" in splits.notes

    def test_a_comma_outside_quotation_marks_comes_first(self, tmp_path):
        assert values_in(write(tmp_path / "a.csv", "text;a,b\nc;d,e\n")) == [{"text;a": "c;d", "b": "e"}]
        assert values_in(write(tmp_path / "a.csv", '"text, too";b\nc,d;e\n')) == [{"text, too": "c,d", "b": "e"}]
        assert values_in(write(tmp_path / "a.csv", "text\na;b\n")) == [{"text": "a;b"}]

    def test_commas_in_a_tsv_file(self, tmp_path):
        path = write(tmp_path / "a.tsv", TABLES["csv"])
        with pytest.raises(InputError, match=r"are its fields separated by commas\? then name the file .csv"):
            load_splits(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TABLES["csv"].encode("utf-16"), "is UTF-16; save it as UTF-8"),
        (TABLES["csv"].encode("utf-16-be").join([b"\xfe\xff", b""]), "is UTF-16; save it as UTF-8"),
        (gzip.compress(TABLES["csv"].encode()), "is compressed by gzip; add .gz to its name"),
        (b"\x28\xb5\x2f\xfd\0", "is compressed by Zstandard; add .zst to its name"),
        (b"PK\x03\x04", "is a ZIP archive or an Excel sheet; save it as CSV"),
        (b"PAR1", "is a Parquet file; name it .parquet"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json", "txt"])
def test_files_of_another_kind_than_their_name_says(tmp_path, content, message, kind):
    path = tmp_path / f"a.{kind}"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_file(path)


def test_line_breaks_of_windows_and_blank_lines(tmp_path):
    for kind in ("csv", "tsv", "jsonl", "txt"):
        path = tmp_path / f"a.{kind}"
        path.write_bytes(b"\r\n" + TABLES[kind].replace("\n", "\r\n \r\n").encode())
        texts = [row["text"] for row in values_in(path)]
        assert texts == [row["text"] for row in ROWS]


def test_an_empty_text_in_quotation_marks_is_a_row(tmp_path):
    assert values_in(write(tmp_path / "a.csv", 'text\na\n""\n\n')) == [{"text": "a"}, {"text": ""}]
