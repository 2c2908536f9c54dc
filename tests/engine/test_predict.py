"""Prediction of files: every row once and in order, also after an interruption."""

from __future__ import annotations

import csv
import io
import json
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from pyarrow import Table, output_stream, parquet

from exitpoll import Engine, InputError, Policy, Texts, calibrate, record
from exitpoll.data import readers, writers
from exitpoll.engine import jobs, predict
from exitpoll.engine.predict import predict_file, predict_lines
from tests.tiny import toy_rows, write_tsv

ROWS = toy_rows(50)


@pytest.fixture(scope="module")
def engine(model_folder):
    return Engine.load(model_folder, policy=Policy("max_prob", 0.36))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(predict, "BLOCK", 8)
    monkeypatch.setattr(writers, "PARQUET_ROWS", 8)


@pytest.fixture
def source(tmp_path):
    return write_tsv(tmp_path / "in.tsv", ROWS)


def rows_of(path):
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".tsv":
        return list(csv.DictReader(path.open(), delimiter="\t", quoting=csv.QUOTE_NONE))
    return list(csv.DictReader(path.open()))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_every_row_is_written_with_its_prediction(engine, source, tmp_path, kind):
    seen = []
    done = predict_file(engine, source, tmp_path / f"out.{kind}", on_progress=seen.append)
    rows = rows_of(tmp_path / f"out.{kind}")
    expected = engine([row[0] for row in ROWS])
    assert [row["text"] for row in rows] == [row[0] for row in ROWS]
    assert [row["label"] for row in rows] == [row[1] for row in ROWS]
    assert [row["predicted"] for row in rows] == [prediction.label for prediction in expected]
    assert [int(row["depth"]) for row in rows] == [prediction.depth for prediction in expected]
    assert [float(row["probability"]) for row in rows] == [round(prediction.probability, 6) for prediction in expected]
    assert done.rows == 50
    assert done.mean_depth == pytest.approx(np.mean([prediction.depth for prediction in expected]))
    assert [progress.done for progress in seen] == [8, 16, 24, 32, 40, 48, 50]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.tsv", f"out.{kind}"]


def test_parquet_and_pairs(engine, tmp_path):
    pairs, engine = toy_rows(12, pairs=True), Engine(replace(engine.model, training={"pairs": True}), engine.policy)
    columns = dict(zip(("text_a", "text_b", "label"), map(list, zip(*pairs, strict=True)), strict=True))
    parquet.write_table(Table.from_pydict(columns), tmp_path / "in.parquet")
    predict_file(engine, tmp_path / "in.parquet", tmp_path / "out.jsonl")
    expected = engine([row[:2] for row in pairs])
    predicted = [row["predicted"] for row in rows_of(tmp_path / "out.jsonl")]
    assert predicted == [prediction.label for prediction in expected]


def test_parquet_takes_types_that_change_and_columns_that_are_added(engine, tmp_path):
    rows = [{"text": "good film", "year": None, "id": 1}] * 9
    rows.append({"text": "bad film", "year": 1999, "tags": ["a"], "id": "b"})
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    predict_file(engine, tmp_path / "in.jsonl", tmp_path / "out.parquet")
    written = rows_of(tmp_path / "out.parquet")
    assert [row["year"] for row in written] == [None] * 9 + [1999]
    assert written[-1]["tags"] == ["a"]
    assert [row["id"] for row in written] == ["1"] * 9 + ["b"]
    assert written[0]["predicted"] == engine(["good film"])[0].label


def test_a_parquet_file_is_read_in_parts(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "PARQUET_ROWS", 4)
    parquet.write_table(Table.from_pydict({"text": [row[0] for row in ROWS]}), tmp_path / "in.parquet")
    predict_file(engine, tmp_path / "in.parquet", tmp_path / "out.jsonl")
    assert [row["text"] for row in rows_of(tmp_path / "out.jsonl")] == [row[0] for row in ROWS]


def test_the_columns_of_a_csv_file_are_those_of_the_first_rows(engine, tmp_path):
    rows = [{"text": "good film", "id": 1}, *[{"id": number, "text": "bad film"} for number in range(2, 12)]]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    predict_file(engine, tmp_path / "in.jsonl", tmp_path / "out.csv")
    assert [row["id"] for row in rows_of(tmp_path / "out.csv")] == [str(number) for number in range(1, 12)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"text": "film", "late": 1}])))
    with pytest.raises(InputError, match="line 12: the first rows have no column 'late'; only"):
        predict_file(engine, tmp_path / "in.jsonl", tmp_path / "late.csv")


def test_parquet_writes_values_without_a_type_as_text(engine, tmp_path):
    rows = [{"text": "good film", "large": 2**70, "nothing": {}, "within": [{}]}]
    (tmp_path / "in.jsonl").write_text(json.dumps(rows[0]))
    predict_file(engine, tmp_path / "in.jsonl", tmp_path / "out.parquet")
    [row] = rows_of(tmp_path / "out.parquet")
    assert (row["large"], row["nothing"], row["within"]) == (str(2**70), "{}", "[{}]")


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("torn", [b"", b"half a li"])
def test_a_killed_job_resumes_without_a_lost_or_duplicated_row(engine, source, tmp_path, kind, after, torn):
    out, whole = tmp_path / f"out.{kind}", tmp_path / f"whole.{kind}"

    def kill(progress):
        if progress.done >= 8 * after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_file(engine, source, out, on_progress=kill)
    assert not out.exists()
    with (tmp_path / f"out.{kind}.partial").open("ab") as file:
        file.write(torn)  # a block that was being written
    with pytest.raises(InputError, match="is an interrupted job; use resume to continue it"):
        predict_file(engine, source, out)
    done = predict_file(engine, source, out, resume=True)
    predict_file(engine, source, whole)
    assert out.read_bytes() == whole.read_bytes()
    assert done.rows == 50
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.tsv", out.name, whole.name]


def test_a_job_killed_before_its_first_block_resumes(engine, source, tmp_path, monkeypatch):
    """As a killed process leaves it, without cleaning up."""

    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(jobs.Job, "count", kill)
        patched.setattr(jobs.Job, "removed_if_empty", lambda _: nullcontext())
        with pytest.raises(KeyboardInterrupt):
            predict_file(engine, source, tmp_path / "out.csv")
    assert (tmp_path / "out.csv.partial").stat().st_size > 0
    predict_file(engine, source, tmp_path / "out.csv", resume=True)
    predict_file(engine, source, tmp_path / "whole.csv")
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_rows_with_nan_logits_are_counted(engine, source, tmp_path, monkeypatch):
    def with_nan(state, exit_number, rows=None, logits_at=engine.runtime.logits_at):
        logits = np.array(logits_at(state, exit_number, rows))
        logits[0] = np.nan
        return logits

    monkeypatch.setattr(engine.runtime, "logits_at", with_nan)
    assert predict_file(engine, source, tmp_path / "out.jsonl", batch_size=50).broken > 0
    monkeypatch.undo()
    assert predict_file(engine, source, tmp_path / "whole.jsonl").broken == 0


def test_another_job_is_not_resumed(engine, source, tmp_path):
    def kill(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_file(engine, source, tmp_path / "out.csv", about={"model": "a"}, on_progress=kill)
    for other in ({"about": {"model": "b"}}, {"about": {"model": "a"}, "text_column": "label"}):
        with pytest.raises(InputError, match="was started with another input, model, policy or on_error"):
            predict_file(engine, source, tmp_path / "out.csv", **other, resume=True)


def test_an_older_job_leaves_nothing_in_a_new_one(engine, source, tmp_path):
    out = tmp_path / "out.csv"

    def kill(progress):
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            predict_file(engine, source, out, on_progress=kill)
        (tmp_path / "out.csv.partial").unlink()  # as the message says
    predict_file(engine, source, out)
    assert len(rows_of(out)) == 50
    with pytest.raises(KeyboardInterrupt):
        predict_file(engine, source, tmp_path / "cut.csv", on_progress=kill)
    (tmp_path / "cut.csv.partial").write_bytes(b"")
    with pytest.raises(InputError, match="is shorter than when it was interrupted; remove it and start again"):
        predict_file(engine, source, tmp_path / "cut.csv", resume=True)


def test_other_files_are_not_touched(engine, source, tmp_path):
    (tmp_path / "out.csv.partial").write_text("mine")
    for resume in (False, True):
        with pytest.raises(InputError, match="exists and is not an interrupted job of exitpoll"):
            predict_file(engine, source, tmp_path / "out.csv", resume=resume)
    assert (tmp_path / "out.csv.partial").read_text() == "mine"


def test_a_refused_job_leaves_nothing_behind(engine, source, tmp_path):
    for wrong in ({"text_column": "nope"}, {"batch_size": 0}):
        with pytest.raises(InputError):
            predict_file(engine, source, tmp_path / "out.csv", **wrong)
    assert [path.name for path in tmp_path.iterdir()] == ["in.tsv"]


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_the_output_can_be_read_again(engine, tmp_path, kind):
    rows = [{"text": 'say "hi" '}, {"text": "a\rb"}, {"text": "a\tb\nc"}, {"text": "x", "when": {"day": "1"}}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    predict_file(engine, tmp_path / "in.jsonl", tmp_path / f"out.{kind}")
    written = readers.read_file(tmp_path / f"out.{kind}")
    assert len(written) == 4
    assert written[0].values["text"] == rows[0]["text"]
    assert written[3].values["when"] == '{"day": "1"}'


class TestErrors:
    @pytest.fixture
    def broken(self, tmp_path):
        lines = [json.dumps({"text": text}) for text in ("good film", "", "bad film", None, "fine")]
        (tmp_path / "in.jsonl").write_text("\n".join(lines))
        return tmp_path / "in.jsonl"

    def test_stop_names_the_row(self, engine, broken, tmp_path):
        with pytest.raises(InputError, match=r"in.jsonl line 2 is empty, or neither a text nor a pair"):
            predict_file(engine, broken, tmp_path / "out.jsonl")

    def test_skip_predicts_the_rest(self, engine, broken, tmp_path):
        done = predict_file(engine, broken, tmp_path / "out.jsonl", on_error="skip")
        rows = rows_of(tmp_path / "out.jsonl")
        assert (done.rows, done.skipped) == (5, 2)
        assert [row["predicted"] is None for row in rows] == [False, True, False, True, False]
        assert "line 4 is empty" in rows[3]["error"]
        assert rows[0]["error"] is None

    def test_skip_cannot_go_past_everything(self, engine, tmp_path):
        (tmp_path / "in.jsonl").write_text("[1]\n[2]\n")
        with pytest.raises(
            InputError, match=r"none of the first 2 rows can be read; .* line 1: expected a JSON object"
        ):
            predict_file(engine, tmp_path / "in.jsonl", tmp_path / "out.jsonl", on_error="skip")

    @pytest.mark.parametrize(
        ("name", "content", "problem"),
        [
            ("in.jsonl", b'{"text": "good"}\n{"text": "\\ud800"}\n[1]\n{"te\n{"text": "bad"}\n', "half a character"),
            (
                "in.jsonl",
                b'{"text": "good"}\n{"text": "\xff"}\n{"text": "a\0b"}\n1\n{"text": "bad"}\n',
                "invalid UTF-8",
            ),
            ("in.csv", b"text,id\ngood,1\nragged\n\xff,2\na\0b,3\nbad,4\n", "1 fields where the header has 2"),
        ],
    )
    def test_skip_skips_rows_that_cannot_be_read(self, engine, tmp_path, name, content, problem):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=problem):
            predict_file(engine, tmp_path / name, tmp_path / "out.jsonl")
        done = predict_file(engine, tmp_path / name, tmp_path / "skipped.jsonl", on_error="skip")
        rows = rows_of(tmp_path / "skipped.jsonl")
        assert (done.rows, done.skipped) == (5, 3)
        assert [row["predicted"] is None for row in rows] == [False, True, True, True, False]
        assert problem in rows[1]["error"]

    @pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
    def test_no_row_behind_an_unclosed_quote_is_lost(self, engine, tmp_path, kind):
        good = [f"{number},{text}" for number, (text, _) in enumerate(ROWS)]
        lines = ["id,text", *good[:30], '30,"never closed', *good[30:], "last"]
        (tmp_path / "in.csv").write_text("\n".join(lines))
        with pytest.raises(InputError, match=r"in.csv line 32: the quotation mark that opens in line 32 is not closed"):
            predict_file(engine, tmp_path / "in.csv", tmp_path / "stopped.csv")
        out = tmp_path / f"out.{kind}"

        def kill(progress):
            if progress.done == 32:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            predict_file(engine, tmp_path / "in.csv", out, on_error="skip", on_progress=kill)
        done = predict_file(engine, tmp_path / "in.csv", out, on_error="skip", resume=True)
        rows = rows_of(out)
        assert (done.rows, done.skipped, len(rows)) == (52, 2, 52)
        assert [row["id"] for row in rows if row["predicted"]] == [str(number) for number in range(len(ROWS))]
        assert (rows[30]["id"], rows[30]["text"]) == ("30", '"never closed')  # as far as it can be read
        assert (rows[51]["id"], rows[51]["text"] or None) == ("last", None)
        assert "opens in line 32" in rows[30]["error"]

    def test_skipped_rows_keep_their_cells(self, engine, tmp_path):
        rows = [b'{"id": 1, "text": "good"}', b'{"id": 2, "text": "\\ud800"}', b'{"id": 3, "text": "\xff", "late": 1}']
        (tmp_path / "in.jsonl").write_bytes(b"\n".join(rows))
        predict_file(engine, tmp_path / "in.jsonl", tmp_path / "out.csv", on_error="skip")
        predict_file(engine, tmp_path / "in.jsonl", tmp_path / "out.jsonl", on_error="skip")
        assert [row["id"] for row in rows_of(tmp_path / "out.csv")] == ["1", "2", "3"]
        assert [row["text"] for row in rows_of(tmp_path / "out.jsonl")] == ["good", "?", "\ufffd"]

    def test_two_columns_of_one_name(self, engine, tmp_path):
        table = Table.from_arrays([["good"], ["bad"]], names=["text", "text"])
        parquet.write_table(table, tmp_path / "in.parquet")
        with pytest.raises(InputError, match="two columns are named 'text'"):
            predict_file(engine, tmp_path / "in.parquet", tmp_path / "out.jsonl")

    def test_lines(self, engine):
        with pytest.raises(InputError, match="line 2 holds half of a surrogate pair"):
            list(predict_lines(engine, ["good film", "a\udcff"]))
        rows = [json.loads(line) for line in predict_lines(engine, ["good", "\udcff", "bad"], 2, on_error="skip")]
        assert [row["predicted"] is None for row in rows] == [False, True, False]
        with pytest.raises(InputError, match="batch_size 0 must be an integer, at least 1"):
            list(predict_lines(engine, ["good film"], 0))

    def test_columns_that_predictions_need(self, engine, tmp_path):
        write_tsv(tmp_path / "in.tsv", [("good", "1")], ("text", "depth"))
        with pytest.raises(InputError, match="there is a column 'depth' already"):
            predict_file(engine, tmp_path / "in.tsv", tmp_path / "out.tsv")

    @pytest.mark.parametrize(
        ("source", "out", "message"),
        [
            ("none.csv", "out.csv", "does not exist"),
            ("in.xlsx", "out.csv", "is of an unknown kind; known kinds: .csv, .tsv, .jsonl, .json, .txt, .parquet"),
            ("in.tsv", "out.txt", "is of an unknown kind; known kinds: .csv, .tsv, .jsonl"),
            ("empty.tsv", "out.csv", "has no rows"),
        ],
    )
    def test_files(self, engine, source, out, message, tmp_path):
        write_tsv(tmp_path / "in.tsv", ROWS)
        write_tsv(tmp_path / "empty.tsv", [])
        with pytest.raises(InputError, match=message):
            predict_file(engine, tmp_path / source, tmp_path / out)
        assert not (tmp_path / out).exists()

    def test_the_input_cannot_be_the_output(self, engine, tmp_path):
        path = tmp_path / "in.tsv"
        write_tsv(path, ROWS)
        before = path.read_text()
        with pytest.raises(InputError, match="is the input; choose another output"):
            predict_file(engine, path, tmp_path / "." / "in.tsv")
        assert path.read_text() == before


@pytest.fixture(scope="module")
def calibrated(engine, tmp_path_factory):
    texts = Texts([row[0] for row in toy_rows(400, 11)])
    trace = record(engine.model, texts, tmp_path_factory.mktemp("shift") / "trace")
    return Engine(engine.model, calibrate(trace, "max_prob", speedup=1.2))


class TestShift:
    """Texts that differ from those that the policy was calibrated on."""

    def notes(self, engine, tmp_path, texts):
        write_tsv(tmp_path / "in.tsv", [(text,) for text in texts], ("text",))
        return predict_file(engine, tmp_path / "in.tsv", tmp_path / "out.csv").notes

    def test_texts_like_those_of_the_calibration(self, calibrated, tmp_path):
        assert self.notes(calibrated, tmp_path, [row[0] for row in toy_rows(400, 12)]) == ()

    def test_longer_texts(self, calibrated, tmp_path):
        [note] = self.notes(calibrated, tmp_path, [f"{row[0]} {row[0]}" for row in toy_rows(400, 12)])
        assert note.startswith("these 400 texts differ from the calibration texts in ")
        assert "length (mean " in note

    def test_without_a_calibration_nothing_is_known(self, engine, tmp_path):
        assert self.notes(engine, tmp_path, ["good film"] * 400) == ()


def test_lines(engine):
    rows = [json.loads(line) for line in predict_lines(engine, io.StringIO("good film\n\nbad film\n"))]
    assert [row["text"] for row in rows] == ["good film", "bad film"]
    assert rows[0]["predicted"] == engine(["good film"])[0].label


class TestJsonLines:
    def predicted(self, engine, *lines, **options):
        return [json.loads(line) for line in predict_lines(engine, [line + "\n" for line in lines], **options)]

    def test_objects_are_rows(self, engine):
        objects = ['{"id": 1, "Text": "good film"}', "", '{"id": 2, "Text": "bad film"}']
        rows = self.predicted(engine, *objects)
        assert [row["id"] for row in rows] == [1, 2]
        expected = engine(["good film", "bad film"])
        assert [row["predicted"] for row in rows] == [prediction.label for prediction in expected]
        assert [row["predicted"] for row in self.predicted(engine, *objects, text_column="text")] == [
            prediction.label for prediction in expected
        ]

    def test_pairs(self, engine):
        pairs = Engine(replace(engine.model, training={"pairs": True}), engine.policy)
        [row] = self.predicted(pairs, '{"a": "good film", "b": "fine"}', text_column="a", pair_column="b")
        assert row["predicted"] == pairs([("good film", "fine")])[0].label

    def test_the_first_line_decides(self, engine):
        lines = ["{good} film", '{"text": "bad film"}', "[1]"]
        assert [row["text"] for row in self.predicted(engine, *lines)] == lines
        with pytest.raises(InputError, match="line 2: not JSON"):
            self.predicted(engine, '{"text": "bad film"}', "good film")
        rows = self.predicted(engine, '{"text": "bad film"}', "good film", '{"text": "a\udcff"}', on_error="skip")
        assert [row["predicted"] is None for row in rows] == [False, True, True]
        assert rows[2]["text"] == "a?"

    def test_a_field_without_a_usual_name_is_asked_for(self, engine):
        with pytest.raises(InputError, match="line 1: no text column among words; name it: text_column"):
            self.predicted(engine, '{"words": "bad film"}')


@pytest.mark.parametrize("kind", ["csv", "json", "txt.gz", "tsv.zst"])
def test_other_kinds_of_files(engine, tmp_path, kind):
    texts = [text for text, _ in ROWS]
    tables = {"csv": "id;text\n" + "".join(f"1;{text}\n" for text in texts), "json": json.dumps({"text": texts})}
    tables |= {"txt.gz": "\n".join(texts), "tsv.zst": "\n".join(["text", *texts])}
    path = tmp_path / f"in.{kind}"
    with output_stream(path, compression="detect") as file:
        file.write(tables[kind].encode())
    done = predict_file(engine, path, tmp_path / "out.jsonl")
    assert [row["text"] for row in rows_of(tmp_path / "out.jsonl")] == texts
    assert done.notes == (("'in.csv' is read as separated by semicolons, as its header",) if kind == "csv" else ())


def test_the_verb(run, model_folder, source, tmp_path, monkeypatch):
    out = tmp_path / "out.csv"
    code, printed, err = run("predict", model_folder, "--data", source, "--out", out)
    assert code == 0, err
    assert f"wrote {out}: 50 rows, mean depth 3.00 of 3 layers" in printed
    code, _, err = run("predict", model_folder, "--data", source, "--out", out)
    assert (code, "exists already" in err) == (2, True)
    code, _, err = run("predict", model_folder, "--data", source)
    assert (code, "--out" in err) == (2, True)
    monkeypatch.setattr("sys.stdin", io.StringIO("good film\n"))
    code, printed, err = run("predict", model_folder, "--data", "-")
    assert code == 0, err
    assert json.loads(printed)["text"] == "good film"


def test_the_verb_says_that_there_is_no_policy(run, model_folder, source, tmp_path, caplog):
    run("predict", model_folder, "--data", source, "--out", tmp_path / "out.csv")
    assert caplog.text.count(f"'{model_folder}' has no policy.json, so no text will exit early") == 1
    caplog.clear()
    Policy("max_prob", 0.5).save(tmp_path / "policy.json")
    arguments = ("--data", source, "--out", tmp_path / "other.csv", "--policy", tmp_path / "policy.json")
    run("predict", model_folder, *arguments)
    assert "no policy.json" not in caplog.text


def test_standard_input_is_answered_on_standard_output_alone(run, model_folder, tmp_path):
    code, _, error = run("predict", model_folder, "--data", "-", "--out", tmp_path / "out.csv")
    assert code == 2
    assert "leave out --out, or name a file" in error
