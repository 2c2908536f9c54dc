"""Bad input is refused with a message of one line that says what is wrong."""

from __future__ import annotations

import sys

import pytest

from exitpoll import InputError, load_splits
from tests.tiny import toy_rows, write_jsonl, write_tsv

WORDS = [("good film", "pos"), ("bad film", "neg"), ("great cast", "pos"), ("poor plot", "neg")]
ROWS = [(f"{text} {number}", label) for number in range(10) for text, label in WORDS]


def refused(message, source, **options):
    with pytest.raises(InputError) as caught:
        load_splits(source, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path):
    refused("does not exist", tmp_path / "none.tsv")


def test_missing_folder(tmp_path):
    refused("does not exist", tmp_path / "none")


def test_empty_file(tmp_path):
    (tmp_path / "a.tsv").write_text("")
    refused("has no rows", tmp_path / "a.tsv")


def test_header_only(tmp_path):
    refused("has no rows", write_tsv(tmp_path / "a.tsv", []))


def test_unknown_kind(tmp_path):
    (tmp_path / "a.xlsx").write_text("x")
    refused("unknown kind; known kinds: .csv, .tsv, .jsonl, .json, .txt, .parquet; text files", tmp_path / "a.xlsx")


def test_folder_without_train(tmp_path):
    write_tsv(tmp_path / "test.tsv", ROWS)
    refused("has no train file", tmp_path)


def test_missing_column(tmp_path):
    path = write_tsv(tmp_path / "a.tsv", ROWS)
    refused("no column 'review'; the columns are: text, label", path, text_column="review")


def test_no_text_column(tmp_path):
    path = write_tsv(tmp_path / "a.tsv", ROWS, ("words", "label"))
    refused("line 2: no text column among words, label; name it: text_column", path)


def test_no_label_column(tmp_path):
    path = write_tsv(tmp_path / "a.tsv", ROWS, ("text", "stars"))
    refused("no labels found: no column is called label; name theirs: label_column", path)


def test_one_class_only(tmp_path):
    refused("every label is 'pos'; two classes", write_tsv(tmp_path / "a.tsv", [("good", "pos")] * 20))


def test_label_never_seen_in_train(tmp_path):
    write_tsv(tmp_path / "train.tsv", ROWS)
    write_tsv(tmp_path / "test.tsv", [*ROWS[:3], ("odd", "maybe")])
    refused("test.tsv line 5: label 'maybe' is not among the known labels: neg, pos", tmp_path)


@pytest.mark.parametrize("text", ["", "   "])
def test_empty_text(tmp_path, text):
    path = write_tsv(tmp_path / "a.tsv", [*ROWS, (text, "pos")])
    refused("line 42: the text in column 'text' is empty", path)


@pytest.mark.parametrize("text", [None, 3, ["a"]])
def test_text_that_is_not_a_string(tmp_path, text):
    rows = [{"text": "a", "label": 1}, {"text": text, "label": 0}]
    refused("line 2: the text in column 'text' is empty or not a string", write_jsonl(tmp_path / "a.jsonl", rows))


@pytest.mark.parametrize("row", ['{"text": "\\ud800", "label": 0}', '{"text": "b", "label": "\\ud800"}'])
def test_lone_surrogate(tmp_path, row):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 1}\n' + row + "\n")
    refused("line 2: half a character, the lone surrogate '\\ud800'", tmp_path / "a.jsonl")


def test_two_columns_of_one_name(tmp_path):
    path = write_tsv(tmp_path / "a.tsv", [("a", "b", "1")], ("text", "text", "label"))
    refused("two columns are named 'text'", path)


def test_one_column_for_two_things(tmp_path):
    path = write_tsv(tmp_path / "a.tsv", ROWS)
    refused("column 'text' is named twice", path, text_column="text", label_column="text")


@pytest.mark.parametrize("other", ["train.csv", "train-old.tsv"])
def test_two_train_files(tmp_path, other):
    write_tsv(tmp_path / "train.tsv", ROWS)
    write_tsv(tmp_path / other, ROWS)
    if other == "train.csv":
        refused("more than one train file: train.csv, train.tsv", tmp_path)
    else:
        assert len(load_splits(tmp_path).train) < len(ROWS)


def test_neither_a_file_nor_a_folder():
    refused("neither a file nor a folder", "/dev/null")


def test_nearly_as_many_classes_as_texts(tmp_path):
    path = write_tsv(tmp_path / "a.tsv", [(f"text {number}", f"id {number}") for number in range(40)])
    refused("40 classes for 40 texts; is it the label column?", path)


def test_odd_digits_are_names(tmp_path):
    rows = [(f"text {number}", ("²", "3", "9" * 5000)[number % 3]) for number in range(30)]
    assert len(load_splits(write_tsv(tmp_path / "a.tsv", rows)).label_names) == 3


def test_zeros_and_ones_instead_of_names(tmp_path):
    rows = [{"text": "a", "label": [0, 1, 0]}, {"text": "b", "label": [1, 0, 0]}] * 10
    refused("names a class twice; list the names", write_jsonl(tmp_path / "a.jsonl", rows))


def test_constant_values(tmp_path):
    rows = [(text, "1.5") for text, _ in ROWS]
    refused("all have one label", write_tsv(tmp_path / "a.tsv", rows), problem_type="regression")


def test_values_too_large_to_train_on(tmp_path):
    rows = [("a", "1.5"), ("b", "1e300")] * 10
    refused("label '1e300' is not a number", write_tsv(tmp_path / "a.tsv", rows), problem_type="regression")


def test_one_class_after_the_limit(tmp_path):
    refused("all have one label", write_tsv(tmp_path / "a.tsv", ROWS), limit=1)


def test_invalid_utf8(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"text\tlabel\ngood\t1\nbad \xff\xfe\t0\n")
    refused("line 3: invalid UTF-8", tmp_path / "a.tsv")


def test_utf16(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\ngood\t1\n", encoding="utf-16-le")
    refused("NUL byte", tmp_path / "a.tsv")


def test_wrong_number_of_fields(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\ngood\t1\nbad\tfilm\t0\n")
    refused("line 3: 3 fields where the header has 2", tmp_path / "a.tsv")


def test_broken_csv(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n"never closed,1\n')
    refused("a.csv line", tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("line", "message"),
    [("{oops", "not JSON"), ("[1]", "expected a JSON object"), ("[" * 100_000, "not JSON")],
)
def test_broken_jsonl(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_text(line + "\n")
    refused(message, tmp_path / "a.jsonl")


def test_broken_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_text("not parquet")
    refused("a.parquet' cannot be read as Parquet", tmp_path / "a.parquet")


@pytest.mark.parametrize("row", [{"text": "a", "label": None}, {"text": "a"}, {"text": "a", "label": " "}])
def test_missing_label(tmp_path, row):
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}, row]
    refused("line 3: the label in column 'label' is missing", write_jsonl(tmp_path / "a.jsonl", rows))


def test_a_list_among_single_labels(tmp_path):
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": {"y": 1}}]
    refused("line 2: label {'y': 1} must be one name or number", write_jsonl(tmp_path / "a.jsonl", rows))


def test_a_single_label_among_lists(tmp_path):
    rows = [{"text": "a", "label": ["x"]}, {"text": "b", "label": 3}]
    refused("line 2: label 3 must be a list of names", write_jsonl(tmp_path / "a.jsonl", rows))


def test_a_test_split_without_the_text_columns_of_train(tmp_path):
    write_tsv(tmp_path / "train.tsv", toy_rows(20, pairs=True), ("text_a", "text_b", "label"))
    write_tsv(tmp_path / "test.tsv", toy_rows(20))
    refused("no column 'text_a'; the columns are: text, label", tmp_path)


def test_unknown_problem_type(tmp_path):
    message = "problem type 'ranking' is unknown; choose one of: single_label_classification, multi_label"
    refused(message, write_tsv(tmp_path / "a.tsv", ROWS), problem_type="ranking")


def test_regression_needs_numbers(tmp_path):
    path = write_tsv(tmp_path / "a.tsv", ROWS)
    refused("label 'pos' is not a number", path, problem_type="regression")


def test_too_few_texts(tmp_path):
    write_tsv(tmp_path / "train.tsv", ROWS[:1])
    refused("two classes are needed", tmp_path)


def test_limit_below_one(tmp_path):
    refused("limit 0 must be at least 1", write_tsv(tmp_path / "a.tsv", ROWS), limit=0)


@pytest.mark.parametrize(("package", "source"), [("pyarrow", "a.parquet"), ("datasets", "stanfordnlp/imdb")])
def test_missing_extras_are_named(tmp_path, monkeypatch, package, source):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "a.parquet").touch()
    path = tmp_path / source if source.endswith("parquet") else source
    refused("pip install 'exitpoll[data]'", path)
