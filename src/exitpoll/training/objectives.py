"""The training objectives by name: losses over the logits of all exits, with settings bound to them.

The table needs no torch, so that the command line can list it; torch is imported when a loss is bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from exitpoll.decide.metrics import MULTI_LABEL, PROBLEM_TYPES, SINGLE_LABEL
from exitpoll.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from exitpoll.training.settings import TrainingSettings

Loss = Callable[["Tensor", "Tensor"], "Tensor"]  # logits (texts, exits, classes), labels -> loss ()


@dataclass(frozen=True)
class Objective:
    """A training objective."""

    bind: Callable[[TrainingSettings, str], Loss]  # (resolved settings, problem type) -> loss
    problem_types: tuple[str, ...] = PROBLEM_TYPES  # for which it is defined
    needs_trained_last_head: bool = False  # the other heads learn from the last head, so it must be trained first


FALLBACK = "relevancy"  # where the objective of a method is not defined, or needs labels and there are none


def loss_for(settings: TrainingSettings, problem_type: str) -> Loss:
    """Return the loss that settings ask for, or refuse a problem type for which it is not defined.

    Args:
        settings: Resolved settings.
        problem_type: As in transformers.

    Returns:
        A function of logits and labels.
    """
    assert settings.objective is not None
    objective = OBJECTIVES[settings.objective]
    if problem_type not in objective.problem_types:
        raise InputError(
            f"the {settings.objective} objective is not defined for {problem_type}: use the {FALLBACK} objective"
        )
    return objective.bind(settings, problem_type)


def _relevancy(settings: TrainingSettings, problem_type: str) -> Loss:
    """Bind the relevancy loss."""
    from exitpoll.models.losses import relevancy

    assert settings.exit_weights is not None
    return partial(relevancy, exit_weights=settings.exit_weights, problem_type=problem_type)


def _ensemble(settings: TrainingSettings, problem_type: str) -> Loss:
    """Bind the ensemble loss."""
    from exitpoll.models.losses import ensemble

    assert settings.exit_weights is not None
    assert settings.diversity_weight is not None
    return partial(
        ensemble,
        diversity_weight=settings.diversity_weight,
        exit_weights=settings.exit_weights,
        closest=settings.closest,
        through_target=settings.through_target,
        neighbors=settings.neighbors,
        last=settings.last_diversity,
        problem_type=problem_type,
    )


def _self_distillation(settings: TrainingSettings, problem_type: str) -> Loss:
    """Bind the self-distillation loss, which needs no labels."""
    from exitpoll.models.losses import self_distillation

    distill = partial(self_distillation, temperature=settings.temperature, problem_type=problem_type)
    return lambda logits, labels: distill(logits)


# A new objective is one row here.
OBJECTIVES: dict[str, Objective] = {
    "relevancy": Objective(_relevancy),
    "ensemble": Objective(_ensemble, problem_types=(SINGLE_LABEL, MULTI_LABEL)),
    "self_distillation": Objective(_self_distillation, needs_trained_last_head=True),
}
