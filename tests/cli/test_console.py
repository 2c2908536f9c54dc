"""What verbs print: control characters are shown, -q leaves out notes, --json keeps stdout for the result."""

from __future__ import annotations

import json
import logging

import pytest

from exitpoll.cli import console
from exitpoll.cli.console import VisibleFormatter, visible

HOSTILE = "a\x1b[31mred\x07\u202eevil\nforged line\x9b2J"
SHOWN = r"a\x1b[31mred\x07\u202eevil\nforged line\x9b2J"


@pytest.fixture(autouse=True)
def modes():
    console.reset_modes()
    yield console.modes
    console.reset_modes()


def test_control_characters_are_escaped():
    assert visible(HOSTILE) == SHOWN


@pytest.mark.parametrize("text", ["plain", "größer × 日本語 🎉", "نص عربي", "क्‍ष", ""])
def test_ordinary_writing_is_left_as_it_is(text):
    assert visible(text) == text


def test_lines_show_control_characters(capsys):
    console.say(HOSTILE)
    assert capsys.readouterr().out == SHOWN + "\n"


def test_errors_show_control_characters(capsys):
    with pytest.raises(SystemExit):
        console.fail(HOSTILE, 2)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert r"\x1b[31mred" in err
    assert "\x1b" not in err


def test_log_records_show_control_characters():
    record = logging.LogRecord("exitpoll", logging.WARNING, "", 0, "name %s", ("\x1b[31mred",), None)
    assert VisibleFormatter("%(message)s").format(record) == r"name \x1b[31mred"


def test_markup_is_not_interpreted(capsys):
    console.say("[bold]a[/bold]")
    assert capsys.readouterr().out == "[bold]a[/bold]\n"


def test_remarks_are_left_out_if_quiet(capsys, modes):
    modes.quiet = True
    console.say("result")
    console.remark("note: more")
    assert capsys.readouterr().out == "result\n"


def test_json_has_stdout_for_itself(capsys):
    console.print_as_json(True)
    console.say("line")
    console.remark("note: more")
    console.show_result({"score": 0.5, "none": float("nan"), "by": {1: (float("inf"), 2)}})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"score": 0.5, "none": None, "by": {"1": [None, 2]}}
    assert err == "line\nnote: more\n"


def test_without_json_no_result_is_printed(capsys):
    console.show_result({"score": 0.5})
    assert capsys.readouterr().out == ""


def test_quiet_json_is_json_alone(capsys, modes):
    modes.quiet = True
    console.print_as_json(True)
    console.say("line")
    console.show("table")
    console.show_result({})
    assert capsys.readouterr() == ("{}\n", "")
