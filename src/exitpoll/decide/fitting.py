"""Strategies with the settings worth trying, those that learn fitted to a trace."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, predictions
from exitpoll.decide.numerics import highest_class, log_softmax, tamed
from exitpoll.decide.policy import Policy
from exitpoll.decide.strategies import (
    FEATURES,
    STRATEGIES,
    Opinion,
    as_binary,
    check_takes_values,
    features,
    strategy_named,
)
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError

Towards = Literal["agreement", "right"]

KS = (0.0, 0.25, 0.5, 0.75)  # the seed's
TOWARDS: tuple[Towards, ...] = ("agreement", "right")
FOLDS = 5
FITTED_ON = 20_000  # texts; so few numbers are fitted that more would not change them
FIRST_THRESHOLDS = 8  # how many thresholds of the votes a hybrid is tried with


@dataclass(frozen=True)
class Candidate:
    """A strategy with settings, and what it makes of a trace; thresholds are still to be chosen."""

    policy: Policy  # without a threshold
    opinion: Opinion


def variants(strategies: Iterable[str] | None = None, ks: Sequence[float] = KS) -> list[Policy]:
    """List strategies that need no fitting, with the settings worth trying.

    Args:
        strategies: Their names; all by default.
        ks: The exponents for votes and soft votes.

    Returns:
        Policies without thresholds.
    """
    settings: dict[str, list[Mapping[str, Any]]] = {
        "confident_patience": [{"confidence": confidence} for confidence in (0.8, 0.9, 0.95, 0.99)],
        "js_patience": [{"divergence": divergence} for divergence in (0.001, 0.01, 0.05, 0.1)],
        "votes": [{"k": k} for k in ks],
        "soft_votes": [{"k": k} for k in ks],
    }
    names = [name for name in strategies or STRATEGIES if name not in ("hybrid", "learned")]
    return [Policy(name, None, each) for name in names for each in settings.get(name, [{}])]


def candidates(
    trace: Trace, strategies: Iterable[str | Policy] | None = None, ks: Sequence[float] = KS
) -> Iterator[Candidate]:
    """Ask strategies about a trace, one after another; those that learn are fitted to it.

    Args:
        trace: What every exit said.
        strategies: Names, which stand for all their variants, or policies, which stand for themselves.
        ks: The exponents for votes and soft votes.

    Yields:
        What each makes of the trace. A fitted one has not seen the texts that it speaks of, see `cross_fitted`.
    """
    for k in ks:
        if not 0 <= k <= 1:
            raise InputError(f"k {k:g} must be between 0 and 1")
    for each in _able(trace) if strategies is None else strategies:
        if isinstance(each, Policy):
            yield Candidate(replace(each, threshold=None), _ask(each, trace))
            continue
        strategy_named(each)
        for policy in _variants_for(trace, each, ks):
            yield Candidate(policy, _ask(policy, trace))
        if each == "hybrid":
            yield from _hybrids(trace, ks)
        if each in _FITS and trace.problem_type != REGRESSION:
            yield from (cross_fitted(trace, each, towards) for towards in _goals(trace))


def _able(trace: Trace) -> list[str]:
    """Name the strategies that can decide on a trace."""
    return [name for name, row in STRATEGIES.items() if trace.problem_type != REGRESSION or row.regression]


def _goals(trace: Trace) -> tuple[Towards, ...]:
    """Say what can be fitted towards: without labels, only agreement with the last head."""
    return TOWARDS if trace.labels is not None else TOWARDS[:1]


def _kind(trace: Trace) -> dict[str, Any]:
    """Name the problem type for a policy."""
    return {"problem_type": trace.problem_type}


def _variants_for(trace: Trace, name: str, ks: Sequence[float]) -> list[Policy]:
    """List the variants of one strategy; for values, some distances to stay within, by how far the values spread."""
    if trace.problem_type == REGRESSION:
        check_takes_values(name)
        spread = float(predictions(np.asarray(trace.logits)[:, -1], REGRESSION).std()) or 1.0
        shares = (0.01, 0.03, 0.1, 0.3)
        return [Policy(name, None, {"within": float(f"{share * spread:.3g}")}, **_kind(trace)) for share in shares]
    return [replace(policy, **_kind(trace)) for policy in variants([name], ks)]


def _ask(policy: Policy, trace: Trace) -> Opinion:
    """Ask about a trace part by part: the steps on the way to an opinion are larger than it."""
    policy.check(trace)
    return _joined([policy.opinion(np.asarray(part.logits)) for part in trace.chunks()])


def _joined(parts: Sequence[Opinion]) -> Opinion:
    """Make one opinion of those on parts of a trace."""
    if len(parts) == 1:
        return parts[0]
    return Opinion(np.concatenate([part.score for part in parts]), np.concatenate([part.answer for part in parts]))


# ---- hybrid ---------------------------------------------------------------------------------------------------------


def _hybrids(trace: Trace, ks: Sequence[float]) -> Iterator[Candidate]:
    """Join votes, at some thresholds, with entropy, whose threshold stays open; where neither fires, ask the head."""
    by_entropy = _ask(Policy("entropy", None, **_kind(trace)), trace)
    for votes in _variants_for(trace, "votes", ks):
        by_votes = _ask(votes, trace)
        for threshold in _some_levels(by_votes.score[:, :-1]):
            fires = by_votes.score >= threshold
            score = np.where(fires & np.isfinite(by_entropy.score), np.inf, by_entropy.score)
            shown = fires.reshape(*fires.shape, *[1] * (by_votes.answer.ndim - 2))
            answer = np.where(shown, by_votes.answer, by_entropy.answer)
            members = [
                {"strategy": "votes", "threshold": threshold, "settings": dict(votes.settings)},
                {"strategy": "entropy", "threshold": None, "settings": {}},
            ]
            policy = Policy("hybrid", None, {"policies": members}, fallback="head", **_kind(trace))
            yield Candidate(policy, Opinion(score, answer))


def _some_levels(scores: NDArray) -> list[float]:
    """Choose a few levels, midway between values that occur, or one that is never reached where there are none."""
    values = np.unique(scores[np.isfinite(scores)])
    between = (values[1:] + values[:-1]) / 2
    if not len(between):
        return [float(values.max(initial=0.0) + 1)]
    some = np.unique(np.linspace(0, len(between) - 1, FIRST_THRESHOLDS).round().astype(int))
    return [float(f"{level:.6g}") for level in between[some]]


# ---- temperatures ---------------------------------------------------------------------------------------------------


def fit_temperatures(trace: Trace, towards: Towards = "right") -> list[float]:
    """Find for every exit the temperature at which its probabilities fit best (Guo et al., 2017).

    Args:
        trace: What every exit said; with labels, if these are to be fitted to.
        towards: Fit to the labels, "right", or to the last head's answers, "agreement".

    Returns:
        Temperatures, (exits,), between 1/20 and 20.
    """
    from scipy.optimize import minimize_scalar

    logits, gold = _classes(_sample(trace), towards)
    rows = np.arange(len(gold))

    def surprise(log_temperature: float, number: int) -> float:
        """Mean negative log-likelihood of the answers."""
        return -float(log_softmax(logits[:, number] / np.exp(log_temperature))[rows, gold].mean())

    bounds = (-np.log(20), np.log(20))
    found = [minimize_scalar(surprise, bounds=bounds, args=(number,)).x for number in range(logits.shape[1])]
    return [float(f"{np.exp(each):.6g}") for each in found]


def fit_max_prob(trace: Trace, towards: Towards = "right") -> Policy:
    """Give max_prob with temperatures fitted to a trace, without a threshold."""
    settings = {"temperatures": fit_temperatures(trace, towards), "towards": towards}
    return Policy("max_prob", None, settings, **_kind(trace))


# ---- learned --------------------------------------------------------------------------------------------------------


def fit_learned(trace: Trace, towards: Towards = "agreement") -> Policy:
    """Learn from a trace when a head's answer can be trusted: one logistic regression for every exit.

    Args:
        trace: What every exit said; with labels, if the goal is to be right.
        towards: What to estimate the chance of: "agreement" with the last head, or being "right".

    Returns:
        A policy without a threshold; its settings are the coefficients.
    """
    logits, gold = _classes(_sample(trace), towards)
    target = highest_class(logits) == gold[:, None]  # (texts, exits)
    told, _ = features(logits)  # (texts, exits, features)
    rows = [_regression(told[:, number], target[:, number]) for number in range(logits.shape[1])]
    settings = {"towards": towards, "weights": [row[:-1] for row in rows], "biases": [row[-1] for row in rows]}
    return Policy("learned", None, settings, **_kind(trace))


def cross_fitted(trace: Trace, strategy: str, towards: Towards = "agreement", seed: int = 0) -> Candidate:
    """Fit a strategy so that its thresholds can be chosen on the same texts.

    Its opinion of every text is that of a model fitted to the other parts of the trace, as of a text it never saw.

    Args:
        trace: What every exit said.
        strategy: What to fit: learned or max_prob.
        towards: As in `fit_learned`.
        seed: Seed of the parts.

    Returns:
        The strategy fitted to all texts, with opinions fitted to the others.
    """
    fit = _FITS[strategy]
    whole = fit(trace, towards)
    part_of = np.random.default_rng(seed).permutation(len(trace)) % min(FOLDS, max(len(trace) // 2, 1))
    if part_of.max() == 0:
        return Candidate(whole, _ask(whole, trace))
    texts, opinions = [], []
    for part in range(part_of.max() + 1):
        others, own = np.flatnonzero(part_of != part), np.flatnonzero(part_of == part)
        opinions.append(_ask(fit(trace.select(others), towards), trace.select(own)))
        texts.append(own)
    return Candidate(whole, _in_order(_joined(opinions), np.argsort(np.concatenate(texts))))


def _in_order(opinion: Opinion, order: NDArray) -> Opinion:
    """Put the texts of an opinion into another order."""
    return Opinion(opinion.score[order], opinion.answer[order])


_FITS: dict[str, Callable[[Trace, Towards], Policy]] = {"max_prob": fit_max_prob, "learned": fit_learned}


def _regression(told: NDArray, target: NDArray) -> list[float]:
    """Fit one exit: a weight for each feature as it is, and a bias."""
    if target.all() or not target.any():
        share = (target.sum() + 1) / (len(target) + 2)
        return [0.0] * len(FEATURES) + [float(f"{np.log(share / (1 - share)):.6g}")]
    from sklearn.linear_model import LogisticRegression

    middle, spread = told.mean(axis=0), told.std(axis=0)
    spread[spread < 1e-9] = 1.0  # says the same of every text; its weight stays 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nearly there is good enough
        model = LogisticRegression(C=0.1, solver="newton-cholesky").fit((told - middle) / spread, target)
    weights = model.coef_[0] / spread
    bias = model.intercept_[0] - weights @ middle
    return [float(f"{number:.6g}") for number in (*weights, bias)]


def _sample(trace: Trace) -> Trace:
    """Draw as many texts as fitting needs."""
    if len(trace) <= FITTED_ON:
        return trace
    return trace.select(np.sort(np.random.default_rng(0).choice(len(trace), FITTED_ON, replace=False)))


def _classes(trace: Trace, towards: Towards) -> tuple[NDArray, NDArray]:
    """Give logits, and the classes to fit to; every label of multi-label is a question of its own with two classes."""
    if towards not in TOWARDS:
        raise InputError(f"towards '{towards}' is unknown; choose one of: {', '.join(TOWARDS)}")
    if trace.problem_type == REGRESSION:
        raise InputError("nothing can be fitted to values: this trace is of a regression")
    if not len(trace):
        raise InputError("the trace has no texts to fit to")
    logits = tamed(np.asarray(trace.logits))
    if trace.problem_type == MULTI_LABEL:
        logits = as_binary(logits)
    if towards == "agreement":
        return logits, highest_class(logits[:, -1:])[:, 0]
    return logits, trace.gold("fitting towards what is right").reshape(-1)
