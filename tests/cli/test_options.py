"""Choices come from the tables: a row that is added before the command line is loaded is listed and accepted."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import get_args

import pytest

from exitpoll.cli.options import TrainingFlags, plain_settings
from exitpoll.training.settings import TrainingSettings

ADDED = """
import sys
from exitpoll.data.tasks import TASKS
from exitpoll.decide.metrics import METRICS
from exitpoll.decide.strategies import STRATEGIES

STRATEGIES["new_strategy"] = STRATEGIES["margin"]
METRICS["new_metric"] = METRICS["accuracy"]
TASKS["new_task"] = TASKS["trec"]

from exitpoll.cli.main import main

main()
print("torch" in sys.modules)
"""


def with_added_rows(*arguments):
    command = [sys.executable, "-c", ADDED, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("verb", "names"),
    [
        ("sweep", {"new_strategy", "new_metric"}),
        ("calibrate", {"new_strategy", "new_metric"}),
        ("evaluate", {"new_metric", "new_task"}),
        ("train", {"new_strategy", "new_task"}),
    ],
)
def test_help_lists_them(verb, names):
    done = with_added_rows(verb, "--help")
    assert done.returncode == 0, done.stderr
    listed = done.stdout.replace(",", " ").replace(".", " ").replace("]", " ").split()
    assert {name for name in ("new_strategy", "new_metric", "new_task") if name in listed} == names
    assert done.stdout.splitlines()[-1] == "False"  # torch was not imported


def test_they_are_accepted(recorded, tmp_path):
    choices = ("--strategies", "new_strategy", "--metric", "new_metric")
    done = with_added_rows("sweep", recorded / "test.safetensors", *choices, "--out", tmp_path / "s")
    assert done.returncode == 0, done.stderr
    assert "best new_metric in % on 120 texts" in done.stdout
    assert "│ new_strategy " in done.stdout


def test_others_are_refused_with_the_list(run, recorded):
    for option in ("--strategies", "--metric"):
        code, _, err = run("sweep", recorded / "test.safetensors", option, "guess")
        assert code == 2
        assert err.count("\n") == 1
        assert f'Invalid value "guess" for {option}. Choose from: ' in err


def test_settings_become_those_of_the_library_which_other_processes_can_import():
    flags = get_args(get_args(TrainingFlags)[0])[0]
    plain = plain_settings(flags(epochs=7))
    assert type(plain) is TrainingSettings
    assert plain == TrainingSettings(epochs=7)
    assert pickle.loads(pickle.dumps(plain)) == plain
    assert plain_settings(None) == TrainingSettings()
