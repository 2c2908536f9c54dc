"""Folders appear whole or not at all, written by one process, and only an older model of ours is ever replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from exitpoll import InputError
from exitpoll.files import locked, publish, read_json, release_elsewhere, write_json
from exitpoll.models.folder import check_free_for_model


def test_a_new_or_empty_folder_is_free(tmp_path):
    check_free_for_model(tmp_path / "new", overwrite=False)
    check_free_for_model(tmp_path, overwrite=False)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def out(tmp_path):
    """A folder to write, with the folder of its work beside it."""
    (tmp_path / "out.partial" / "prepared").mkdir(parents=True)
    (tmp_path / "out.partial" / "prepared" / "new").touch()
    return tmp_path / "out"


def test_what_exists_is_kept_unless_told(tmp_path):
    write_json(tmp_path / "config.json", {"model_type": "exitpoll"})
    with pytest.raises(InputError, match="exists already"):
        check_free_for_model(tmp_path, overwrite=False)
    check_free_for_model(tmp_path, overwrite=True)


@pytest.mark.parametrize("content", [None, {"model_type": "bert"}])
def test_what_is_not_ours_is_never_overwritten(tmp_path, content):
    (tmp_path / "thesis.txt").write_text("years of work")
    if content:
        write_json(tmp_path / "config.json", content)
    for overwrite in (False, True):
        with pytest.raises(InputError, match="exists and is not an exitpoll model folder; choose another folder"):
            check_free_for_model(tmp_path, overwrite=overwrite)


def test_a_file_is_never_overwritten(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="not an exitpoll model folder"):
        check_free_for_model(tmp_path / "file", overwrite=True)


@pytest.mark.parametrize("older", [False, True])
def test_publish(out, older):
    if older:
        out.mkdir()
        (out / "old").touch()
    publish(out.parent / "out.partial", "prepared", out)
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["new"]


def test_broken_json_reads_as_none(tmp_path):
    (tmp_path / "a.json").write_text('{"a": ')
    (tmp_path / "b.json").write_text("[1]")
    assert read_json(tmp_path / "a.json") is None
    assert read_json(tmp_path / "b.json") is None
    assert read_json(tmp_path / "none.json") is None


def test_a_kill_between_the_renames_loses_nothing(out):
    (out.parent / "out.partial" / "replaced").mkdir()
    write_json(out.parent / "out.partial" / "replaced" / "config.json", {"model_type": "exitpoll"})
    with pytest.raises(InputError, match="exists already"):
        check_free_for_model(out, overwrite=False)
    assert (out / "config.json").exists()


HOLD = """
import signal, sys, time
from pathlib import Path
from exitpoll.files import locked
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
with locked(Path(sys.argv[1]), "predict"):
    print("holds it", flush=True)
    time.sleep(60)
"""
COUNT = """
import sys, time
from pathlib import Path
from exitpoll.errors import InputError
from exitpoll.files import locked
path, done = Path(sys.argv[1]), False
while not done:
    try:
        with locked(path, "count"):
            number = int(path.read_text())
            time.sleep(0.01)
            path.write_text(str(number + 1))
            done = True
    except InputError:
        time.sleep(0.002)
"""


class TestLocks:
    @pytest.fixture
    def holder(self, tmp_path):
        """Another process that holds the lock of a file."""
        command = [sys.executable, "-c", HOLD, str(tmp_path / "out.csv")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "holds it\n"
            yield process
            process.kill()

    def test_a_second_process_is_told_who_holds_it(self, holder, tmp_path):
        expected = rf"out.csv' is being written by predict, process {holder.pid} on .*, since 2\d+-.*; wait until"
        with pytest.raises(InputError, match=expected), locked(tmp_path / "out.csv", "record"):
            pass
        assert json.loads((tmp_path / "out.csv.lock").read_text())["pid"] == holder.pid

    def test_the_lock_of_a_killed_process_is_taken_over(self, holder, tmp_path):
        for name in ("out.csv", "other.csv"):
            (tmp_path / f"{name}.{holder.pid}.partial").touch()
        (tmp_path / f"out.csv.{os.getpid()}.aside").touch()  # of a process that runs
        holder.kill()  # and it is not waited for
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
        with locked(tmp_path / "out.csv", "record"):
            assert json.loads((tmp_path / "out.csv.lock").read_text())["job"] == "record"
        kept = {f"other.csv.{holder.pid}.partial", f"out.csv.{os.getpid()}.aside"}
        assert {path.name for path in tmp_path.iterdir()} == kept

    def test_a_process_that_is_ended_removes_its_lock(self, holder, tmp_path):
        holder.send_signal(signal.SIGINT)
        holder.wait()
        assert list(tmp_path.iterdir()) == []

    def test_a_number_that_another_process_has_by_now(self, tmp_path):
        with locked(tmp_path / "out", "train"):
            content = json.loads((tmp_path / "out.lock").read_text())
        if content["pid_started"] is None:
            pytest.skip("the system does not tell when a process started")
        write_json(tmp_path / "out.lock", content)
        with pytest.raises(InputError, match="is being written by train"), locked(tmp_path / "out", "train"):
            pass
        write_json(tmp_path / "out.lock", {**content, "pid_started": content["pid_started"] - 1})
        with locked(tmp_path / "out", "train"):
            pass
        assert not (tmp_path / "out.lock").exists()

    def test_of_another_host_nothing_is_known(self, tmp_path):
        with locked(tmp_path / "out", "train"):
            content = json.loads((tmp_path / "out.lock").read_text())
        write_json(tmp_path / "out.lock", {**content, "host": "elsewhere", "pid": 2**22 + 1})
        message = r"on elsewhere, since .*; wait until it has ended, or remove '.*out.lock' if it has"
        with pytest.raises(InputError, match=message), locked(tmp_path / "out", "train"):
            pass

    def test_locks_of_a_host_that_is_lost_are_removed(self, tmp_path):
        with locked(tmp_path / "out", "train"):
            content = json.loads((tmp_path / "out.lock").read_text())
            (tmp_path / "run").mkdir()
            write_json(tmp_path / "run" / "model.lock", {**content, "host": "elsewhere"})
            (tmp_path / "run" / "my.lock").write_text("mine")
            release_elsewhere(tmp_path)
            assert {path.name for path in tmp_path.rglob("*.lock")} == {"out.lock", "my.lock"}
        release_elsewhere(tmp_path / "nowhere")

    @pytest.mark.parametrize("content", ["mine", '{"pid": 1}', ""])
    def test_other_files_are_not_touched(self, tmp_path, content):
        (tmp_path / "out.lock").write_text(content)
        with pytest.raises(InputError, match="is not a lock of exitpoll; remove it"), locked(tmp_path / "out", "x"):
            pass
        assert (tmp_path / "out.lock").read_text() == content

    def test_a_folder_that_is_missing(self, tmp_path):
        with pytest.raises(InputError, match="cannot be written: No such file"), locked(tmp_path / "no" / "out", "x"):
            pass

    def test_one_process_at_a_time(self, holder, tmp_path):
        path = tmp_path / "out.csv"
        path.write_text("0")
        processes = [subprocess.Popen([sys.executable, "-c", COUNT, str(path)]) for _ in range(4)]
        holder.kill()
        assert [process.wait() for process in processes] == [0] * 4
        assert path.read_text() == "4"
        assert not (tmp_path / "out.csv.lock").exists()
