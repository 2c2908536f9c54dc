"""How sure are we after the exits so far: a score for every strategy, higher is surer, and the answer it gives.

A strategy is a pure function of logits (texts, exits, classes). Column l of what it gives depends on the first l exits
alone, so the same function serves a recorded trace, all exits at once, and a live batch, whose last column is asked.
Scores are in natural units: votes, probabilities, nats. Entropy falls as we get surer and is therefore negated; a
threshold in natural units is turned the same way by `Strategy.sign`. `ask` is the way to call them: it sees to logits
that are no numbers, so that the functions themselves need not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from exitpoll.decide.numerics import (
    after_first,
    divergence_from_last,
    exit_numbers,
    finite_values,
    is_tame,
    log_softmax,
    run_length,
    sigmoid,
    tamed,
)
from exitpoll.errors import InputError


@dataclass(frozen=True)
class Opinion:
    """What a strategy makes of the exits so far."""

    score: NDArray  # (texts, exits), −∞ where logits so far are not finite: such a text never leaves early
    answer: NDArray  # (texts, exits) class numbers or values; (texts, exits, classes) of 0 and 1 for multi-label


def entropy(logits: NDArray, *, normalized: bool = False) -> Opinion:
    """Entropy of the current head, in nats (DeeBERT), or as a share of log C (FastBERT, equation 5)."""
    log_p = log_softmax(logits)
    nats = -(np.exp(log_p) * log_p).sum(axis=-1)  # e^x · x is 0, not NaN, at the floor of log_softmax
    return Opinion(-nats / (np.log(logits.shape[-1]) if normalized else 1.0), log_p.argmax(axis=-1))


def max_prob(
    logits: NDArray, *, temperatures: Sequence[float] | NDArray | None = None, towards: str | None = None
) -> Opinion:
    """Highest probability of the current head, each exit at a temperature of its own (RightTool, section 3).

    Args:
        logits: (texts, exits, classes)
        temperatures: (exits,) what `fit_temperatures` found; 1 by default.
        towards: What they were fitted to; kept for the reader.

    Returns:
        The opinion.
    """
    if temperatures is not None:
        logits = logits / np.asarray(temperatures, dtype=np.float64)[: logits.shape[1], None]
    p = np.exp(log_softmax(logits))
    return Opinion(p.max(axis=-1), p.argmax(axis=-1))


def margin(logits: NDArray) -> Opinion:
    """Distance between the two highest probabilities of the current head."""
    p = np.exp(log_softmax(logits))
    highest = np.partition(p, -2, axis=-1)[..., -2:]  # (texts, exits, 2)
    return Opinion(highest[..., 1] - highest[..., 0], p.argmax(axis=-1))


def patience(logits: NDArray) -> Opinion:
    """For how many exits the prediction has stood unchanged, 0 at the first (PABEE, equation 4)."""
    answer = logits.argmax(axis=-1)
    return Opinion(run_length(after_first(answer[:, 1:] == answer[:, :-1])), answer)


def stable(logits: NDArray, *, within: float = 0.1) -> Opinion:
    """For how many exits the value has moved by at most `within`: patience for regression (PABEE, equation 5)."""
    values = finite_values(logits[..., 0])  # (texts, exits)
    steps = np.abs(values[:, 1:] - values[:, :-1])
    return Opinion(run_length(after_first(steps <= within)), values)


def confident_patience(logits: NDArray, *, confidence: float = 0.9) -> Opinion:
    """For how many exits in a row the highest probability has reached `confidence` (PCEE-BERT)."""
    p = np.exp(log_softmax(logits))
    return Opinion(run_length(p.max(axis=-1) >= confidence), p.argmax(axis=-1))


def js_patience(logits: NDArray, *, divergence: float = 0.05) -> Opinion:
    """For how many exits in a row the Jensen–Shannon divergence to the exit before has stayed below (F-PABEE)."""
    p = np.exp(log_softmax(logits))
    near = divergence_from_last(p)[:, 1:] < divergence  # (texts, exits - 1)
    return Opinion(run_length(after_first(near)), p.argmax(axis=-1))


def votes(logits: NDArray, *, k: float = 0.5) -> Opinion:
    """V_l = max_c #{j ≤ l: argmax x_j = c} / l^k: all exits so far take a vote (the paper's equation 23)."""
    ballots = logits.argmax(axis=-1)[..., None] == np.arange(logits.shape[-1])  # (texts, exits, classes)
    counts = ballots.cumsum(axis=1)
    # Of classes with equally many votes the current head's wins; if it is not among them, the first.
    answer = (2 * counts + ballots).argmax(axis=-1)
    return Opinion(counts.max(axis=-1) / exit_numbers(logits) ** k, answer)


def soft_votes(logits: NDArray, *, k: float = 0.5) -> Opinion:
    """Probabilities in place of votes: max_c Σ_{j≤l} x_j[c] / l^k."""
    summed = np.exp(log_softmax(logits)).cumsum(axis=1)
    return Opinion(summed.max(axis=-1) / exit_numbers(logits) ** k, summed.argmax(axis=-1))


def mean(logits: NDArray) -> Opinion:
    """Highest class of the mean distribution: soft votes with k = 1."""
    return soft_votes(logits, k=1.0)


def geometric(logits: NDArray) -> Opinion:
    """Highest class of the geometric mean of the distributions (Zero Time Waste, equation 3, with equal weights)."""
    averaged = log_softmax(logits).cumsum(axis=1) / exit_numbers(logits)[:, None]
    p = np.exp(log_softmax(averaged))
    return Opinion(p.max(axis=-1), p.argmax(axis=-1))


def hybrid(logits: NDArray, *, policies: Sequence[Mapping[str, Any]], problem_type: str = SINGLE_LABEL) -> Opinion:
    """How many of several policies fire: leave when any does (the seed recommends votes with entropy), or when all do.

    The answer is that of the first policy that fires, of the first of all where none does.

    Args:
        logits: (texts, exits, classes)
        policies: Strategy, threshold and settings of each.
        problem_type: As in transformers.

    Returns:
        The opinion; its natural unit is policies.
    """
    fires, answer = np.zeros(logits.shape[:2]), None
    for policy in policies:
        opinion = _ask(policy["strategy"], logits, policy.get("settings", {}), problem_type)
        now = opinion.score >= strategy_named(policy["strategy"]).sign * policy["threshold"]
        if answer is None:
            answer = opinion.answer
        else:
            first = now & (fires == 0)
            answer = np.where(first if answer.ndim == 2 else first[..., None], opinion.answer, answer)
        fires += now
    if answer is None:
        raise InputError("a hybrid needs policies to be made of")
    return Opinion(fires, answer)


def learned(
    logits: NDArray, *, weights: Sequence | NDArray, biases: Sequence | NDArray, towards: str = "agreement"
) -> Opinion:
    """The chance that the head says what the last will say, or that it is right: logistic regression, exit by exit.

    Args:
        logits: (texts, exits, classes)
        weights: (exits, features) what `fit_learned` found.
        biases: (exits,)
        towards: What was learned, "agreement" or "right"; kept for the reader.

    Returns:
        The opinion; the answer is the current head's.
    """
    exits = logits.shape[1]
    told, heads = features(logits)
    chance = sigmoid((told * np.asarray(weights)[:exits]).sum(axis=-1) + np.asarray(biases)[:exits])
    return Opinion(chance, heads)


FEATURES = ("margin", "entropy", "run", "votes")  # more of them did not help; the depth is in one fit for each exit


def features(logits: NDArray) -> tuple[NDArray, NDArray]:
    """Tell what the exits so far say of the current head's answer.

    Args:
        logits: (texts, exits, classes)

    Returns:
        The numbers that `FEATURES` names, (texts, exits, features): the head's margin and entropy, for how many exits
        its answer has stood unchanged, and how many exits vote for it; and these answers, (texts, exits).
    """
    log_p = log_softmax(logits)  # (texts, exits, classes)
    p = np.exp(log_p)
    heads = p.argmax(axis=-1)
    ordered = np.sort(p, axis=-1)
    same = heads[:, :, None] == heads[:, None, :]  # (texts, exits, exits)
    told = np.empty((*heads.shape, len(FEATURES)))
    told[..., 0] = ordered[..., -1] - ordered[..., -2]
    told[..., 1] = -(p * log_p).sum(axis=-1)
    told[..., 2] = run_length(after_first(same.diagonal(1, axis1=1, axis2=2)))
    told[..., 3] = same.cumsum(axis=2).diagonal(axis1=1, axis2=2)
    return told, heads


@dataclass(frozen=True)
class Strategy:
    """One row of the table: the function, and whether its natural unit falls as we get surer."""

    function: Callable[..., Opinion]
    falls: bool = False
    regression: Callable[..., Opinion] | None = None  # what takes its place where the answer is a value
    asks_others: bool = False  # made of other strategies, it leaves the problem type to them

    @property
    def sign(self) -> int:
        """What turns a threshold in natural units into one for scores, which always rise."""
        return -1 if self.falls else 1


STRATEGIES: dict[str, Strategy] = {
    "entropy": Strategy(entropy, falls=True),
    "max_prob": Strategy(max_prob),
    "margin": Strategy(margin),
    "patience": Strategy(patience, regression=stable),
    "confident_patience": Strategy(confident_patience),
    "js_patience": Strategy(js_patience),
    "votes": Strategy(votes),
    "soft_votes": Strategy(soft_votes),
    "mean": Strategy(mean),
    "geometric": Strategy(geometric),
    "hybrid": Strategy(hybrid, asks_others=True),
    "learned": Strategy(learned),
}


def strategy_named(name: str) -> Strategy:
    """Look up a strategy.

    Args:
        name: Its name in the table.

    Returns:
        The strategy.

    Raises:
        InputError: There is none of that name; the message lists those that there are.
    """
    if name not in STRATEGIES:
        raise InputError(f"strategy '{name}' is unknown; choose one of: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def check_takes_values(name: str) -> None:
    """Refuse a strategy for regression that only knows classes.

    Args:
        name: Its name.
    """
    if strategy_named(name).regression is None:
        able = ", ".join(name for name, row in STRATEGIES.items() if row.regression)
        raise InputError(f"strategy '{name}' needs classes; regression can leave early by: {able}")


def ask(name: str, logits: NDArray, settings: Mapping[str, Any], problem_type: str) -> Opinion:
    """Ask a strategy about texts of any problem type, whatever their logits.

    Args:
        name: The strategy's name.
        logits: (texts, exits, classes)
        settings: The strategy's settings.
        problem_type: As in transformers.

    Returns:
        Its opinion; once an exit said something that is no number, a text's score is −∞ and it stays to the end.
    """
    if is_tame(logits):
        return _ask(name, logits, settings, problem_type)
    opinion = _ask(name, tamed(logits), settings, problem_type)
    broken = np.logical_or.accumulate(~np.isfinite(logits).all(axis=-1), axis=1)  # (texts, exits)
    return Opinion(np.where(broken, -np.inf, opinion.score), opinion.answer)


def _ask(name: str, logits: NDArray, settings: Mapping[str, Any], problem_type: str) -> Opinion:
    """Ask a strategy about tame logits."""
    strategy = strategy_named(name)
    if strategy.asks_others:
        return strategy.function(logits, problem_type=problem_type, **settings)
    if problem_type == REGRESSION:
        check_takes_values(name)
        assert strategy.regression is not None
        return strategy.regression(logits, **settings)
    if problem_type == MULTI_LABEL:
        return _when_every_label_is_decided(strategy, logits, settings)
    if logits.shape[-1] < 2:
        raise InputError("a strategy for classes needs two of them or more; say problem_type regression for values")
    return strategy.function(logits, **settings)


def _when_every_label_is_decided(strategy: Strategy, logits: NDArray, settings: Mapping[str, Any]) -> Opinion:
    """Take every label as a question of its own, no or yes; we are as sure of a text as of its least sure label."""
    texts, exits, labels = logits.shape
    opinion = strategy.function(as_binary(logits), **settings)
    score = opinion.score.reshape(texts, labels, exits).min(axis=1)
    return Opinion(score, opinion.answer.reshape(texts, labels, exits).swapaxes(1, 2))


def as_binary(logits: NDArray) -> NDArray:
    """Turn multi-label logits (texts, exits, labels) into those of no and yes, (texts · labels, exits, 2)."""
    each = logits.swapaxes(1, 2).reshape(-1, logits.shape[1])  # (texts · labels, exits)
    return np.stack([np.zeros_like(each), each], axis=-1)
