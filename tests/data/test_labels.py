"""One rule for labels, whatever the format of the file: what is one class, what is a class, and what is missing."""

from __future__ import annotations

import csv
import json

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from exitpoll import InputError, load_splits
from exitpoll.data.labels import LabelScheme, RawLabels, class_name, is_missing
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from tests.tiny import write_jsonl, write_tsv

KINDS = ("csv", "tsv", "jsonl", "json", "parquet")


def write(folder, kind, labels):
    """Write texts with these labels, over and over; Parquet has strings where the types differ."""
    labels = [labels[number % len(labels)] for number in range(40)]
    texts, path = [f"text {number}" for number in range(40)], folder / f"a.{kind}"
    rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    if kind == "parquet":
        same = len({type(label) for label in labels}) == 1
        column = labels if same else [None if label is None else str(label) for label in labels]
        parquet.write_table(pyarrow.table({"text": texts, "label": column}), path)
    elif kind == "json":
        path.write_text(json.dumps(rows))
    elif kind == "jsonl":
        write_jsonl(path, rows)
    elif kind == "tsv":
        write_tsv(path, [(row["text"], str(row["label"])) for row in rows])
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *(row.values() for row in rows)])
    return path


@pytest.mark.parametrize("kind", KINDS)
class TestEveryFormat:
    @pytest.mark.parametrize(
        "labels", [[0, 1], [0.0, 1.0], ["0", "1.0"], ["00", "1."], [0, "1"], [0, 1.0], ["0.0", "1", "+1", "0e0"]]
    )
    def test_equal_numbers_are_one_class(self, tmp_path, kind, labels):
        splits = load_splits(write(tmp_path, kind, labels))
        assert (splits.problem_type, list(splits.label_names)) == (SINGLE_LABEL, ["0", "1"])

    def test_numbers_written_in_two_ways_are_noted(self, tmp_path, kind):
        notes = load_splits(write(tmp_path, kind, ["1", "1.0", "2"])).notes
        assert "labels that differ only by spaces or number format are one class: '1' and '1.0'" in notes

    def test_case_and_inner_spaces_are_kept_and_noted(self, tmp_path, kind):
        splits = load_splits(write(tmp_path, kind, ["POS", "pos", "so so", "so  so"]))
        assert list(splits.label_names) == ["POS", "pos", "so  so", "so so"]
        expected = "labels that differ only by case or spaces are different classes: "
        assert f"{expected}'POS' and 'pos'; 'so so' and 'so  so'" in splits.notes

    def test_spaces_at_both_ends_do_not_count(self, tmp_path, kind):
        splits = load_splits(write(tmp_path, kind, ["pos", " pos", "neg"]))
        assert list(splits.label_names) == ["neg", "pos"]
        assert any("are one class: 'pos' and ' pos'" in note for note in splits.notes)

    def test_clear_labels_are_not_noted(self, tmp_path, kind):
        assert not any("labels" in note for note in load_splits(write(tmp_path, kind, ["pos", "neg"])).notes)

    @pytest.mark.parametrize("missing", ["nan", "NaN", "null", "None", "<NA>", "", " ", None, float("nan")])
    def test_missing_labels_are_refused(self, tmp_path, kind, missing):
        with pytest.raises(InputError, match=r"(line|item|row) \d+: the label in column 'label' is missing"):
            load_splits(write(tmp_path, kind, ["pos", "neg", missing]))

    def test_names_that_look_like_missing_ones_are_classes_if_they_are_listed(self, tmp_path, kind):
        path = write(tmp_path, kind, ["null", "none", "some"])
        with pytest.raises(InputError, match=r"is missing .'null'; if that is a class, list it among the label names"):
            load_splits(path)
        splits = load_splits(path, label_names=["null", "none", "some"])
        assert set(splits.train.labels.tolist()) == {0, 1, 2}

    @pytest.mark.parametrize("labels", [[0.5, 1.0], ["0.50", "1"], ["5e-1", 1]])
    def test_fractions_are_values(self, tmp_path, kind, labels):
        splits = load_splits(write(tmp_path, kind, labels))
        assert splits.problem_type == REGRESSION
        assert set(splits.train.labels.tolist()) == {0.5, 1.0}

    def test_truth_values_are_names(self, tmp_path, kind):
        assert list(load_splits(write(tmp_path, kind, [True, False])).label_names) == ["False", "True"]

    def test_unlabelled_as_in_glue(self, tmp_path, kind):
        with pytest.raises(InputError, match="no labels found"):
            load_splits(write(tmp_path, kind, [-1.0]))


@given(st.one_of(st.integers(-(10**24), 10**24), st.floats(allow_nan=False, allow_infinity=False)))
def test_a_number_has_one_name_in_every_spelling(number):
    name = class_name(number)
    assert class_name(str(number)) == class_name(f" {number} ") == class_name(name) == name
    if abs(number) < 1e15:
        assert float(name) == float(number) or abs(number) < 1e-15


@given(st.integers(), st.integers())
def test_different_integers_have_different_names(first, second):
    assert (class_name(first) == class_name(second)) == (first == second)


@given(st.text())
def test_any_text_has_a_name(text):
    assert class_name(text) == class_name(class_name(text))
    assert is_missing(text) or class_name(text)


class TestGivenNames:
    def raw(self, *labels):
        return RawLabels(labels, [f"row {number}" for number in range(len(labels))])

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            ("pos", "must be a list of names"),
            (["pos", ""], "must be a list of names, none of them empty"),
            (["pos", 1], "must be a list of names"),
            (["pos"], "the label names are pos; two classes are needed"),
            ([], "the label names are none; two classes are needed"),
            (["1", "2", "1.0"], "the label names have a class twice: '1' and '1.0'"),
            (["pos", "neg", "pos "], "the label names have a class twice: 'pos' and 'pos '"),
        ],
    )
    def test_names_that_cannot_be_classes(self, tmp_path, names, message):
        with pytest.raises(InputError, match=message):
            load_splits(write(tmp_path, "csv", ["pos", "neg"]), label_names=names)

    def test_regression_has_one_name_at_most(self):
        assert LabelScheme.of(self.raw(0.5, 1.0), None, ["similarity"]).names == ["similarity"]
        with pytest.raises(InputError, match="2 label names were given, but regression has one value"):
            LabelScheme.of(self.raw(0.5, 1.0), None, ["a", "b"])

    @pytest.mark.parametrize(
        ("label", "names", "message"),
        [
            (
                "Pos",
                ["neg", "pos"],
                "row 0: label 'Pos' is not among the known labels: neg, pos; 'pos' differs from it",
            ),
            ("2", ["neg", "pos"], "label '2' is not among the known labels: neg, pos, and their numbers are 0 to 1"),
            ("0", ["1", "2", "3"], "row 0: label '0' is not among the known labels: 1, 2, 3$"),
        ],
    )
    def test_unknown_labels(self, label, names, message):
        with pytest.raises(InputError, match=message):
            LabelScheme(SINGLE_LABEL, names, accept_numbers=True).encode(self.raw(label))

    def test_names_that_are_numbers_are_not_class_numbers(self):
        scheme = LabelScheme(SINGLE_LABEL, ["1", "2", "3"], accept_numbers=True)
        assert scheme.encode(self.raw("1", 2, 3.0)).tolist() == [0, 1, 2]

    def test_numbers_of_a_model_in_another_format(self):
        assert LabelScheme(SINGLE_LABEL, ["1.0", "2.0"]).encode(self.raw(2, "1")).tolist() == [1, 0]

    def test_a_class_without_training_texts_is_noted(self, tmp_path):
        splits = load_splits(write(tmp_path, "csv", ["pos", "neg"]), label_names=["neg", "so-so", "pos"])
        assert "no training text has the label: so-so" in splits.notes


def test_several_labels_follow_the_same_rule():
    labels = RawLabels([["1", "a"], [1.0], []], ["row 1", "row 2", "row 3"])
    scheme = LabelScheme.of(labels)
    assert (scheme.problem_type, scheme.names) == (MULTI_LABEL, ["1", "a"])
    assert scheme.encode(labels).tolist() == [[1, 1], [1, 0], [0, 0]]
    for missing in (None, "nan", ""):
        with pytest.raises(InputError, match=r"row 1: label .* has a part that is missing"):
            LabelScheme.of(RawLabels([["a", missing], ["b"]], ["row 1", "row 2"]))
