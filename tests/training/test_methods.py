"""The published recipes, and what settings refuse."""

from __future__ import annotations

import math
from typing import get_args

import pytest

from exitpoll import METHODS, InputError, TrainingSettings
from exitpoll.training.methods import SCHEDULES
from exitpoll.training.objectives import OBJECTIVES
from exitpoll.training.settings import MethodName, ObjectiveName, ScheduleName
from exitpoll.training.stages import STAGES


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
    assert settings.exit_weights == weights
    assert METHODS[method].paper


def test_every_part_can_be_overridden():
    settings = TrainingSettings(
        method="pabee", objective="ensemble", schedule="mixed", strategy="entropy", exit_weights="uniform"
    ).resolved()
    assert (settings.objective, settings.schedule) == ("ensemble", "mixed")
    assert (settings.strategy, settings.exit_weights) == ("entropy", "uniform")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "bert"}, "method 'bert' is unknown; choose one of: deebert"),
        ({"schedule": "odd"}, "schedule 'odd' is unknown; choose one of: joint"),
        ({"objective": "diverse"}, "objective 'diverse' is unknown; choose one of: relevancy, ensemble"),
        ({"strategy": "guess"}, "strategy 'guess' is unknown; choose one of: entropy"),
        ({"precision": "fp16"}, "precision 'fp16' is unknown; choose one of: auto, fp32, bf16"),
        ({"select": "x"}, "select 'x' is unknown"),
        ({"epochs": 0}, "epochs 0 must be at least 1"),
        ({"neighbors": 0}, "neighbors 0 must be at least 1"),
        ({"early_stop": 0}, "early_stop 0 must be at least 1"),
        ({"max_length": 0}, "max_length 0 must be at least 3"),
        ({"weight_decay": -1.0}, "weight_decay -1.0 must be at least 0 and at most 1"),
        ({"seed": -1}, "seed -1 must be at least 0"),
        ({"learning_rate": -1e-5}, "learning_rate -1e-05 must be above 0"),
        ({"learning_rate": math.nan}, "learning_rate nan must be above 0"),
        ({"temperature": 0.0}, "temperature 0.0 must be above 0"),
        ({"warmup": 1.0}, "warmup 1.0 must be at least 0 and at most 0.999"),
        ({"diversity_weight": 1.0}, "diversity weight 1.0 must be at least 0 and below 1"),
        (
            {"method": "fastbert", "schedule": "joint"},
            "objective 'self_distillation' learns from a trained last head, which schedule 'joint' does not train",
        ),
    ],
)
def test_refuses(options, message):
    with pytest.raises(InputError, match=message):
        TrainingSettings(**options).resolved()


def test_a_classifier_keeps_its_own_head_unless_a_schedule_is_named():
    assert TrainingSettings().resolved(native_head=True).schedule == "heads"
    assert TrainingSettings(method="fastbert").resolved(native_head=True).schedule == "heads"
    assert TrainingSettings(schedule="joint").resolved(native_head=True).schedule == "joint"


def test_resolved_settings_resolve_to_themselves():
    settings = TrainingSettings(method="pabee").resolved()
    assert settings.resolved() == settings.resolved(native_head=True) == settings


def test_names_and_tables_agree():
    assert set(get_args(MethodName)) == set(METHODS)
    assert set(get_args(ScheduleName)) == set(SCHEDULES)
    assert set(get_args(ObjectiveName)) == set(OBJECTIVES)
    assert {stage for stages in SCHEDULES.values() for stage in stages} == set(STAGES)
