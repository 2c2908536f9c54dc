"""The steps of the quickstart are commands that a user could type, and its input is written once."""

from __future__ import annotations

import pytest

from exitpoll import InputError
from exitpoll.cli import quickstart
from exitpoll.cli.app import app
from exitpoll.cli.quickstart import steps


def test_its_input_is_written_once(tmp_path):
    choices = {"encoder": "embedded", "data": "embedded", "fast": True}
    quickstart.prepare(tmp_path / "out", choices)
    path = tmp_path / "out" / quickstart.INPUT
    before = path.stat().st_mtime_ns
    quickstart.prepare(tmp_path / "out", choices)
    assert path.stat().st_mtime_ns == before  # a predict that was cut off goes on only with the very same input


def test_what_is_missing_is_said_first(monkeypatch):
    monkeypatch.setattr(quickstart, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="the quickstart needs more packages"):
        quickstart.check_installed("another")


def test_every_step_is_a_command(tmp_path):
    for fast in (True, False):
        for step in steps(tmp_path, encoder="embedded", data="embedded", fast=fast):
            assert app.parse_args(step.words, exit_on_error=False)
