"""The settings of a training as flags."""

from __future__ import annotations

from dataclasses import fields

import pytest

from exitpoll import TrainingSettings
from exitpoll.cli.training_flags import flag_of


@pytest.mark.parametrize(
    ("setting", "flag"), [("seed", "seed"), ("diversity_weight", "diversity-weight"), ("neighbors", "neighbours")]
)
def test_the_flag_of_a_setting(setting, flag):
    assert flag_of(setting) == flag


@pytest.mark.parametrize("verb", ["train", "search", "reproduce"])
def test_every_verb_that_trains_has_the_flags(run, verb):
    code, out, _ = run(verb, "--help")
    assert code == 0
    assert all(f"--{flag_of(field.name)}" in out for field in fields(TrainingSettings))
