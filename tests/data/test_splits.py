"""Splits, columns and labels from files and folders, and one clear line for what cannot be read."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from exitpoll import InputError, load_splits
from exitpoll.data.tasks import TASKS
from exitpoll.decide.metrics import METRICS
from tests.tiny import toy_rows, write_toy_folder, write_tsv

ROWS = [("good film", "pos"), ("bad film", "neg"), ("great cast", "pos"), ("poor plot", "neg")] * 10


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


class TestFiles:
    def test_folder_with_three_splits(self, tmp_path):
        splits = load_splits(write_toy_folder(tmp_path / "toy"))
        assert (len(splits.train), len(splits.calibration), len(splits.test)) == (96, 24, 24)
        assert list(splits.label_names) == ["bad", "good", "so-so"]
        assert splits.notes == ()
        assert splits.metric == "accuracy"
        assert not splits.is_pairs

    def test_kinds_of_file_give_the_same(self, tmp_path):
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

    def test_quotes_in_tsv_are_letters(self, tmp_path):
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
    def test_one_file_is_cut_in_three_with_every_class_in_proportion(self, tmp_path):
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

    def test_a_seed_cuts_the_same_again(self, tmp_path):
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

    def test_fixed_names_decide_the_numbers(self, tmp_path):
        splits = load_splits(write_tsv(tmp_path / "a.tsv", ROWS), label_names=["pos", "neg"])
        row = list(splits.train.first).index("good film")
        assert splits.train.labels[row] == 0

    def test_fixed_names_may_be_numbered_in_the_data(self, tmp_path):
        rows = [("good", "1"), ("bad", "0")] * 10
        splits = load_splits(write_tsv(tmp_path / "a.tsv", rows), label_names=["neg", "pos"])
        assert list(splits.label_names) == ["neg", "pos"]
        assert splits.train.labels[list(splits.train.first).index("good")] == 1

    def test_whole_numbers_as_floats_are_classes(self, tmp_path):
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

    def test_bars_part_labels_in_text_files(self, tmp_path):
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
    def test_a_folder_stands_in_for_a_task_of_its_name(self, tmp_path, folder, metric):
        write_tsv(tmp_path / folder / "train.tsv", ROWS)
        assert load_splits(tmp_path / folder).metric == metric

    def test_task_by_name(self, tmp_path):
        assert load_splits(write_tsv(tmp_path / "a.tsv", ROWS), task="cola").metric == "matthews"

    def test_f1_of_class_1_is_for_two_classes(self, tmp_path):
        splits = load_splits(write_tsv(tmp_path / "a.tsv", toy_rows(60)), task="mrpc")
        assert splits.metric == "accuracy"
        assert "the score is accuracy" in splits.notes[-1]

    def test_unknown_task(self, tmp_path):
        with pytest.raises(InputError, match="task 'imdb' is unknown; known tasks: ag_news, cola"):
            load_splits(write_tsv(tmp_path / "a.tsv", ROWS), task="imdb")


class TestBadInput:
    def refused(self, message, source, **options):
        with pytest.raises(InputError) as caught:
            load_splits(source, **options)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_missing_file(self, tmp_path):
        self.refused("does not exist", tmp_path / "none.tsv")

    def test_missing_folder(self, tmp_path):
        self.refused("does not exist", tmp_path / "none")

    def test_empty_file(self, tmp_path):
        (tmp_path / "a.tsv").write_text("")
        self.refused("has no rows", tmp_path / "a.tsv")

    def test_header_only(self, tmp_path):
        self.refused("has no rows", write_tsv(tmp_path / "a.tsv", []))

    def test_unknown_kind(self, tmp_path):
        (tmp_path / "a.xlsx").write_text("x")
        self.refused("unknown kind; known kinds: .csv, .tsv, .jsonl, .parquet", tmp_path / "a.xlsx")

    def test_folder_without_train(self, tmp_path):
        write_tsv(tmp_path / "test.tsv", ROWS)
        self.refused("has no train file", tmp_path)

    def test_missing_column(self, tmp_path):
        path = write_tsv(tmp_path / "a.tsv", ROWS)
        self.refused("no column 'review'; the columns are: text, label", path, text_column="review")

    def test_no_text_column(self, tmp_path):
        self.refused("no text column among body, label", write_tsv(tmp_path / "a.tsv", ROWS, ("body", "label")))

    def test_no_label_column(self, tmp_path):
        self.refused("no labels found", write_tsv(tmp_path / "a.tsv", ROWS, ("text", "stars")))

    def test_one_class_only(self, tmp_path):
        self.refused("every label is 'pos'; two classes", write_tsv(tmp_path / "a.tsv", [("good", "pos")] * 20))

    def test_label_never_seen_in_train(self, tmp_path):
        write_tsv(tmp_path / "train.tsv", ROWS)
        write_tsv(tmp_path / "test.tsv", [*ROWS[:3], ("odd", "maybe")])
        self.refused("test.tsv line 5: label 'maybe' is not among the known labels: neg, pos", tmp_path)

    @pytest.mark.parametrize("text", ["", "   "])
    def test_empty_text(self, tmp_path, text):
        path = write_tsv(tmp_path / "a.tsv", [*ROWS, (text, "pos")])
        self.refused("line 42: the text in column 'text' is empty", path)

    @pytest.mark.parametrize("text", [None, 3, ["a"]])
    def test_no_text(self, tmp_path, text):
        rows = [{"text": "a", "label": 1}, {"text": text, "label": 0}]
        self.refused("line 2: the text in column 'text' is empty or no text", write_jsonl(tmp_path / "a.jsonl", rows))

    @pytest.mark.parametrize("row", ['{"text": "\\ud800", "label": 0}', '{"text": "b", "label": "\\ud800"}'])
    def test_half_a_character(self, tmp_path, row):
        (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 1}\n' + row + "\n")
        self.refused("line 2: half a character, '\\ud800', stands alone", tmp_path / "a.jsonl")

    def test_two_columns_of_one_name(self, tmp_path):
        path = write_tsv(tmp_path / "a.tsv", [("a", "b", "1")], ("text", "text", "label"))
        self.refused("two columns are named 'text'", path)

    def test_one_column_for_two_things(self, tmp_path):
        path = write_tsv(tmp_path / "a.tsv", ROWS)
        self.refused("column 'text' is named twice", path, text_column="text", label_column="text")

    @pytest.mark.parametrize("other", ["train.csv", "train-old.tsv"])
    def test_two_train_files(self, tmp_path, other):
        write_tsv(tmp_path / "train.tsv", ROWS)
        write_tsv(tmp_path / other, ROWS)
        if other == "train.csv":
            self.refused("more than one train file: train.csv, train.tsv", tmp_path)
        else:
            assert len(load_splits(tmp_path).train) < len(ROWS)

    def test_neither_a_file_nor_a_folder(self):
        self.refused("neither a file nor a folder", "/dev/null")

    def test_nearly_as_many_classes_as_texts(self, tmp_path):
        path = write_tsv(tmp_path / "a.tsv", [(f"text {number}", f"id {number}") for number in range(40)])
        self.refused("40 classes for 40 texts; is it the label column?", path)

    def test_odd_digits_are_names(self, tmp_path):
        rows = [("a", "²"), ("b", "3"), ("c", "9" * 5000)] * 10
        assert len(load_splits(write_tsv(tmp_path / "a.tsv", rows)).label_names) == 3

    def test_flags_in_place_of_names(self, tmp_path):
        rows = [{"text": "a", "label": [0, 1, 0]}, {"text": "b", "label": [1, 0, 0]}] * 10
        self.refused("names a class twice; list the names", write_jsonl(tmp_path / "a.jsonl", rows))

    def test_constant_values(self, tmp_path):
        rows = [("a", "1.5"), ("b", "1.5")] * 10
        self.refused("all have one label", write_tsv(tmp_path / "a.tsv", rows), problem_type="regression")

    def test_values_too_large_to_train_on(self, tmp_path):
        rows = [("a", "1.5"), ("b", "1e300")] * 10
        self.refused("label '1e300' is not a number", write_tsv(tmp_path / "a.tsv", rows), problem_type="regression")

    def test_a_draw_of_one_class(self, tmp_path):
        self.refused("all have one label", write_tsv(tmp_path / "a.tsv", ROWS), limit=1)

    def test_invalid_utf8(self, tmp_path):
        (tmp_path / "a.tsv").write_bytes(b"text\tlabel\ngood\t1\nbad \xff\xfe\t0\n")
        self.refused("line 3: invalid UTF-8", tmp_path / "a.tsv")

    def test_utf16(self, tmp_path):
        (tmp_path / "a.tsv").write_text("text\tlabel\ngood\t1\n", encoding="utf-16-le")
        self.refused("NUL byte", tmp_path / "a.tsv")

    def test_wrong_number_of_fields(self, tmp_path):
        (tmp_path / "a.tsv").write_text("text\tlabel\ngood\t1\nbad\tfilm\t0\n")
        self.refused("line 3: 3 fields where the header has 2", tmp_path / "a.tsv")

    def test_broken_csv(self, tmp_path):
        (tmp_path / "a.csv").write_text('text,label\n"never closed,1\n')
        self.refused("a.csv line", tmp_path / "a.csv")

    @pytest.mark.parametrize(
        ("line", "message"), [("{oops", "not JSON"), ("[1]", "expected an object"), ("[" * 100_000, "not JSON")]
    )
    def test_broken_jsonl(self, tmp_path, line, message):
        (tmp_path / "a.jsonl").write_text(line + "\n")
        self.refused(message, tmp_path / "a.jsonl")

    def test_broken_parquet(self, tmp_path):
        pytest.importorskip("pyarrow")
        (tmp_path / "a.parquet").write_text("not parquet")
        self.refused("a.parquet' cannot be read as Parquet", tmp_path / "a.parquet")

    @pytest.mark.parametrize("row", [{"text": "a", "label": None}, {"text": "a"}, {"text": "a", "label": " "}])
    def test_missing_label(self, tmp_path, row):
        rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}, row]
        self.refused("line 3: the label in column 'label' is missing", write_jsonl(tmp_path / "a.jsonl", rows))

    def test_a_list_among_single_labels(self, tmp_path):
        rows = [{"text": "a", "label": "x"}, {"text": "b", "label": {"y": 1}}]
        self.refused("line 2: label {'y': 1} must be one name or number", write_jsonl(tmp_path / "a.jsonl", rows))

    def test_a_single_label_among_lists(self, tmp_path):
        rows = [{"text": "a", "label": ["x"]}, {"text": "b", "label": 3}]
        self.refused("line 2: label 3 must be a list of names", write_jsonl(tmp_path / "a.jsonl", rows))

    def test_a_test_split_without_the_text_columns_of_train(self, tmp_path):
        write_tsv(tmp_path / "train.tsv", toy_rows(20, pairs=True), ("text_a", "text_b", "label"))
        write_tsv(tmp_path / "test.tsv", toy_rows(20))
        self.refused("no column 'text_a'; the columns are: text, label", tmp_path)

    def test_regression_needs_numbers(self, tmp_path):
        path = write_tsv(tmp_path / "a.tsv", ROWS)
        self.refused("label 'pos' is not a number", path, problem_type="regression")

    def test_too_few_texts(self, tmp_path):
        write_tsv(tmp_path / "train.tsv", ROWS[:1])
        self.refused("two classes are needed", tmp_path)

    def test_limit_below_one(self, tmp_path):
        self.refused("limit 0 must be at least 1", write_tsv(tmp_path / "a.tsv", ROWS), limit=0)

    @pytest.mark.parametrize(("package", "source"), [("pyarrow", "a.parquet"), ("datasets", "stanfordnlp/imdb")])
    def test_missing_extras_are_named(self, tmp_path, monkeypatch, package, source):
        monkeypatch.setitem(sys.modules, package, None)
        (tmp_path / "a.parquet").touch()
        path = tmp_path / source if source.endswith("parquet") else source
        self.refused("pip install 'exitpoll[data]'", path)


class TestHub:
    """The hub's client is real; only the download is replaced by a dataset made here."""

    @pytest.fixture
    def hub(self, monkeypatch):
        datasets = pytest.importorskip("datasets")
        asked = []

        def offer(*, secret=False, **columns):
            features = None
            if "names" in columns:
                names = columns.pop("names")
                features = datasets.Features(
                    {name: datasets.Value("string") for name in columns if name != "label"}
                    | {"label": datasets.ClassLabel(names=names)}
                )
            dataset = datasets.Dataset.from_dict(columns, features=features)
            splits = ("train", "validation", "validation_matched", "test")
            served = datasets.DatasetDict(dict.fromkeys(splits, dataset))
            if secret:  # as GLUE does
                hidden = {**columns, "label": [-1] * len(columns["label"])}
                served["test"] = datasets.Dataset.from_dict(hidden, features=features)

            def load(path, name=None):
                asked.append((path, name))
                return served

            monkeypatch.setattr(datasets, "load_dataset", load)

        offer.asked = asked
        return offer

    def test_class_numbers_become_names(self, hub):
        hub(text=["a", "b", "c", "d"], label=[0, 1, 1, 0], names=["World", "Sports"])
        splits = load_splits("ag_news")
        assert hub.asked == [("fancyzhx/ag_news", None)]
        assert list(splits.label_names) == ["World", "Sports"]  # the hub's order, not the alphabet's

    def test_f1_is_of_the_class_that_the_hub_numbers_1(self, hub):
        columns = {"sentence1": ["a"] * 8, "sentence2": ["b"] * 8}
        hub(**columns, label=[1, 1, 1, 0] * 2, names=["not_equivalent", "equivalent"])
        splits = load_splits("mrpc")
        assert list(splits.label_names) == ["not_equivalent", "equivalent"]
        always_yes = METRICS[splits.metric](splits.test.labels, np.ones(8))
        assert always_yes == pytest.approx((0.75 + 2 * 0.75 / 1.75) / 2)

    def test_a_test_split_whose_labels_are_kept_secret(self, hub):
        hub(sentence=list("abcdefgh"), label=[1, 0] * 4, names=["no", "yes"], secret=True)
        splits = load_splits("sst2")
        assert "the dev split is the test split: there is no labelled test split" in splits.notes
        assert splits.unlabelled.labels is None
        assert list(splits.unlabelled.first) == list("abcdefgh")
        hub(sentence=list("abcdefgh"), label=[1, 0] * 4, names=["no", "yes"])
        assert load_splits("sst2").unlabelled is None

    def test_texts_without_a_label_are_left_out_and_counted(self, hub):
        hub(text=list("abcd"), label=[0, 1, -1, 0], names=["no", "yes"])
        splits = load_splits("some/thing")
        assert len(splits.test) == 3
        assert "1 texts of some/thing train have no label and were left out" in splits.notes

    @pytest.mark.parametrize(("name", "task"), [("someone/mrpc", None), ("my/own", "mrpc")])
    def test_a_dataset_by_its_full_name_is_that_dataset(self, hub, name, task):
        hub(text=list("abcd"), label=[0, 1, 1, 0], names=["no", "yes"])
        splits = load_splits(name, task=task)
        assert hub.asked == [(name, None)]
        assert splits.metric == ("accuracy" if task is None else "accuracy_and_f1")

    @pytest.mark.parametrize("task", sorted(TASKS))
    def test_every_known_task_finds_its_columns(self, hub, task):
        known = TASKS[task]
        columns = {name: [f"{name} {row}" for row in range(4)] for name in known.columns}
        hub(**columns, **{known.label: ["0", "1", "0", "1"]}, idx=["0", "1", "2", "3"])
        splits = load_splits(task)
        assert splits.is_pairs == (len(known.columns) == 2)
        assert splits.test.first[0] == f"{known.columns[0]} 0"
        assert splits.metric == known.metric

    def test_trec_reads_the_coarse_labels(self, hub):
        hub(text=["a", "b"] * 4, label=["17", "3"] * 4, label_coarse_original=["NUM", "LOC"] * 4)
        assert list(load_splits("trec").label_names) == ["LOC", "NUM"]

    def test_any_dataset_by_its_hub_name(self, hub):
        hub(text=["a", "b"] * 4, label=[0, 1] * 4, names=["neg", "pos"])
        assert len(load_splits("stanfordnlp/imdb").test) == 8

    def test_what_the_hub_does_not_give_is_one_line(self, monkeypatch):
        datasets = pytest.importorskip("datasets")

        def fail(*_):
            raise ConnectionError("no route\nto the hub")

        monkeypatch.setattr(datasets, "load_dataset", fail)
        with pytest.raises(
            InputError,
            match="'no/such' is no local file or folder, and the hub did not give it: ConnectionError: no route",
        ):
            load_splits("no/such")

    def test_no_train_split(self, monkeypatch):
        datasets = pytest.importorskip("datasets")
        monkeypatch.setattr(datasets, "load_dataset", lambda *_: {"test": []})
        with pytest.raises(InputError, match="no train split; its splits are: test"):
            load_splits("some/thing")
