"""Ctrl-C, SIGTERM and a closed pipe end a real process quietly, whenever they come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.tiny import write_toy_folder

COMMAND = [sys.executable, "-m", "exitpoll"]
# Until Python has started, SIGINT is its own business: the first line of `main` says when it has.
STARTED = """
import os, sys
from exitpoll.cli import main as entry
class Telling(entry.Interrupts):
    def __init__(self, words):
        super().__init__(words)
        os.write(int(os.environ["STARTED"]), b"x")
entry.Interrupts = Telling
entry.main()
"""


def signalled(words, number, delay, working=None):
    """Start a command, send it a signal some time after `main` has begun, and return exit code, stdout and stderr.

    With a file that shows that it is at work, the signal is sent as soon as there is one.
    """
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[writing],
        env=os.environ | {"STARTED": str(writing)},
    )
    os.close(writing)
    assert os.read(reading, 1) == b"x"
    os.close(reading)
    begun = time.monotonic()
    while time.monotonic() - begun < delay and not (working is not None and working.exists()):
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def lines_of(err):
    """Return the lines on stderr, without steps of a training and the warning that a model has no policy."""
    return [line for line in err.splitlines() if not line.startswith("  step ") and "no policy.json" not in line]


@pytest.fixture(scope="module")
def long_commands(tmp_path_factory, encoder_folder, model_folder):
    """Commands that would take minutes."""
    folder = tmp_path_factory.mktemp("long")
    write_toy_folder(folder / "data")
    (folder / "in.csv").write_text("text\n" + "good film and a plot\n" * 400_000)
    train = ["train", "--encoder", encoder_folder, "--data", folder / "data", "--epochs", "5000"]
    return {
        "train": [*train, "--out", folder / "model"],
        "predict": ["predict", model_folder, "--data", folder / "in.csv", "--out", folder / "out.csv"],
    }


@pytest.mark.parametrize(
    ("verb", "delay"),
    [*(("train", delay) for delay in (0, 0.1, 0.4, 1, 2)), *(("predict", delay) for delay in (0.05, 0.2, 0.7, 1.5))],
)
def test_an_interrupt_is_one_line_whenever_it_comes(long_commands, verb, delay):
    code, out, err = signalled(long_commands[verb], signal.SIGINT, delay)
    assert lines_of(err) == ["exitpoll: interrupted; rerun with --resume to continue"]
    assert (code, out) == (130, "")


@pytest.mark.parametrize(
    ("verb", "working", "number", "code"),
    [("train", "model.partial", signal.SIGTERM, 143), ("predict", "out.csv.partial", signal.SIGINT, 130)],
)
def test_work_is_interrupted_in_the_same_words(long_commands, verb, working, number, code):
    path = long_commands[verb][-1].with_name(working)
    ended, out, err = signalled([*long_commands[verb], "--resume"], number, 120, working=path)
    assert lines_of(err) == ["exitpoll: interrupted; rerun with --resume to continue"]
    assert (ended, out) == (code, "")


@pytest.mark.parametrize("delay", [0, 0.1, 0.3])
def test_help_can_be_interrupted(delay):
    code, _, err = signalled(["--help"], signal.SIGINT, delay)
    done = ((0, ""), (-signal.SIGINT, ""))  # it may have been faster, and Python itself about to end
    assert (code, err) in ((130, "exitpoll: interrupted\n"), *done)


def test_termination_says_the_same(long_commands):
    code, out, err = signalled(long_commands["train"], signal.SIGTERM, 0.1)
    assert lines_of(err) == ["exitpoll: interrupted; rerun with --resume to continue"]
    assert (code, out) == (143, "")


DELETES = """
import signal
from exitpoll.cli.interrupts import Interrupts
interrupts = Interrupts(["train"])
interrupts.are_caught = True
class Deleted:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
try:
    Deleted()
    while True:
        pass
except KeyboardInterrupt:
    print(interrupts.message, interrupts.code)
"""


def test_it_is_not_lost_while_an_object_is_deleted():
    done = subprocess.run([sys.executable, "-c", DELETES], capture_output=True, text=True, timeout=300, check=True)
    assert (done.stdout, done.stderr) == ("interrupted; rerun with --resume to continue 143\n", "")


SWALLOWS = """
import sys, time
sys.argv = ["exitpoll", "calibrate"]
from exitpoll.cli.interrupts import Interrupts
Interrupts(sys.argv[1:])
sys.path.insert(0, {folder!r})
print("ready", flush=True)
{body}
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("body", "signals"),
    [
        ("import swallower", 1),  # a package that swallows whatever is raised while it is imported
        ("try:\n    time.sleep(60)\nexcept BaseException:\n    pass", 2),  # work that swallows it: the second counts
    ],
)
def test_no_interrupt_is_swallowed(tmp_path, body, signals):
    (tmp_path / "swallower.py").write_text("import time\ntry:\n    time.sleep(60)\nexcept BaseException:\n    pass\n")
    code = SWALLOWS.format(folder=str(tmp_path), body=body)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    for _ in range(signals):
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "words", [["--help"], ["train", "--help"], ["sweep", "{trace}", "--out", "{out}"], ["--version"]]
)
def test_a_closed_pipe_ends_in_silence(recorded, tmp_path, words):
    words = [word.format(trace=recorded / "test.safetensors", out=tmp_path / "s") for word in words]
    reading, writing = os.pipe()
    os.close(reading)  # as after `| head -1`
    done = subprocess.run([*COMMAND, *words], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_predictions_into_a_closed_pipe_end_in_silence(model_folder):
    command = [*COMMAND, "predict", str(model_folder), "--data", "-"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command, input="good film\n" * 100, stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (done.returncode, lines_of(done.stderr)) == (141, [])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "No space left" in done.stderr
