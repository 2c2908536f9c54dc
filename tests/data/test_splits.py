"""Splits, columns and labels from files and folders."""

from __future__ import annotations

import numpy as np
import pytest

from exitpoll import InputError, load_splits
from tests.tiny import toy_rows, write_jsonl, write_toy_folder, write_tsv

ROWS = [("good film", "pos"), ("bad film", "neg"), ("great cast", "pos"), ("poor plot", "neg")] * 10


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
        rows = [('" good', "1"), ('bad "', "0")] * 10
        assert '" good' in load_splits(write_tsv(tmp_path / "a.tsv", rows)).train.first

    def test_csv_fields_may_hold_line_breaks(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_text("text,label\n" + '"two\nlines",1\n"one",0\n' * 10)
        assert "two\nlines" in load_splits(path).train.first

    def test_byte_order_mark_is_not_part_of_a_name(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_bytes("text,label\n".encode("utf-8-sig") + b"good,1\nbad,0\n" * 10)
        assert list(load_splits(path).label_names) == ["0", "1"]

    def test_blank_lines_and_capitals_do_not_matter(self, tmp_path):
        body = "".join(f"{text}\t{label}\n" for text, label in ROWS)
        (tmp_path / "TRAIN.TSV").write_text(f"\n \ntext\tlabel\n{body}  \n")
        assert list(load_splits(tmp_path).label_names) == ["neg", "pos"]

    def test_spaces_around_labels_and_column_names_do_not_matter(self, tmp_path):
        (tmp_path / "a.csv").write_text("text, label\n" + "good, pos\nbad,neg\nfine,pos \n" * 10)
        assert list(load_splits(tmp_path / "a.csv").label_names) == ["neg", "pos"]

    def test_shards_are_joined(self, tmp_path):
        write_tsv(tmp_path / "train-00000-of-00002.tsv", ROWS[:20])
        write_tsv(tmp_path / "train-00001-of-00002.tsv", ROWS[20:])
        splits = load_splits(tmp_path)
        assert len(splits.train) + len(splits.calibration) + len(splits.test) == len(ROWS)

    @pytest.mark.parametrize("name", ["dev", "validation", "valid", "val", "calibration"])
    def test_names_of_the_dev_split(self, tmp_path, name):
        for stem in ("train", name, "test"):
            write_tsv(tmp_path / f"{stem}.tsv", ROWS)
        assert load_splits(tmp_path).notes == ()


class TestSplits:
    def test_one_file_is_cut_in_three_stratified_splits(self, tmp_path):
        splits = load_splits(write_tsv(tmp_path / "a.tsv", ROWS * 10))
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


class TestLabels:
    def test_numbers_are_ordered_by_size(self, tmp_path):
        rows = [(f"text {number}", str(number % 12)) for number in range(60)]
        assert list(load_splits(write_tsv(tmp_path / "a.tsv", rows)).label_names) == [str(n) for n in range(12)]

    def test_given_names_define_the_numbers(self, tmp_path):
        splits = load_splits(write_tsv(tmp_path / "a.tsv", ROWS), label_names=["pos", "neg"])
        row = list(splits.train.first).index("good film")
        assert splits.train.labels[row] == 0

    def test_given_names_may_be_numbers_in_the_data(self, tmp_path):
        rows = [("good", "1"), ("bad", "0")] * 10
        splits = load_splits(write_tsv(tmp_path / "a.tsv", rows), label_names=["neg", "pos"])
        assert list(splits.label_names) == ["neg", "pos"]
        assert splits.train.labels[list(splits.train.first).index("good")] == 1

    def test_integers_as_floats_are_classes(self, tmp_path):
        rows = [{"text": "a", "label": 0.0}, {"text": "b", "label": 1.0}] * 10
        splits = load_splits(write_jsonl(tmp_path / "a.jsonl", rows))
        assert (splits.problem_type, list(splits.label_names)) == ("single_label_classification", ["0", "1"])

    def test_lists_are_multi_label(self, tmp_path):
        rows = [{"text": "a", "labels": ["x"]}, {"text": "b", "labels": ["x", "y"]}, {"text": "c", "labels": []}] * 10
        splits = load_splits(write_jsonl(tmp_path / "a.jsonl", rows))
        assert splits.problem_type == "multi_label_classification"
        assert splits.metric == "micro_f1"
        expected = {"a": [1, 0], "b": [1, 1], "c": [0, 0]}
        assert all(
            expected[text] == row.tolist() for text, row in zip(splits.train.first, splits.train.labels, strict=True)
        )

    def test_labels_are_separated_by_bars_in_text_files(self, tmp_path):
        rows = [("a", "x"), ("b", "x|y"), ("c", "y")] * 10
        splits = load_splits(write_tsv(tmp_path / "a.tsv", rows), problem_type="multi_label_classification")
        assert list(splits.label_names) == ["x", "y"]
        assert splits.train.labels.sum(axis=1).max() == 2

    @pytest.mark.parametrize("labels", [[0.5, 1.25], ["0.5", "1.25"]])
    def test_fractions_are_regression(self, tmp_path, labels):
        rows = [{"text": "a", "label": labels[0]}, {"text": "b", "label": labels[1]}] * 10
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
