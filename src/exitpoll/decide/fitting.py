"""Candidates: strategies with the settings worth trying, those that learn fitted to a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.formulas import Opinion, combine
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, predictions
from exitpoll.decide.numerics import binary_logits, highest_class, make_finite
from exitpoll.decide.policy import Policy
from exitpoll.decide.strategies import KS, STRATEGIES, check_takes_values, strategy_named
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError

Towards = Literal["agreement", "right"]  # what to fit to: the last head's answers, or the labels

TOWARDS: tuple[Towards, ...] = get_args(Towards)
FOLDS = 5
FITTED_ON = 20_000  # texts; so few numbers are fitted that more texts would not change them
LEVELS_FROM = 2000  # texts that levels of settings are taken from
FIRST_THRESHOLDS = 8  # thresholds of the first strategy that a hybrid is tried with


@dataclass(frozen=True)
class Candidate:
    """A policy without a threshold, and its strategy's opinion on a trace, at the exits that it asks."""

    policy: Policy
    opinion: Opinion


def variants(strategies: Iterable[str] | None = None, ks: Sequence[float] = KS) -> list[Policy]:
    """List strategies that need no fitting, with the settings worth trying.

    Args:
        strategies: Their names; all by default.
        ks: The exponents for votes and soft votes.

    Returns:
        Policies without thresholds.
    """
    policies = []
    for name in STRATEGIES if strategies is None else strategies:
        row = strategy_named(name)
        settings = [{"k": k} for k in ks] if "k" in row.settings else row.variants
        policies += [Policy(name, None, variant) for variant in settings]
    return policies


def candidates(
    trace: Trace, strategies: Iterable[str | Policy] | None = None, ks: Sequence[float] = KS
) -> Iterator[Candidate]:
    """Ask strategies about a trace, one after another; those that learn are fitted to it.

    Args:
        trace: Every exit's logits.
        strategies: Names, which stand for all their variants, or policies, which stand for themselves.
        ks: The exponents for votes and soft votes.

    Yields:
        Candidates, one per policy; the opinion of a fitted one on a text is from a fit without it (`cross_fitted`).
    """
    for k in ks:
        if not 0 <= k <= 1:
            raise InputError(f"k {k:g} must be between 0 and 1")
    for strategy in _usable(trace) if strategies is None else strategies:
        if isinstance(strategy, Policy):
            yield Candidate(replace(strategy, threshold=None), _ask(strategy, trace))
            continue
        row = strategy_named(strategy)
        for policy in _variants_for(trace, strategy, ks):
            yield Candidate(policy, _ask(policy, trace))
        if row.combines:
            yield from _combinations(trace, strategy, ks)
        if row.fit_for(trace.problem_type) is not None:
            yield from (cross_fitted(trace, strategy, towards) for towards in _targets(trace))


def _usable(trace: Trace) -> list[str]:
    """List the strategies that can decide on a trace."""
    return [name for name, row in STRATEGIES.items() if trace.problem_type != REGRESSION or row.regression]


def _targets(trace: Trace) -> tuple[Towards, ...]:
    """List what can be fitted to: without labels, and for values, only the last head's answers."""
    return TOWARDS if trace.labels is not None and trace.problem_type != REGRESSION else TOWARDS[:1]


def _variants_for(trace: Trace, name: str, ks: Sequence[float]) -> list[Policy]:
    """List the variants of one strategy for the problem type of a trace."""
    if trace.problem_type == REGRESSION:
        spread = float(predictions(np.asarray(trace.logits)[:, -1], REGRESSION).std()) or 1.0
        settings = check_takes_values(name).variants(spread)
        return [Policy(name, None, variant, problem_type=REGRESSION) for variant in settings]
    row = strategy_named(name)
    if any(setting.compared_with is not None for setting in row.settings.values()):
        settings = row.variants_on(_for_classes(sample(trace, LEVELS_FROM)))
        return [Policy(name, None, variant, problem_type=trace.problem_type) for variant in settings]
    return [replace(policy, problem_type=trace.problem_type) for policy in variants([name], ks)]


def _ask(policy: Policy, trace: Trace) -> Opinion:
    """Ask about a trace in chunks: what is computed on the way is larger than the opinion."""
    policy.check(trace)
    parts = (part.at_exits(policy.exit_layers) for part in trace.chunks())
    return _concatenate([policy.opinion(np.asarray(part.logits)) for part in parts])


def _concatenate(parts: Sequence[Opinion]) -> Opinion:
    """Join the opinions on parts of a trace."""
    if len(parts) == 1:
        return parts[0]
    return Opinion(np.concatenate([part.score for part in parts]), np.concatenate([part.answer for part in parts]))


# ---- combinations ---------------------------------------------------------------------------------------------------


def _combinations(trace: Trace, name: str, ks: Sequence[float]) -> Iterator[Candidate]:
    """Combine one strategy, at some thresholds, with another, whose threshold stays open."""
    first, second = strategy_named(name).combines
    last = _ask(Policy(second, None, problem_type=trace.problem_type), trace)
    for policy in _variants_for(trace, first, ks):
        opinion = _ask(policy, trace)
        for level in _some_levels(opinion.score[:, :-1]):
            members = [
                {"strategy": first, "threshold": policy.natural(level), "settings": dict(policy.settings)},
                {"strategy": second, "threshold": None, "settings": {}},
            ]
            # Where neither fires, the head answers.
            combined = Policy(name, None, {"policies": members}, fallback="head", problem_type=trace.problem_type)
            yield Candidate(combined, combine([opinion, last], [level, None]))


def _some_levels(scores: NDArray) -> list[float]:
    """Choose a few levels midway between the scores that occur, or one that is never reached."""
    values = np.unique(scores[np.isfinite(scores)])
    between = (values[1:] + values[:-1]) / 2
    if not len(between):
        return [float(values.max(initial=0.0) + 1)]
    some = np.unique(np.linspace(0, len(between) - 1, FIRST_THRESHOLDS).round().astype(int))
    return [float(f"{level:.6g}") for level in between[some]]


# ---- fits -----------------------------------------------------------------------------------------------------------


def fit(trace: Trace, strategy: str, towards: Towards = "agreement") -> Policy:
    """Fit a strategy to a trace.

    Args:
        trace: Every exit's logits; with labels, if these are to be fitted to.
        strategy: A strategy that learns: max_prob or learned; for regression, learned.
        towards: Fit to the last head's answers, "agreement", or, for classes, to the labels, "right".

    Returns:
        A policy without a threshold.
    """
    compute = strategy_named(strategy).fit_for(trace.problem_type)
    if compute is None:
        able = ", ".join(name for name, row in STRATEGIES.items() if row.fit_for(trace.problem_type))
        raise InputError(f"strategy '{strategy}' has nothing to fit; choose one of: {able}")
    settings = compute(*_fitted_to(sample(trace, FITTED_ON), towards))
    return Policy(strategy, None, {**settings, "towards": towards}, problem_type=trace.problem_type)


def cross_fitted(trace: Trace, strategy: str, towards: Towards = "agreement", seed: int = 0) -> Candidate:
    """Fit a strategy so that its thresholds can be chosen on the same texts.

    Its opinion on a text is that of a fit to the other folds of the trace, as on a text that was never seen.

    Args:
        trace: Every exit's logits.
        strategy: A strategy that learns.
        towards: As in `fit`.
        seed: Seed of the folds.

    Returns:
        The strategy fitted to all texts, with opinions from fits to the other folds.
    """
    fitted = fit(trace, strategy, towards)
    fold_of = np.random.default_rng(seed).permutation(len(trace)) % min(FOLDS, max(len(trace) // 2, 1))
    if fold_of.max() == 0:
        return Candidate(fitted, _ask(fitted, trace))
    rows: list[NDArray] = []
    opinions: list[Opinion] = []
    for fold in range(fold_of.max() + 1):
        others, own = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
        opinions.append(_ask(fit(trace.select(others), strategy, towards), trace.select(own)))
        rows.append(own)
    opinion, order = _concatenate(opinions), np.argsort(np.concatenate(rows))
    return Candidate(fitted, Opinion(opinion.score[order], opinion.answer[order]))


def sample(trace: Trace, texts: int) -> Trace:
    """Draw at most so many texts, always the same.

    Args:
        trace: The texts.
        texts: How many.

    Returns:
        A trace of them.
    """
    if len(trace) <= texts:
        return trace
    return trace.select(np.sort(np.random.default_rng(0).choice(len(trace), texts, replace=False)))


def _for_classes(trace: Trace) -> NDArray:
    """Return finite logits of classes; every label of multi-label is a binary question of its own."""
    logits = make_finite(np.asarray(trace.logits))
    return binary_logits(logits) if trace.problem_type == MULTI_LABEL else logits


def _fitted_to(trace: Trace, towards: Towards) -> tuple[NDArray, NDArray]:
    """Return logits and the classes or values to fit to."""
    if towards not in TOWARDS:
        raise InputError(f"towards '{towards}' is unknown; choose one of: {', '.join(TOWARDS)}")
    if not len(trace):
        raise InputError("the trace has no texts to fit to")
    if trace.problem_type == REGRESSION:
        if towards != "agreement":
            raise InputError(f"towards '{towards}' is for classes; values are fitted to agreement with the last head")
        return np.asarray(trace.logits), predictions(np.asarray(trace.logits[:, -1]), REGRESSION)
    logits = _for_classes(trace)
    if towards == "agreement":
        return logits, highest_class(logits[:, -1:])[:, 0]
    return logits, trace.gold("fitting to the labels").reshape(-1)
