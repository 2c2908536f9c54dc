"""What a trace reveals about its exits: oracles, overthinking, calibration, diversity, information bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.decisions import Decisions, probability_of
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, predictions
from exitpoll.decide.numerics import highest_class, sigmoid, softmax
from exitpoll.decide.strategies import ask
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError

# ---- oracles --------------------------------------------------------------------------------------------------------


def label_oracle(trace: Trace) -> Decisions:
    """Leave at the first exit that is right, at the last if none is: the oracle of Sun et al. (2021).

    No policy that answers as one of the heads so far can do better. It beats the full model by construction;
    `consistency_oracle` shows what can be saved without knowing the label.

    Args:
        trace: A trace with labels.

    Returns:
        Its decisions.
    """
    return _leave_at_first(trace, _right(trace))


def consistency_oracle(trace: Trace, *, for_good: bool = True) -> Decisions:
    """Leave at the first exit that answers as the last one will.

    Args:
        trace: A trace, with labels or without.
        for_good: Require that all later exits answer so, too.

    Returns:
        Its decisions: the full model's answers, as early as possible.
    """
    answers = predictions_of(trace)
    agrees = answers == answers[:, -1:]
    if for_good:
        agrees = np.logical_and.accumulate(agrees[:, ::-1], axis=1)[:, ::-1]
    return _leave_at_first(trace, agrees)


def oracles(trace: Trace) -> dict[str, Decisions]:
    """Return the decisions of all oracles on a trace with labels, by name; there are none for values."""
    if trace.problem_type == REGRESSION:
        return {}
    return {
        "oracle: first right": label_oracle(trace),
        "oracle: first that agrees": consistency_oracle(trace, for_good=False),
        "oracle: agrees for good": consistency_oracle(trace),
    }


def static_exit(trace: Trace, number: int) -> Decisions:
    """Let every text leave at one exit: what a smaller model of that depth would do.

    Args:
        trace: A trace.
        number: The exit, counted from 0; -1 is the last.

    Returns:
        Its decisions.
    """
    flags = np.zeros(trace.logits.shape[:2], dtype=bool)
    flags[:, number] = True
    return _leave_at_first(trace, flags)


def _leave_at_first(trace: Trace, flags: NDArray) -> Decisions:
    """Leave at the first flagged exit, at the last where there is none."""
    ends = np.arange(flags.shape[1]) == flags.shape[1] - 1
    exit_number = (flags | ends).argmax(axis=1)
    rows = np.arange(len(trace))
    heads = np.asarray(trace.logits[rows, exit_number])  # (texts, classes)
    answer = predictions(heads, trace.problem_type)
    probability = probability_of(heads, answer, trace.problem_type)
    return Decisions(exit_number, answer, probability, tuple(trace.exit_layers), trace.labels)


# ---- exits one by one -----------------------------------------------------------------------------------------------


def predictions_of(trace: Trace) -> NDArray:
    """Return the class of every head, (texts, exits); a set of labels counts as a class of its own."""
    return _as_classes(trace)[0]


def _as_classes(trace: Trace) -> tuple[NDArray, NDArray | None]:
    """Return the answers of the heads, (texts, exits), and the labels, (texts,), as class numbers."""
    if trace.problem_type == REGRESSION:
        raise InputError("this analysis compares classes, and this trace is of a regression")
    logits, labels = np.asarray(trace.logits), trace.labels
    if trace.problem_type != MULTI_LABEL:
        return highest_class(logits), None if labels is None else np.asarray(labels)
    sets = (np.nan_to_num(logits) > 0).reshape(-1, logits.shape[-1])
    known = np.zeros((0, logits.shape[-1]), dtype=bool) if labels is None else np.asarray(labels) > 0
    numbers = _numbered(np.concatenate([sets, known]))
    answers = numbers[: len(sets)].reshape(logits.shape[:2])
    return answers, None if labels is None else numbers[len(sets) :]


def _confidence(trace: Trace) -> NDArray:
    """Return the probability that every head gives to its own answer: (texts, exits)."""
    logits = np.asarray(trace.logits)
    if trace.problem_type == MULTI_LABEL:
        return sigmoid(np.abs(np.nan_to_num(logits.astype(np.float64)))).prod(axis=-1)
    return softmax(logits).max(axis=-1)


@dataclass(frozen=True)
class Thinking:
    """What continuing to the last exit changes for the texts at an exit, as shares of all texts."""

    lost: NDArray  # (exits,) right here, wrong at the end: overthinking
    gained: NDArray  # (exits,) wrong here, right at the end: underthinking
    ever_lost: float  # right at some exit, wrong at the end


def thinking(trace: Trace) -> Thinking:
    """Compare every exit with the last.

    Args:
        trace: A trace with labels.

    Returns:
        What is lost and gained by continuing.
    """
    right = _right(trace)
    end = right[:, -1:]
    return Thinking((right & ~end).mean(axis=0), (~right & end).mean(axis=0), float((right & ~end).any(axis=1).mean()))


@dataclass(frozen=True)
class Reliability:
    """Texts sorted into equal intervals of confidence, exit by exit; NaN where an interval has no texts."""

    texts: NDArray  # (exits, bins) how many
    confidence: NDArray  # (exits, bins) mean probability of the answer
    right: NDArray  # (exits, bins) share of right answers

    @property
    def error(self) -> NDArray:
        """The expected calibration error of every exit, Guo et al. (2017), (exits,)."""
        gaps = np.abs(np.nan_to_num(self.right - self.confidence))
        return (self.texts * gaps).sum(axis=1) / np.maximum(self.texts.sum(axis=1), 1)


def reliability(trace: Trace, bins: int = 15) -> Reliability:
    """Compare the confidence of every exit with how often it is right.

    Args:
        trace: A trace with labels.
        bins: Number of equal intervals of confidence that texts are sorted into.

    Returns:
        The intervals of every exit.
    """
    return reliability_of(_right(trace), _confidence(trace), bins)


def reliability_of(right: NDArray, confidence: NDArray, bins: int = 15) -> Reliability:
    """Compare confidence with how often it is right, for any answers.

    Args:
        right: Which answers are right, (texts, exits).
        confidence: Their probabilities, (texts, exits).
        bins: As in `reliability`.

    Returns:
        The intervals of every column.
    """
    exits = right.shape[1]
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1) + bins * np.arange(exits)  # (texts, exits)

    def total(values: NDArray) -> NDArray:
        return np.bincount(bin_of.ravel(), values.ravel(), exits * bins).reshape(exits, bins)

    texts = total(np.ones(right.shape))
    with np.errstate(invalid="ignore"):
        return Reliability(texts, total(confidence) / texts, total(right.astype(np.float64)) / texts)


def calibration_error(trace: Trace, bins: int = 15) -> NDArray:
    """Compute the expected calibration error of every exit, Guo et al. (2017).

    Args:
        trace: A trace with labels.
        bins: As in `reliability`.

    Returns:
        Errors, (exits,).
    """
    return reliability(trace, bins).error


def auroc(trace: Trace) -> NDArray:
    """Compute the AUROC of every exit's confidence: how well it separates right answers from wrong ones.

    Args:
        trace: A trace with labels.

    Returns:
        The probability that a right answer is more confident than a wrong one, ties counted half, (exits,); NaN where
        an exit is always right or always wrong.
    """
    from sklearn.metrics import roc_auc_score

    right, confidence = _right(trace), _confidence(trace)
    mixed = np.ptp(right.astype(int), axis=0) > 0  # (exits,) neither always right nor always wrong
    return np.array(
        [
            roc_auc_score(right[:, number], confidence[:, number]) if mixed[number] else np.nan
            for number in range(right.shape[1])
        ]
    )


# ---- diversity ------------------------------------------------------------------------------------------------------


def disagreement(trace: Trace) -> NDArray:
    """Compute the share of texts on which two exits differ: (exits, exits)."""
    answers = predictions_of(trace)
    return np.stack([(answers != answers[:, [number]]).mean(axis=0) for number in range(answers.shape[1])])


def q_statistic(trace: Trace) -> NDArray:
    """Compute Yule's Q of two exits being right: 1 if on the same texts, −1 if on opposite ones.

    Args:
        trace: A trace with labels.

    Returns:
        Q, (exits, exits); NaN where it is not defined.
    """
    both, only_first, only_second, neither = _contingency(_right(trace))
    with np.errstate(invalid="ignore"):
        return (both * neither - only_first * only_second) / (both * neither + only_first * only_second)


def error_correlation(trace: Trace) -> NDArray:
    """Compute the correlation of two exits being wrong.

    Args:
        trace: A trace with labels.

    Returns:
        Correlations, (exits, exits); NaN where an exit is always right or always wrong.
    """
    both, only_first, only_second, neither = _contingency(_right(trace))
    scale = (both + only_first) * (both + only_second) * (neither + only_first) * (neither + only_second)
    with np.errstate(invalid="ignore"):
        return (both * neither - only_first * only_second) / np.sqrt(scale)


def _contingency(right: NDArray) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Count texts on which both, the first, the second, or none of two exits is right: four (exits, exits)."""
    yes, no = right.astype(np.float64), (~right).astype(np.float64)
    return yes.T @ yes, yes.T @ no, no.T @ yes, no.T @ no


# ---- information ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Information:
    """Plug-in estimates of the terms of Sun et al. (2021), Eqs. 2 to 5, in bits; X_i is what head i predicts.

    Estimates from counts are too high where there are few texts for many combinations of predictions.
    """

    label_entropy: float  # H(Y)
    relevancy: NDArray  # (exits,) I(X_l; Y)
    redundancy: NDArray  # (exits,) max_{j<l} I(X_l; X_j), 0 for the first: what the diversity loss keeps down
    joint: NDArray  # (exits,) I(X_{1:l}; Y)
    fano: NDArray  # (exits,) no combination of the first l heads errs less: (H(Y) − I − 1) / log |Y|
    hellman_raviv: NDArray  # (exits,) the best combination errs no more: (H(Y) − I) / 2
    vote_error: NDArray  # (exits,) how often the vote of the first l heads is wrong


def information(trace: Trace) -> Information:
    """Measure the information of the heads about the label and about each other, and the error of their vote.

    Args:
        trace: A trace with labels.

    Returns:
        Estimates from the counts of this trace.
    """
    trace.gold("measuring information")
    answers, labels = _as_classes(trace)
    assert labels is not None
    exits = answers.shape[1]
    label_entropy = _entropy(labels)
    patterns = [_numbered(answers[:, : number + 1]) for number in range(exits)]
    joint = np.array([_mutual_information(pattern, labels) for pattern in patterns])
    redundancy = np.array(
        [max((_mutual_information(answers[:, i], answers[:, j]) for j in range(i)), default=0.0) for i in range(exits)]
    )
    classes = len(np.unique(labels)) if trace.problem_type == MULTI_LABEL else trace.logits.shape[-1]
    return Information(
        label_entropy=label_entropy,
        relevancy=np.array([_mutual_information(answers[:, number], labels) for number in range(exits)]),
        redundancy=redundancy,
        joint=joint,
        fano=(label_entropy - joint - 1) / np.log2(max(classes, 2)),
        hellman_raviv=(label_entropy - joint) / 2,
        vote_error=_vote_error(trace),
    )


def _vote_error(trace: Trace) -> NDArray:
    """Compute how often the vote of the first l heads is wrong: (exits,)."""
    voted = ask("votes", np.asarray(trace.logits), {"k": 0.0}, trace.problem_type).answer
    wrong = voted != trace.gold("a vote's error")[:, None]
    return (wrong.any(axis=-1) if wrong.ndim == 3 else wrong).mean(axis=0)


def _numbered(rows: NDArray) -> NDArray:
    """Number the distinct rows."""
    return np.unique(rows, axis=0, return_inverse=True)[1].ravel()


def _entropy(values: NDArray) -> float:
    """Compute the entropy of some values from their counts, in bits."""
    _, counts = np.unique(values, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def _mutual_information(first: NDArray, second: NDArray) -> float:
    """Compute I(A; B) = H(A) + H(B) − H(A, B) from counts, in bits."""
    return _entropy(first) + _entropy(second) - _entropy(_numbered(np.stack([first, second], axis=1)))


def _right(trace: Trace) -> NDArray:
    """Return which heads are right: (texts, exits)."""
    trace.gold("an analysis of right answers")
    answers, labels = _as_classes(trace)
    assert labels is not None
    return answers == labels[:, None]
