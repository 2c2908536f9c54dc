"""A job whose process is killed, with time to clean up or without, loses nothing and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from exitpoll import Engine, InputError, Policy, Texts, record
from exitpoll.engine import predict
from exitpoll.engine.predict import predict_file
from tests.numbers_runtime import numbers_model
from tests.tiny import toy_rows

ROOT = Path(__file__).parents[2]
SHARED = """
import sys, time
from contextlib import nullcontext
from pathlib import Path
from exitpoll import Engine, Policy, Texts, record
from exitpoll.engine import predict
from tests.numbers_runtime import numbers_model

predict.BLOCK = 8
source, out = map(Path, sys.argv[1:])

def show(progress):
    print(progress.done, flush=True)
    time.sleep(0.02)
    while Path(f"{out}.hold").exists():
        time.sleep(0.01)

"""
PREDICT = (
    SHARED
    + """
from exitpoll.cli.main import main
from exitpoll.data import bars

bars.progress_bars = lambda console: nullcontext(show)
Engine.load = classmethod(lambda cls, *_, **__: cls(numbers_model(), Policy("max_prob", 0.9)))
sys.argv = ["exitpoll", "predict", "model", "--data", str(source), "--out", str(out), "--resume"]
main()
"""
)
RECORD = (
    SHARED
    + """
record(numbers_model(), Texts(source.read_text().splitlines()), out, batch_size=4, on_progress=show)
"""
)


@pytest.fixture
def source(tmp_path):
    rows = [{"text": text} for text, _ in toy_rows(60)]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def start(code, source, out):
    command = [sys.executable, "-c", code, str(source), str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def run_until(code, source, out, row, sent):
    """Start a job, and send it a signal when so many rows are done, if they ever are."""
    with start(code, source, out) as process:
        for line in process.stdout:
            if line.strip().isdecimal() and int(line) >= row:
                process.send_signal(sent)
                break
    return process.returncode


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_killed_prediction_resumes_without_a_lost_or_duplicated_row(source, tmp_path, sent, code):
    out = tmp_path / "out.csv"
    for row in (8, 32):
        assert run_until(PREDICT, source, out, row, sent) == code
        assert not out.exists()
        assert (tmp_path / "out.csv.partial").exists()
        assert (tmp_path / "out.csv.lock").exists() == (sent == signal.SIGKILL)
    assert run_until(PREDICT, source, out, 61, None) == 0
    predict_file(Engine(numbers_model(), Policy("max_prob", 0.9)), source, tmp_path / "whole.csv")
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out.csv", "whole.csv"}


def test_a_running_prediction_is_not_called_interrupted(source, tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "BLOCK", 8)
    hold = tmp_path / "out.csv.hold"
    hold.touch()
    with start(PREDICT, source, tmp_path / "out.csv") as process:
        process.stdout.readline()
        for resume in (False, True):
            with pytest.raises(InputError, match=rf"is being written by predict, process {process.pid} on "):
                predict_file(Engine(numbers_model()), source, tmp_path / "out.csv", resume=resume)
        hold.unlink()
        process.communicate()
    assert process.returncode == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 61


def test_the_leftovers_of_a_killed_recording_are_removed(source, tmp_path):
    out, texts = tmp_path / "trace", Texts(source.read_text().splitlines())
    run_until(RECORD, source, out, 8, signal.SIGKILL)
    left = {path.name for path in tmp_path.iterdir()} - {"in.jsonl"}
    assert left >= {"trace.lock"}
    assert any(name.endswith(".partial") for name in left)
    assert len(record(numbers_model(), texts, out)) == 60
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "trace"}
