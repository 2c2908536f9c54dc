"""Splits, columns and labels from files and folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from exitpoll import InputError, load_splits
from exitpoll.data.columns import LABEL_COLUMNS, PAIR_COLUMNS, TEXT_COLUMNS, find_text_columns
from exitpoll.data.rows import Row
from tests.tiny import toy_rows, write_jsonl, write_toy_folder, write_tsv

WORDS = [("good film", "pos"), ("bad film", "neg"), ("great cast", "pos"), ("poor plot", "neg")]


def repeated(rows, times):
    """Make rows of a few rows, with texts that differ."""
    return [(f"{text} {number}", *rest) for number in range(times) for text, *rest in rows]


ROWS = repeated(WORDS, 10)


class TestFiles:
    def test_folder_with_three_splits(self, tmp_path):
        splits = load_splits(write_toy_folder(tmp_path / "toy"))
        assert (len(splits.train), len(splits.calibration), len(splits.test)) == (96, 24, 24)
        assert list(splits.label_names) == ["bad", "good", "so-so"]
        assert splits.notes == ()
        assert splits.metric == "accuracy"
        assert not splits.is_pairs

    def test_all_file_formats_give_the_same(self, tmp_path):
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        texts, labels = [text for text, _ in ROWS], [label for _, label in ROWS]
        write_tsv(tmp_path / "a.tsv", ROWS)
        (tmp_path / "a.csv").write_text("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in ROWS))
        write_jsonl(tmp_path / "a.jsonl", [{"text": text, "label": label} for text, label in ROWS])
        parquet.write_table(pyarrow.table({"text": texts, "label": labels}), tmp_path / "a.parquet")
        loaded = [load_splits(tmp_path / f"a.{kind}") for kind in ("tsv", "csv", "jsonl", "parquet")]
        for splits in loaded[1:]:
            assert splits.train.first == loaded[0].train.first
            assert splits.train.labels.tolist() == loaded[0].train.labels.tolist()

    def test_quotes_in_tsv_are_ordinary_characters(self, tmp_path):
        rows = repeated([('" good', "1"), ('bad "', "0")], 10)
        assert set(load_splits(write_tsv(tmp_path / "a.tsv", rows)).train.first) < {text for text, _ in rows}

    def test_csv_fields_may_hold_line_breaks(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_text("text,label\n" + "".join(f'"two\nlines {n}",1\n"one {n}",0\n' for n in range(10)))
        assert sum(text.startswith("two\nlines ") for text in load_splits(path).train.first) > 5

    def test_byte_order_mark_is_not_part_of_a_name(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_bytes(
            "text,label\n".encode("utf-8-sig") + b"".join(b"good %d,1\nbad %d,0\n" % (n, n) for n in range(10))
        )
        assert list(load_splits(path).label_names) == ["0", "1"]

    def test_blank_lines_and_capitals_do_not_matter(self, tmp_path):
        body = "".join(f"{text}\t{label}\n" for text, label in ROWS)
        (tmp_path / "TRAIN.TSV").write_text(f"\n \ntext\tlabel\n{body}  \n")
        assert list(load_splits(tmp_path).label_names) == ["neg", "pos"]

    def test_spaces_around_labels_and_column_names_do_not_matter(self, tmp_path):
        rows = repeated([("good", " pos"), ("bad", "neg"), ("fine", "pos ")], 10)
        (tmp_path / "a.csv").write_text("text, label\n" + "".join(f"{text},{label}\n" for text, label in rows))
        assert list(load_splits(tmp_path / "a.csv").label_names) == ["neg", "pos"]

    def test_shards_are_joined(self, tmp_path):
        write_tsv(tmp_path / "train-00000-of-00002.tsv", ROWS[:20])
        write_tsv(tmp_path / "train-00001-of-00002.tsv", ROWS[20:])
        splits = load_splits(tmp_path)
        assert len(splits.train) + len(splits.calibration) + len(splits.test) == len(ROWS)

    @pytest.mark.parametrize("name", ["dev", "validation", "valid", "val", "calibration"])
    def test_names_of_the_dev_split(self, tmp_path, name):
        for start, stem in enumerate(("train", name, "test")):
            write_tsv(tmp_path / f"{stem}.tsv", ROWS[start::3])
        assert load_splits(tmp_path).notes == ()


class TestSplits:
    def test_one_file_is_cut_in_three_stratified_splits(self, tmp_path):
        splits = load_splits(write_tsv(tmp_path / "a.tsv", repeated(WORDS, 100)))
        assert (len(splits.train), len(splits.calibration), len(splits.test)) == (324, 36, 40)
        for split in (splits.train, splits.calibration, splits.test):
            assert np.bincount(split.labels).tolist() == [len(split) / 2] * 2
        assert "test split of 40 texts was cut from train with seed 0" in splits.notes[0]
        assert "calibration split of 36 texts was cut from train" in splits.notes[1]

    def test_cuts_do_not_overlap(self, tmp_path):
        rows = [(f"text {number}", str(number % 2)) for number in range(200)]
        splits = load_splits(write_tsv(tmp_path / "a.tsv", rows))
        parts = [set(split.first) for split in (splits.train, splits.calibration, splits.test)]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 200

    def test_cuts_depend_on_the_seed_alone(self, tmp_path):
        path = write_tsv(tmp_path / "a.tsv", [(f"text {number}", str(number % 2)) for number in range(100)])
        assert load_splits(path, seed=1).test.first == load_splits(path, seed=1).test.first
        assert load_splits(path, seed=1).test.first != load_splits(path, seed=2).test.first

    def test_copies_of_a_text_are_in_one_split(self, tmp_path):
        rows = [(f"Text {number // 3}", str(number // 3 % 2)) for number in range(300)]
        rows[1::3] = [(text.upper().replace(" ", "  "), label) for text, label in rows[1::3]]
        splits = load_splits(write_tsv(tmp_path / "a.tsv", rows))
        parts = [
            {text.lower().split()[1] for text in part.first} for part in (splits.train, splits.calibration, splits.test)
        ]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 100
        assert (len(splits.train), len(splits.calibration), len(splits.test)) == (243, 27, 30)
        assert "200 of the 300 texts are copies of others: all copies of a text are in one split" in splits.notes
        assert not any("too" in note for note in splits.notes)

    def test_pairs_are_copies_as_pairs(self, tmp_path):
        rows = [("same", f"other {number % 50}", str(number % 2)) for number in range(100)]
        splits = load_splits(write_tsv(tmp_path / "a.tsv", rows, ("text_a", "text_b", "label")))
        assert "50 of the 100 texts are copies of others: all copies of a text are in one split" in splits.notes

    def test_copies_of_one_text_cannot_be_cut(self, tmp_path):
        path = write_tsv(tmp_path / "a.tsv", [("same", "1"), ("Same", "0")] * 10)
        with pytest.raises(InputError, match="20 texts, 1 of them distinct, are too few to divide"):
            load_splits(path)

    def test_texts_that_two_splits_share_are_counted(self, tmp_path):
        write_tsv(tmp_path / "train.tsv", ROWS)
        write_tsv(tmp_path / "dev.tsv", [("GOOD  film 1", "pos"), ("bad film 2", "neg"), ("new", "neg")])
        write_tsv(tmp_path / "test.tsv", [("good film 1", "pos"), ("New", "neg"), ("newer", "neg"), ("newest", "neg")])
        assert load_splits(tmp_path).notes == (
            "2 of the 3 calibration texts are in the train split too",
            "1 of the 4 test texts are in the train split too",
            "2 of the 4 test texts are in the calibration split too",
        )

    def test_dev_is_the_test_split_where_there_is_no_other(self, tmp_path):
        write_tsv(tmp_path / "train.tsv", ROWS)
        write_tsv(tmp_path / "dev.tsv", [("good plot", "pos"), ("bad cast", "neg")])
        splits = load_splits(tmp_path)
        assert list(splits.test.first) == ["good plot", "bad cast"]
        assert "dev split is the test split" in splits.notes[0]

    @pytest.mark.parametrize("header", [("text",), ("text", "label")])
    def test_a_test_split_without_labels_does_not_count(self, tmp_path, header):
        write_tsv(tmp_path / "train.tsv", ROWS)
        write_tsv(tmp_path / "dev.tsv", ROWS[:2])
        write_tsv(tmp_path / "test.tsv", [("who knows", "-1")[: len(header)]], header)
        assert len(load_splits(tmp_path).test) == 2

    def test_limit(self, tmp_path):
        splits = load_splits(write_toy_folder(tmp_path / "toy"), limit=10)
        assert (len(splits.train), len(splits.test)) == (10, 24)
        assert "10 of 96 training texts were drawn" in splits.notes[-1]

    def test_a_limit_above_the_size_changes_nothing(self, tmp_path):
        assert load_splits(write_toy_folder(tmp_path / "toy"), limit=1000).notes == ()


class TestColumns:
    @pytest.mark.parametrize(
        "header",
        [("text_a", "text_b"), ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question", "sentence")],
    )
    def test_pairs_by_convention(self, tmp_path, header):
        splits = load_splits(write_tsv(tmp_path / "a.tsv", toy_rows(40, pairs=True), (*header, "label")))
        assert splits.is_pairs
        assert len(splits.train.second) == len(splits.train.first)

    def test_named_columns(self, tmp_path):
        rows = [(text, text[::-1], label) for text, label in ROWS]
        path = write_tsv(tmp_path / "a.tsv", rows, ("review", "reply", "stars"))
        splits = load_splits(path, text_column="review", pair_column="reply", label_column="stars")
        assert splits.train.second[0] == splits.train.first[0][::-1]

    def test_a_named_pair_beside_a_conventional_one(self, tmp_path):
        rows = [(text, "b", "c", label) for text, label in ROWS]
        path = write_tsv(tmp_path / "a.tsv", rows, ("sentence", "question", "reply", "label"))
        assert load_splits(path, pair_column="reply").train.second[0] == "c"

    def test_a_named_label_need_not_be_in_the_test_split(self, tmp_path):
        write_tsv(tmp_path / "train.tsv", ROWS, ("text", "kind"))
        write_tsv(tmp_path / "dev.tsv", ROWS[:2], ("text", "kind"))
        write_tsv(tmp_path / "test.tsv", [("who knows",)], ("text",))
        assert len(load_splits(tmp_path, label_column="kind").test) == 2

    def test_a_named_label_beside_a_conventional_text(self, tmp_path):
        path = write_tsv(tmp_path / "a.tsv", ROWS, ("sentence", "kind"))
        assert list(load_splits(path, label_column="kind").label_names) == ["neg", "pos"]

    @pytest.mark.parametrize("text", ["Text", "SENTENCE", "content", "Review", "comment", "message", "body", "title"])
    @pytest.mark.parametrize("label", ["Label", "labels", "class", "Category", "target", "sentiment", "Intent"])
    def test_usual_names_in_any_case(self, tmp_path, text, label):
        splits = load_splits(write_tsv(tmp_path / "a.tsv", ROWS, (text, label)))
        assert list(splits.label_names) == ["neg", "pos"]
        is_noted = [any(f"from the column '{name}'" in note for note in splits.notes) for name in (text, label)]
        assert is_noted == [text not in ("Text", "SENTENCE"), label not in ("Label", "labels")]

    def test_named_columns_in_another_case(self, tmp_path):
        path = write_tsv(tmp_path / "a.tsv", ROWS, ("Words", "Kind"))
        splits = load_splits(path, text_column="words", label_column="KIND")
        assert list(splits.label_names) == ["neg", "pos"]
        assert not any("column" in note for note in splits.notes)

    @pytest.mark.parametrize(
        ("header", "message"),
        [
            (("title", "Body", "label"), "is it the column 'title' or 'Body'? name it: text_column"),
            (("TEXT", "Text", "label"), "is it the column 'TEXT' or 'Text'? name it: text_column"),
            (("text", "class", "sentiment"), "is it the column 'class' or 'sentiment'? name it: label_column"),
            (("text_a", "Text_B", "TEXT_B"), "is it the column 'Text_B' or 'TEXT_B'? name it: pair_column"),
        ],
    )
    def test_columns_that_could_both_be_meant(self, tmp_path, header, message):
        path = write_tsv(tmp_path / "a.tsv", [(text, "b", label) for text, label in ROWS], header)
        with pytest.raises(InputError) as caught:
            load_splits(path)
        assert message in str(caught.value)
        option = message.rsplit(" ", 1)[1]
        assert caught.value.with_flags().endswith("name it: --" + option.replace("_", "-"))

    @pytest.mark.parametrize(
        "header", [("text", "title", "label"), ("Text", "text", "label"), ("body", "text", "label")]
    )
    def test_text_comes_before_other_names(self, tmp_path, header):
        place = header.index("text")
        rows = [tuple({place: text, 2: label}.get(column, "other") for column in range(3)) for text, label in ROWS]
        assert "other" not in load_splits(write_tsv(tmp_path / "a.tsv", rows, header)).train.first

    def test_the_documentation_lists_them_all(self):
        page = (Path(__file__).parents[2] / "docs" / "reference" / "data.md").read_text()
        names = {name for tier in (*PAIR_COLUMNS, *TEXT_COLUMNS, *LABEL_COLUMNS) for name in tier}
        assert [name for name in sorted(names) if f"`{name}`" not in page] == []

    def test_predictions_need_no_label(self):
        rows = [Row({"Review": "a", "class": "b", "sentiment": "c"}, "row 1")]
        assert find_text_columns(rows) == ("Review", None)


class TestLabels:
    def test_numbers_are_ordered_by_size(self, tmp_path):
        rows = [(f"text {number}", str(number % 12)) for number in range(60)]
        assert list(load_splits(write_tsv(tmp_path / "a.tsv", rows)).label_names) == [str(n) for n in range(12)]

    def test_given_names_define_the_numbers(self, tmp_path):
        splits = load_splits(write_tsv(tmp_path / "a.tsv", ROWS), label_names=["pos", "neg"])
        is_good = [text.startswith(("good", "great")) for text in splits.train.first]
        assert splits.train.labels.tolist() == [0 if good else 1 for good in is_good]

    def test_given_names_may_be_numbers_in_the_data(self, tmp_path):
        rows = repeated([("good", "1"), ("bad", "0")], 10)
        splits = load_splits(write_tsv(tmp_path / "a.tsv", rows), label_names=["neg", "pos"])
        assert list(splits.label_names) == ["neg", "pos"]
        assert splits.train.labels.tolist() == [int(text.startswith("good")) for text in splits.train.first]

    def test_integers_as_floats_are_classes(self, tmp_path):
        rows = [{"text": f"text {number}", "label": float(number % 2)} for number in range(20)]
        splits = load_splits(write_jsonl(tmp_path / "a.jsonl", rows))
        assert (splits.problem_type, list(splits.label_names)) == ("single_label_classification", ["0", "1"])

    def test_lists_are_multi_label(self, tmp_path):
        labels = {"a": ["x"], "b": ["x", "y"], "c": []}
        rows = [{"text": f"{text} {n}", "labels": names} for n in range(10) for text, names in labels.items()]
        splits = load_splits(write_jsonl(tmp_path / "a.jsonl", rows))
        assert splits.problem_type == "multi_label_classification"
        assert splits.metric == "micro_f1"
        expected = {"a": [1, 0], "b": [1, 1], "c": [0, 0]}
        assert all(
            expected[text[0]] == row.tolist() for text, row in zip(splits.train.first, splits.train.labels, strict=True)
        )

    def test_labels_are_separated_by_bars_in_text_files(self, tmp_path):
        rows = repeated([("a", "x"), ("b", "x|y"), ("c", "y")], 10)
        splits = load_splits(write_tsv(tmp_path / "a.tsv", rows), problem_type="multi_label_classification")
        assert list(splits.label_names) == ["x", "y"]
        assert splits.train.labels.sum(axis=1).max() == 2

    @pytest.mark.parametrize("labels", [[0.5, 1.25], ["0.5", "1.25"]])
    def test_fractions_are_regression(self, tmp_path, labels):
        rows = [{"text": f"text {number}", "label": labels[number % 2]} for number in range(20)]
        splits = load_splits(write_jsonl(tmp_path / "a.jsonl", rows))
        assert (splits.problem_type, splits.metric) == ("regression", "r2")
        assert set(splits.train.labels.tolist()) == {0.5, 1.25}


class TestTasks:
    @pytest.mark.parametrize(
        ("folder", "metric"), [("cola", "matthews"), ("MRPC", "accuracy_and_f1"), ("agnews", "accuracy")]
    )
    def test_a_folder_named_like_a_task_is_that_task(self, tmp_path, folder, metric):
        write_tsv(tmp_path / folder / "train.tsv", ROWS)
        assert load_splits(tmp_path / folder).metric == metric

    def test_task_by_name(self, tmp_path):
        assert load_splits(write_tsv(tmp_path / "a.tsv", ROWS), task="cola").metric == "matthews"

    def test_f1_of_class_1_is_for_two_classes(self, tmp_path):
        splits = load_splits(write_tsv(tmp_path / "a.tsv", toy_rows(60)), task="mrpc")
        assert splits.metric == "accuracy"
        assert "the metric is accuracy: accuracy_and_f1 is for two classes, not 3" in splits.notes[-1]

    def test_unknown_task(self, tmp_path):
        with pytest.raises(InputError, match="task 'imdb' is unknown; known tasks: ag_news, cola"):
            load_splits(write_tsv(tmp_path / "a.tsv", ROWS), task="imdb")
