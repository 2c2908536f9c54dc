"""Prediction in shards: row for row what one process writes, whatever dies on the way."""

from __future__ import annotations

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest
from pyarrow import Table, parquet

from exitpoll import InputError, Policy
from exitpoll.engine import shards
from exitpoll.engine.model_choice import ModelChoice
from exitpoll.engine.plan import Plan
from exitpoll.engine.predict import predict_file
from exitpoll.engine.processes import Processes
from exitpoll.engine.sharded import ThisProcess, predict_shards
from tests.tiny import assert_same_rows, toy_rows, write_tsv

POLICY = Policy("max_prob", 0.36)
ROWS = toy_rows(60)


@pytest.fixture(scope="module")
def choice(exported_folder):
    return ModelChoice.of(exported_folder)


@pytest.fixture(scope="module")
def here(choice):
    return ThisProcess(choice, POLICY, threads=1)


@pytest.fixture
def source(tmp_path):
    return write_tsv(tmp_path / "in.tsv", ROWS)


@pytest.fixture
def predict(here, choice):
    def call(data, out, runner=here, shard_rows=7, **options):
        return predict_shards(runner, choice, str(data), out, policy=POLICY, shard_rows=shard_rows, **options)

    return call


def write_inputs(folder):
    """Write the rows to files of every kind, and return the folder."""
    folder.mkdir()
    parts = [[{"text": row[0], "label": row[1]} for row in ROWS[start : start + 15]] for start in range(0, 60, 15)]
    parquet.write_table(Table.from_pylist(parts[0]), folder / "a.parquet", row_group_size=4)
    (folder / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in parts[1]))
    lines = "".join(f"{row['text']},{row['label']}\n" for row in parts[2])
    (folder / "c.csv.gz").write_bytes(gzip.compress(("text,label\n" + lines).encode()))
    write_tsv(folder / "deeper" / "d.tsv", [(row["text"], row["label"]) for row in parts[3]])
    (folder / "_SUCCESS").touch()
    (folder / "notes.md").touch()
    return folder


def left_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("out"))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_one_file_in_shards_gives_the_same_bytes(predict, here, source, tmp_path, kind):
    whole, out = tmp_path / f"whole.{kind}", tmp_path / f"out.{kind}"
    expected = predict_file(here.engine, source, whole)
    seen = []
    done = predict(source, out, on_progress=seen.append)
    assert out.read_bytes() == whole.read_bytes()
    assert done == expected
    assert [(progress.done, progress.total) for progress in seen[-2:]] == [(56, 60), (60, 60)]
    assert left_in(tmp_path) == [out.name]


def test_a_folder_of_all_kinds_is_read_in_the_order_of_its_paths(predict, here, tmp_path):
    folder, out = write_inputs(tmp_path / "in"), tmp_path / "out.jsonl"
    predict(folder, out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["text"] for row in rows] == [row[0] for row in ROWS]
    assert [row["predicted"] for row in rows] == [answer.label for answer in here.engine([row[0] for row in ROWS])]
    predict(f"{folder}/*.jsonl", tmp_path / "some.jsonl")
    assert len((tmp_path / "some.jsonl").read_text().splitlines()) == 15


def test_an_output_folder_has_a_file_for_every_shard(predict, tmp_path):
    folder = write_inputs(tmp_path / "in")
    predict(folder, tmp_path / "out")
    names = left_in(tmp_path), sorted(path.name for path in (tmp_path / "out").iterdir())
    shard_names = [f"shard-{number:05}.parquet" for number in range(12)]
    assert names == (["out"], ["plan.json", "policy.json", *shard_names])
    texts = [row["text"] for name in shard_names for row in parquet.read_table(tmp_path / "out" / name).to_pylist()]
    assert texts == [row[0] for row in ROWS]
    with pytest.raises(InputError, match="exists already; choose another folder or use overwrite"):
        predict(folder, tmp_path / "out")
    predict(folder, tmp_path / "out", overwrite=True, kind=".csv", shard_rows=100)
    assert len(list((tmp_path / "out").glob("*.csv"))) == 4
    assert all(path.read_text().startswith("text,label,predicted") for path in (tmp_path / "out").glob("*.csv"))


def test_urls_are_read_through_fsspec(predict, tmp_path):
    folder = write_inputs(tmp_path / "in")
    predict(folder, tmp_path / "local.jsonl")
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/rows", recursive=True)
    try:
        for number, url in enumerate([folder.as_uri(), "memory://rows", "memory://rows/**"]):
            predict(url, tmp_path / f"out{number}.jsonl")
            assert (tmp_path / f"out{number}.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()
    finally:
        memory.rm("/rows", recursive=True)
    for url, message in {
        "memory://nowhere": "has no files of a known kind",
        "nonsense://x.csv": "Protocol not known",
    }.items():
        with pytest.raises(InputError, match=message):
            predict(url, tmp_path / "none.jsonl")


def test_hidden_files_and_files_without_rows_behind_urls(predict, tmp_path):
    memory = fsspec.filesystem("memory")
    rows = [row[0] for row in ROWS[:3]]
    try:
        memory.pipe("/q/a.csv", b"text\n")
        memory.pipe("/q/b.csv", "\n".join(["text", *rows]).encode())
        for hidden in ("/q/.hidden.csv", "/q/_temporary/c.csv", "/q/_delta_log/0.json"):
            memory.pipe(hidden, b'{"text": "hidden"}')
        predict("memory://q", tmp_path / "out.csv")
        header, *written = (tmp_path / "out.csv").read_text().splitlines()
        assert header.startswith("text,predicted")
        assert [line.rsplit(",", 3)[0].strip('"') for line in written] == rows
        memory.rm("/q/b.csv")
        with pytest.raises(InputError, match="there are no rows"):
            predict("memory://q", tmp_path / "none.csv")
    finally:
        memory.rm("/q", recursive=True)


def stop_after(count):
    """Make a callback that interrupts a job after some shards."""
    seen = []

    def interrupt(progress):
        seen.append(progress)
        if len(seen) == count:
            raise KeyboardInterrupt

    return interrupt


def test_a_resumed_job_predicts_only_what_is_missing(predict, here, source, tmp_path, monkeypatch):
    out, whole = tmp_path / "out.csv", tmp_path / "whole.csv"
    predict_file(here.engine, source, whole)
    with pytest.raises(KeyboardInterrupt):
        predict(source, out, on_progress=stop_after(3))
    work = tmp_path / "out.csv.partial"
    (work / "shard-00003.part").write_text("written, but not counted")
    (work / "shard-00004.part.host-1.aside").write_text("half")
    os.truncate(work / "shard-00001.part", 5)  # as by a disk that lied
    with pytest.raises(InputError, match="is an interrupted job; use resume to continue it"):
        predict(source, out)
    numbers, predict_shard = [], shards.ShardPredictor.predict
    monkeypatch.setattr(
        shards.ShardPredictor, "predict", lambda self, number: numbers.append(number) or predict_shard(self, number)
    )
    done = predict(source, out, resume=True)
    assert numbers == [1, 3, 4, 5, 6, 7, 8]
    assert done.rows == 60
    assert out.read_bytes() == whole.read_bytes()
    assert left_in(tmp_path) == ["out.csv"]


def test_a_plan_that_no_longer_fits_is_refused(predict, here, choice, tmp_path):
    folder, out = write_inputs(tmp_path / "in"), tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        predict(folder, out, on_progress=stop_after(2))
    with pytest.raises(InputError, match="was started with another on_error"):
        predict(folder, out, resume=True, on_error="skip")
    with pytest.raises(InputError, match="was started with another policy"):
        predict_shards(here, choice, str(folder), out, policy=Policy("max_prob", 0.4), resume=True)
    (folder / "e.jsonl").write_text('{"text": "late"}\n')
    with pytest.raises(InputError, match=r"e.jsonl' is a new input since the job was planned"):
        predict(folder, out, resume=True)
    (folder / "e.jsonl").unlink()
    lines = (folder / "b.jsonl").read_text()
    (folder / "b.jsonl").write_text(lines.replace("film", "plot"))
    with pytest.raises(InputError, match=r"b.jsonl' has changed since the job was planned"):
        predict(folder, out, resume=True)
    (folder / "b.jsonl").unlink()
    with pytest.raises(InputError, match=r"b.jsonl' was removed from the inputs"):
        predict(folder, out, resume=True)


def test_the_weights_must_be_those_of_the_plan(predict, source, choice, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        predict(source, tmp_path / "out.csv", on_progress=stop_after(2))
    with pytest.raises(InputError, match="has other weights than when the job was planned"):
        choice.load(POLICY, fingerprint="other")
    work = tmp_path / "out.csv.partial"
    plan = json.loads((work / "plan.json").read_text())
    (work / "plan.json").write_text(json.dumps({**plan, "fingerprint": "other"}))
    with pytest.raises(InputError, match=r"the weights of .* have changed"):
        predict(source, tmp_path / "out.csv", resume=True)
    (work / "plan.json").write_text(json.dumps({**plan, "inputs": [{}]}))
    with pytest.raises(InputError, match=r"plan.json' is broken"):
        Plan.load(work)


@pytest.fixture(params=["here", "in other processes"])
def runner(request, here):
    return here if request.param == "here" else Processes(2)


def test_a_corrupt_input_costs_its_own_rows(predict, tmp_path, runner):
    folder = write_inputs(tmp_path / "in")
    content = (folder / "c.csv.gz").read_bytes()
    (folder / "c.csv.gz").write_bytes(content[: len(content) // 2])
    (folder / "a.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(InputError, match=r"a.parquet' cannot be read as Parquet"):
        predict(folder, tmp_path / "out.jsonl", runner)
    assert left_in(tmp_path) == []
    done = predict(folder, tmp_path / "out.jsonl", runner, on_error="skip")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    errors = [row["error"] for row in rows if row["error"]]
    assert ["a.parquet" in errors[0], "c.csv.gz" in errors[-1]] == [True, True]
    assert sum("cannot be" in note for note in done.notes) == 2
    assert [row["text"] for row in rows if not row["error"]][:15] == [row[0] for row in ROWS[15:30]]
    assert [row.get("text") for row in rows][-15:] == [row[0] for row in ROWS[45:]]
    assert done.rows == len(rows)


def test_a_row_that_cannot_be_read_stops_or_is_skipped(predict, here, tmp_path, runner):
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": row[0]}) + "\n" for row in ROWS[:20]) + "no JSON\n")
    with pytest.raises(InputError, match="line 21: not JSON"):
        predict(source, tmp_path / "out.csv", runner)
    predict(source, tmp_path / "out.csv", runner, on_error="skip")
    predict_file(here.engine, source, tmp_path / "whole.csv", on_error="skip")
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_a_full_disk_loses_nothing(predict, here, source, tmp_path, monkeypatch):
    finish, written = shards.finish, []

    def fail(aside, out):
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(out)
        finish(aside, out)

    monkeypatch.setattr(shards, "finish", fail)
    message = "cannot be written: No space left on device; shards that are done are kept: make room and use resume"
    with pytest.raises(InputError, match=message):
        predict(source, tmp_path / "out.csv")
    assert not list((tmp_path / "out.csv.partial").glob("*.aside"))
    monkeypatch.undo()
    predict(source, tmp_path / "out.csv", resume=True)
    predict_file(here.engine, source, tmp_path / "whole.csv")
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_places_that_cannot_be_written_are_refused(predict, source, tmp_path):
    folder = write_inputs(tmp_path / "in")
    for data, out, message in [
        (folder, folder / "out.csv", "is inside the folder of the inputs"),
        (source, source, "exists already"),
        (f"{tmp_path}/*.csv", tmp_path / "out.csv", "has no files of a known kind"),
        (tmp_path / "no.csv", tmp_path / "out.csv", "does not exist"),
        (source, tmp_path / "no" / "out", "there is no folder"),
        (source, folder, "is not an output of predict"),
    ]:
        with pytest.raises(InputError, match=message):
            predict(data, out)
    with pytest.raises(InputError, match="is an input; choose another output"):
        predict(source, source, overwrite=True)
    with pytest.raises(InputError, match="has no rows"):
        predict(write_tsv(tmp_path / "empty.tsv", []), tmp_path / "out.csv")
    (tmp_path / "out.csv.partial").touch()
    with pytest.raises(InputError, match="is an interrupted job of another kind"):
        predict(source, tmp_path / "out.csv")


# ---- processes ------------------------------------------------------------------------------------------------------


def workers_of(folder):
    """Return the processes that work on a job, by the command line that names its folder."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(folder).encode() in words and b"exitpoll.engine.shard_worker" in words:
                found.append(int(path.name))
    return found


def wait_until(condition, seconds=300.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_two_processes_write_what_one_writes_though_workers_are_killed(predict, here, source, tmp_path):
    out, whole, killed = tmp_path / "out.csv", tmp_path / "whole.csv", []
    predict_file(here.engine, source, whole)

    def kill(progress):
        if progress.done in (14, 35):
            [victim, *_] = workers_of(tmp_path / "out.csv.partial")
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

    done = predict(source, out, runner=Processes(2), shard_rows=7, on_progress=kill)
    assert len(killed) >= 1
    assert done.rows == 60
    assert out.read_bytes() == whole.read_bytes()
    assert workers_of(tmp_path / "out.csv.partial") == []
    assert left_in(tmp_path) == ["out.csv"]


def test_a_worker_that_cannot_write_on_loses_nothing(predict, here, tmp_path, monkeypatch):
    """By a limit of the system on the size of files, which only the last shard exceeds."""
    (tmp_path / "sitecustomize.py").write_text(
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
    )
    source, out = write_tsv(tmp_path / "in.tsv", [*ROWS[:49], *[("film " * 200, "good")] * 7]), tmp_path / "out.csv"
    message = "cannot be written: File too large; shards that are done are kept: make room and use resume"
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
        with pytest.raises(InputError, match=message):
            predict(source, out, Processes(1))
    work = tmp_path / "out.csv.partial"
    assert len(list((work / "done").glob("*.json"))) == 7
    assert workers_of(work) == []
    assert not list(work.glob("*.aside"))
    predict(source, out, Processes(1), resume=True)
    predict_file(here.engine, source, tmp_path / "whole.csv")
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()


@pytest.mark.slow
def test_a_shard_that_ends_every_worker_is_named(predict, tmp_path, monkeypatch):
    """By a limit on memory, as too large a model would meet it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nfrom exitpoll.engine import shards\n"
        "shards.ShardPredictor._rows_of = lambda self, shard: os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    source = write_tsv(tmp_path / "in.tsv", ROWS)
    with pytest.raises(InputError, match=r"in.tsv' rows 1 to 60 ended 2 worker processes \(exit code -9\)"):
        predict(source, tmp_path / "out.csv", runner=Processes(1), shard_rows=60)
    assert left_in(tmp_path) == []


def test_errors_of_workers_are_one_line(predict, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": row[0]}) + "\n" for row in ROWS) + "no JSON\n")
    with pytest.raises(InputError, match="line 61: not JSON"):
        predict(source, tmp_path / "out.csv", runner=Processes(1), shard_rows=30)
    with pytest.raises(InputError, match="processes 0 must be an integer, between 1 and 1024"):
        Processes(0)


@pytest.mark.slow
def test_a_killed_driver_leaves_no_worker_and_can_be_resumed(here, exported_folder, tmp_path):
    rows = toy_rows(4000)
    source, out, whole = write_tsv(tmp_path / "in.tsv", rows), tmp_path / "out.csv", tmp_path / "whole.csv"
    POLICY.save(tmp_path / "policy.json")
    words = ["predict", exported_folder, "--data", source, "--out", out, "--policy", tmp_path / "policy.json"]
    command = [sys.executable, "-m", "exitpoll", *map(str, words), "--processes", "2", "--shard-rows", "20"]
    driver, work = subprocess.Popen(command), tmp_path / "out.csv.partial"
    wait_until(lambda: len(list((work / "done").glob("*.json"))) > 3)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    wait_until(lambda: not workers_of(work), seconds=5)
    assert not out.exists()
    subprocess.run([*command, "--resume"], check=True, capture_output=True)
    predict_file(here.engine, source, whole)
    assert_same_rows(out, whole)
