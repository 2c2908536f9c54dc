"""What answers are scored against: the labels or, where there are none, the answers of the full model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.metrics import METRICS, REGRESSION, predictions
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError

AGREEMENT = "agreement"  # what a score is called where it is one against the full model


@dataclass(frozen=True)
class Scored:
    """A trace with labels to score against, and the metric."""

    trace: Trace
    metric: str  # in METRICS
    name: str  # what the score is called: the metric, or "agreement"

    @property
    def full_score(self) -> float:
        """The score of the full model."""
        return METRICS[self.metric](self.trace.gold("a score"), full_answers(self.trace))


def to_score(trace: Trace, metric: str | None = None) -> Scored:
    """Prepare a trace to be scored: by agreement with the full model where it has no labels.

    Args:
        trace: A trace, with labels or without.
        metric: What to score by; the task's by default. It needs labels.

    Returns:
        The trace with labels.
    """
    if trace.labels is not None:
        metric = metric or trace.metric
        return Scored(trace, metric, metric)
    if metric not in (None, AGREEMENT):
        raise InputError(f"metric '{metric}' needs labels, and this trace has none; leave it out for agreement")
    labelled = labelled_by_full_model(trace)
    return Scored(labelled, labelled.metric, AGREEMENT)


def full_answers(trace: Trace) -> NDArray:
    """Return the answers to agree with: the full model's, those of the last exit, or those of the trace's reference.

    Args:
        trace: Every exit's logits.

    Returns:
        Its answers, in the form that metrics take.
    """
    logits = trace.logits[:, -1] if trace.reference is None else trace.reference
    return predictions(np.asarray(logits), trace.problem_type)


def labelled_by_full_model(trace: Trace) -> Trace:
    """Use the full model's answers as labels, so that a score is the agreement with it.

    Args:
        trace: A trace, with labels or without.

    Returns:
        A trace to be scored by accuracy, or by r2 for values.
    """
    metric = "r2" if trace.problem_type == REGRESSION else "accuracy"
    return replace(trace, labels=full_answers(trace), about={**trace.about, "metric": metric})
