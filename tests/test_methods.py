"""The published recipes, and what settings refuse."""

from __future__ import annotations

import pytest

from exitpoll import METHODS, InputError, TrainingSettings


@pytest.mark.parametrize(
    ("method", "objective", "schedule", "strategy", "weights"),
    [
        ("deebert", "relevancy", "two-stage", "entropy", "uniform"),
        ("righttool", "relevancy", "joint", "max_prob", "uniform"),
        ("fastbert", "self_distillation", "two-stage", "entropy", "uniform"),
        ("pabee", "relevancy", "joint", "patience", "depth"),
        ("ensemble", "ensemble", "joint", "votes", "uniform"),
    ],
)
def test_methods(method, objective, schedule, strategy, weights):
    settings = TrainingSettings(method=method).resolved()
    assert (settings.objective, settings.schedule, settings.strategy) == (objective, schedule, strategy)
    assert settings.weights == weights
    assert METHODS[method].paper


def test_every_part_can_be_overridden():
    settings = TrainingSettings(
        method="pabee", objective="ensemble", schedule="mixed", strategy="entropy", weights="uniform"
    ).resolved()
    assert (settings.objective, settings.schedule) == ("ensemble", "mixed")
    assert (settings.strategy, settings.weights) == ("entropy", "uniform")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "bert"}, "method 'bert' is unknown; choose one of: deebert"),
        ({"schedule": "odd"}, "schedule 'odd' is unknown; choose one of: joint"),
        ({"epochs": 0}, "epochs 0 must be above 0"),
        ({"learning_rate": -1e-5}, "learning_rate -1e-05 must be above 0"),
        ({"warmup": 1.0}, "warmup 1.0 must be a share"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(InputError, match=message):
        TrainingSettings(**options).resolved()
