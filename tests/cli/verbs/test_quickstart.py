"""exitpoll quickstart: from nothing to a report, resumed at the step where it was interrupted."""

from __future__ import annotations

import json
import shlex

import pytest

from exitpoll import InputError
from exitpoll.cli import quickstart
from exitpoll.cli.app import app
from exitpoll.cli.verbs import quickstart as verb
from tests.tiny import write_toy_folder


@pytest.fixture
def start(run, tmp_path, encoder_folder):
    write_toy_folder(tmp_path / "toy", train=640, others=320)
    arguments = ["--encoder", encoder_folder, "--data", tmp_path / "toy", "--out", tmp_path / "out", "--fast"]
    return lambda *more: run("quickstart", *arguments, *more)


def test_from_nothing_to_a_report(start, tmp_path, monkeypatch):
    code, printed, error = start()
    assert code == 0, error
    for title in ("1 of 10: Train", "5 of 10: Choose", "7 of 10: Classify", "10 of 10: Write the report"):
        assert title in printed
    assert (tmp_path / "out" / "report" / "report.html").exists()
    assert "Wall-clock time</h2>" in (tmp_path / "out" / "report" / "report.html").read_text()
    assert printed.startswith("this takes about a minute here, by the time of a few training steps on ")
    *_, heading, torch_1, torch_32, onnx_1, onnx_32, link = printed.splitlines()
    assert heading == "wall-clock time, with the range over the rounds:"
    assert all("by early exit, on top of" in line for line in (torch_1, torch_32, onnx_1, onnx_32))
    assert link.startswith("open ")
    lines = [line for line in printed.splitlines() if line.startswith("■")]
    assert len(lines) == len(quickstart.SENTENCES)
    commands = [line for line in printed.splitlines() if line.startswith("$ exitpoll ")]
    assert len(commands) == 10
    for command in commands:
        assert app.parse_args(shlex.split(command)[2:], exit_on_error=False)

    ran = []
    monkeypatch.setattr(verb, "_run", lambda words: not ran.append(words[0]))
    code, printed, _ = start()
    assert code == 0
    assert printed.count("(done before)") == 10
    assert ran == []
    (tmp_path / "out" / "evaluation.json").unlink()
    start()
    assert ran == ["evaluate"]


def test_it_resumes_at_the_step_that_was_interrupted(start, tmp_path, monkeypatch):
    original, ran = verb._run, []

    def interrupted(words):
        ran.append(words[0])
        if words[0] == "sweep" and ran.count("sweep") == 1:
            raise KeyboardInterrupt
        return original(words) if words[0] in ("train", "record", "predict") else True

    monkeypatch.setattr(verb, "_run", interrupted)
    monkeypatch.setattr(quickstart, "describe_speed", lambda path: [])
    code, _, error = start()
    assert code == 130
    assert "rerun the same command to continue" in error
    assert ran == ["train", "record", "record", "sweep"]
    code, _, _ = start()
    assert code == 0
    assert ran[4:] == ["sweep", "calibrate", "evaluate", "predict", "export", "bench", "report"]


def test_folders_of_others_are_left_alone(start, run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    code, _, error = start()
    assert code == 2
    assert "exists and is not a quickstart" in error
    (tmp_path / "out" / "quickstart.json").write_text(json.dumps({"fast": False}))
    code, _, error = start()
    assert code == 2
    assert "was started with fast False" in error


def test_where_no_guarantee_is_possible_it_continues_without(start, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(verb, "_run", lambda words: ran.append(words) or "--max-accuracy-drop" not in words)
    monkeypatch.setattr(verb, "_layers", lambda model: 3)
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(quickstart, "describe_answers", lambda path, layers: [])
    monkeypatch.setattr(quickstart, "describe_speed", lambda path: [])
    code, printed, _ = start()
    assert code == 0
    assert "so, without a guarantee:" in printed
    assert [words[-2:] for words in ran if words[0] == "calibrate"][1] == ["--speedup", "1.5"]


def test_only_calibrate_may_fail(monkeypatch):
    monkeypatch.setattr(verb, "app", lambda *_, **__: (_ for _ in ()).throw(SystemExit(1)))
    assert not verb._run(["calibrate"])
    monkeypatch.setattr(verb, "app", lambda *_, **__: (_ for _ in ()).throw(InputError("too few texts")))
    assert not verb._run(["calibrate"])
    with pytest.raises(InputError):
        verb._run(["train"])
    monkeypatch.setattr(verb, "app", lambda *_, **__: (_ for _ in ()).throw(SystemExit(2)))
    with pytest.raises(SystemExit):
        verb._run(["calibrate"])
