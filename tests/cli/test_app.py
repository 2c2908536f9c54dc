"""The list of commands is in the order of use, and tells each verb in one line."""

from __future__ import annotations

from dataclasses import fields

import pytest

from exitpoll import TrainingSettings
from exitpoll.cli.app import app
from exitpoll.cli.groups import VERBS


def test_help_lists_the_verbs_in_the_order_of_use_with_a_description(run):
    code, out, _ = run("--help")
    assert code == 0
    lines = [line.strip("│ ").split(maxsplit=1) for line in out.splitlines()]
    described = [words[0] for words in lines if len(words) == 2 and words[0] in VERBS]
    assert described == list(VERBS)
    assert run()[1] == out


def test_every_verb_has_a_summary_and_an_example(run):
    for verb in VERBS:
        _, out, _ = run(verb, "--help")
        assert f"Example: exitpoll {verb}" in out
        summary = app[verb].default_command.__doc__.splitlines()[0]
        assert summary.endswith(".")
        assert summary in " ".join(out.split())


def test_an_unknown_verb_is_refused(refused):
    refused('Unknown command "guess"', "guess")


@pytest.mark.parametrize("verb", ["train", "search", "reproduce"])
def test_every_verb_that_trains_has_a_flag_for_every_setting(run, verb):
    _, out, _ = run(verb, "--help")
    assert all(f"--{field.name.replace('_', '-')}" in out for field in fields(TrainingSettings))
