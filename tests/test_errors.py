"""Messages name arguments as Python does, and flags on the command line."""

from __future__ import annotations

import pickle

from exitpoll.errors import InputError


def test_options_are_flags_on_the_command_line_alone():
    error = InputError("no column 'a-text_column'; name it: text_column,\n or text_column='b'", options=["text_column"])
    assert str(error) == "no column 'a-text_column'; name it: text_column, or text_column='b'"
    assert error.with_flags() == "no column 'a-text_column'; name it: --text-column, or --text-column='b'"


def test_options_survive_pickling():
    error = pickle.loads(pickle.dumps(InputError("name it: label_column", options=["label_column"])))
    assert error.with_flags() == "name it: --label-column"
