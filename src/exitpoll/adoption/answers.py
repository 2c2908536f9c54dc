"""What a classifier answers to the texts: whether there is something to learn, and how early exits agree for good."""

from __future__ import annotations

import numpy as np

from exitpoll.data.splits import Texts
from exitpoll.decide.analysis import consistency_oracle
from exitpoll.decide.decisions import speedup_at
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION
from exitpoll.decide.scoring import full_answers
from exitpoll.decide.trace import Trace
from exitpoll.engine.record import record_in_memory
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError


def check_answers(original: LoadedModel, sample: Texts) -> None:
    """Refuse texts to which the classifier gives one answer only.

    Args:
        original: The classifier.
        sample: Some of the texts.
    """
    problem_type = original.runtime.problem_type
    answers = full_answers(record_in_memory(original, sample))
    if len(np.unique(answers, axis=0)) > 1:
        return
    if problem_type == MULTI_LABEL:
        names = (name for name, applies in zip(original.label_names, answers[0], strict=True) if applies)
        label = ", ".join(names) or "no label"
    else:
        label = str(answers[0]) if problem_type == REGRESSION else original.label_names[int(answers[0])]
    raise InputError(
        f"the classifier answers '{label}' to all of {len(answers)} texts: nothing could be learned or certified "
        "from them; give texts like those that it will see"
    )


def perfect_speedup(trace: Trace, tolerance: float | None) -> float:
    """Compute the speed-up in layers if every text left at the first exit from which on all answer as the last one.

    Args:
        trace: What every exit says.
        tolerance: For regression: values at most so far apart count as the same answer.

    Returns:
        The speed-up.
    """
    if trace.problem_type != REGRESSION:
        return consistency_oracle(trace).speedup
    assert tolerance is not None
    values = np.asarray(trace.logits)[:, :, 0]
    agrees = np.abs(values - values[:, -1:]) <= tolerance
    for_good = np.logical_and.accumulate(agrees[:, ::-1], axis=1)[:, ::-1]
    return float(speedup_at(np.asarray(trace.exit_layers)[for_good.argmax(axis=1)], trace.exit_layers))
