"""What the verbs share."""

from __future__ import annotations

from dataclasses import fields

import pytest

from exitpoll import TrainingSettings


@pytest.mark.parametrize("verb", ["train", "search", "reproduce"])
def test_every_verb_that_trains_has_a_flag_for_every_setting(run, verb):
    code, out, _ = run(verb, "--help")
    assert code == 0
    assert all(f"--{field.name.replace('_', '-')}" in out for field in fields(TrainingSettings))
