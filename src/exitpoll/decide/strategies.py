"""The exit strategies by name: everything that the rest of the project needs to know about them, in one table.

The functions that compute a score and an answer are in `formulas`; call them through `ask`, which handles problem types
and logits that are NaN or infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import shorten

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide import formulas, steps, thresholds
from exitpoll.decide.fits import FEATURES, Fit, fit_distances, fit_logistic, fit_temperatures
from exitpoll.decide.formulas import Opinion
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from exitpoll.decide.numerics import all_finite, binary_logits, make_finite
from exitpoll.decide.settings import (
    EXPONENT,
    FIT_TARGET,
    FLAG,
    NUMBER,
    PER_EXIT,
    TEMPERATURES,
    Setting,
    Settings,
    is_number,
    per_exit_rows,
)
from exitpoll.errors import InputError

KS = (0.0, 0.25, 0.5, 0.75)  # the exponents of the votes that the paper tries


@dataclass(frozen=True)
class ForValues:
    """How a strategy works where the answer is a value."""

    function: Callable[..., Opinion]
    variants: Callable[[float], list[Settings]]  # the spread of the values -> settings worth trying
    step: steps.StepFunction | None = None
    falls: bool = False  # whether its natural unit falls with certainty
    fit: Fit | None = None


@dataclass(frozen=True)
class Strategy:
    """One row of the table: everything that the rest of the project needs to know about a strategy."""

    function: Callable[..., Opinion]
    about: str  # its score in a few words, for tables in help and documentation
    step: steps.StepFunction | None = None  # the same at one exit, from what the exits before left in memory
    grid: thresholds.Grid | None = None  # thresholds that a guarantee is tested at; without one it is searched for
    falls: bool = False  # whether its natural unit falls with certainty
    settings: Mapping[str, Setting] = field(default_factory=dict)
    fit: Fit | None = None
    regression: ForValues | None = None
    combines: tuple[str, ...] = ()  # strategies that it is made of, the last with an open threshold

    @property
    def variants(self) -> list[Settings]:
        """Settings worth trying; none for a strategy that must be fitted or combined first."""
        if any(setting.required for setting in self.settings.values()):
            return []
        return [{name: value} for name, setting in self.settings.items() for value in setting.tries] or [{}]

    def variants_on(self, logits: NDArray) -> list[Settings]:
        """Return settings worth trying on some texts, for those that must occur in them to have an effect.

        Args:
            logits: Finite, (texts, exits, classes).

        Returns:
            The settings.
        """
        compared = {name: row for name, row in self.settings.items() if row.compared_with is not None}
        return [{name: value} for name, row in compared.items() for value in row.tries_on(logits)] or self.variants

    @property
    def sign(self) -> int:
        """The factor that turns a threshold in natural units into one for scores, which always rise."""
        return -1 if self.falls else 1

    def sign_for(self, problem_type: str) -> int:
        """Return this factor for a problem type."""
        if problem_type == REGRESSION and self.regression is not None:
            return -1 if self.regression.falls else 1
        return self.sign

    def fit_for(self, problem_type: str) -> Fit | None:
        """Return how the strategy is fitted for a problem type; None if it has nothing to fit."""
        if problem_type == REGRESSION:
            return None if self.regression is None else self.regression.fit
        return self.fit


def _as_it_is(spread: float) -> list[Settings]:
    """Return that there is nothing to set."""
    return [{}]


def _only_fitted(spread: float) -> list[Settings]:
    """Return that there is nothing to try: all settings are fitted."""
    return []


def _within(spread: float) -> list[Settings]:
    """Return distances to stay within, as shares of how far the values spread."""
    return [{"within": float(f"{share * spread:.3g}")} for share in (0.01, 0.03, 0.1, 0.3)]


def _are_policies(values: object) -> bool:
    """Return whether values are policies to make a hybrid of; what is wrong inside one of them is raised."""
    return isinstance(values, list | tuple) and 0 < len(values) <= MOST_MEMBERS and all(map(_is_policy, values))


def _is_policy(value: object) -> bool:
    """Return whether a value is a strategy with a threshold, itself not combined of others."""
    if not isinstance(value, Mapping) or not set(value) <= {"strategy", "threshold", "settings"}:
        return False
    if "strategy" not in value:
        return False
    settings = value.get("settings", {})
    check_settings(value["strategy"], settings)
    row = STRATEGIES[value["strategy"]]
    if row.combines or any(setting.required and name not in settings for name, setting in row.settings.items()):
        return False
    return value.get("threshold") is None or is_number(value["threshold"])


def hybrid(logits: NDArray, *, policies: Sequence[Settings], problem_type: str = SINGLE_LABEL) -> Opinion:
    """Number of policies that fire: exit when any does, as Sun et al. (2021) suggest for votes with entropy, or all.

    Args:
        logits: (texts, exits, classes)
        policies: Their strategies, thresholds and settings; one may have no threshold yet.
        problem_type: As in transformers.

    Returns:
        The opinion, in units of policies; in those of the policy without a threshold where there is one.
    """
    opinions = [_ask(policy["strategy"], logits, policy.get("settings", {}), problem_type) for policy in policies]
    return formulas.combine(opinions, [_level(policy, problem_type) for policy in policies])


def _level(policy: Settings, problem_type: str) -> float | None:
    """Return what the score of a member of a hybrid must reach."""
    threshold = policy.get("threshold")
    return None if threshold is None else strategy_named(policy["strategy"]).sign_for(problem_type) * threshold


MOST_MEMBERS = 16  # of a hybrid
_POLICIES = Setting(
    f"a list of at most {MOST_MEMBERS} policies with strategy, threshold and settings, none a hybrid",
    _are_policies,
    required=True,
)

# A new strategy is one row here and its function in formulas.py.
STRATEGIES: dict[str, Strategy] = {
    "entropy": Strategy(
        formulas.entropy,
        "entropy of the current head",
        step=steps.entropy,
        grid=thresholds.entropies,
        falls=True,
        settings={"normalized": FLAG},
    ),
    "max_prob": Strategy(
        formulas.max_prob,
        "highest probability of the current head, calibrated by temperatures where they are fitted",
        step=steps.max_prob,
        grid=thresholds.probabilities,
        settings={"temperatures": TEMPERATURES, "towards": FIT_TARGET},
        fit=fit_temperatures,
    ),
    "margin": Strategy(
        formulas.margin,
        "difference between the two highest probabilities of the current head",
        step=steps.margin,
        grid=thresholds.shares,
    ),
    "patience": Strategy(
        formulas.patience,
        "exits in a row with the same prediction",
        step=steps.patience,
        grid=thresholds.run_lengths,
        settings={"within": NUMBER},
        regression=ForValues(formulas.stable, _within, steps.stable),
    ),
    "confident_patience": Strategy(
        formulas.confident_patience,
        "exits in a row with a confident prediction",
        step=steps.confident_patience,
        grid=thresholds.run_lengths,
        settings={"confidence": NUMBER.trying(0.8, 0.9, 0.95, 0.99, compared_with=formulas.confidences)},
    ),
    "js_patience": Strategy(
        formulas.js_patience,
        "exits in a row with nearly the same distribution",
        step=steps.js_patience,
        grid=thresholds.run_lengths,
        settings={"divergence": NUMBER.trying(0.001, 0.01, 0.05, 0.1, compared_with=formulas.divergences)},
    ),
    "votes": Strategy(
        formulas.votes,
        "most votes for one class, divided by l^k",
        step=steps.votes,
        grid=thresholds.vote_values,
        settings={"k": EXPONENT.trying(*KS)},
    ),
    "soft_votes": Strategy(
        formulas.soft_votes,
        "highest sum of probabilities, divided by l^k",
        step=steps.soft_votes,
        grid=thresholds.summed_probabilities,
        settings={"k": EXPONENT.trying(*KS)},
    ),
    "mean": Strategy(
        formulas.mean,
        "highest probability of the mean distribution",
        step=steps.mean,
        grid=thresholds.probabilities,
    ),
    "geometric": Strategy(
        formulas.geometric,
        "highest probability of the geometric mean of the distributions",
        step=steps.geometric,
        grid=thresholds.probabilities,
    ),
    "hybrid": Strategy(
        hybrid,
        "how many of several policies fire",
        settings={"policies": _POLICIES},
        combines=("votes", "entropy"),
    ),
    "learned": Strategy(
        formulas.learned,
        "learned chance that the head answers as the last one will, or is right; for regression, learned distance from "
        "the last head's value",
        step=steps.learned,
        grid=thresholds.shares,
        settings={"coefficients": per_exit_rows(len(FEATURES)), "intercepts": PER_EXIT, "towards": FIT_TARGET},
        fit=fit_logistic,
        regression=ForValues(
            formulas.learned_distance, _only_fitted, step=steps.learned_distance, falls=True, fit=fit_distances
        ),
    ),
    "static": Strategy(
        formulas.static,
        "number of the exit: all texts leave at the same one",
        step=steps.static,
        grid=thresholds.exit_numbers,
        regression=ForValues(formulas.static_values, _as_it_is, step=steps.static_values),
    ),
}
STATIC = "static"  # the strategy whose policies are smaller models


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


def check_settings(name: object, settings: object) -> None:
    """Check that a strategy has these settings and that their values are valid.

    Args:
        name: The strategy's name.
        settings: Settings by name.
    """
    if not isinstance(name, str):
        raise InputError(f"strategy {name!r} must be a name")
    known = strategy_named(name).settings
    if not isinstance(settings, Mapping):
        raise InputError(f"settings {shorten(repr(settings), 60)} must be names with values")
    for key, value in settings.items():
        if key not in known:
            raise InputError(f"strategy '{name}' has no setting '{key}'; it has: {', '.join(sorted(known)) or 'none'}")
        if not known[key].is_valid(value):
            shown = shorten(repr(value), 60)
            raise InputError(f"setting {key} {shown} of strategy '{name}' must be {known[key].wanted}")


def members(settings: Settings) -> Iterator[Settings]:
    """Iterate over the policies that a strategy with these settings combines; none for most strategies."""
    yield from settings.get("policies", ())


def open_member(settings: Settings) -> Settings | None:
    """Return the combined policy that has no threshold yet, if there is one."""
    return next((member for member in members(settings) if member.get("threshold") is None), None)


def check_takes_values(name: str) -> ForValues:
    """Check that a strategy works for regression, and return how."""
    regression = strategy_named(name).regression
    if regression is None:
        able = ", ".join(name for name, row in STRATEGIES.items() if row.regression)
        raise InputError(f"strategy '{name}' needs classes; for regression choose one of: {able}")
    return regression


# ---- asking ---------------------------------------------------------------------------------------------------------


def ask(name: str, logits: NDArray, settings: Settings, problem_type: str) -> Opinion:
    """Ask a strategy about texts of any problem type, whatever their logits.

    Args:
        name: The strategy's name.
        logits: (texts, exits, classes)
        settings: The strategy's settings.
        problem_type: As in transformers.

    Returns:
        Its opinion; from the first exit with NaN or infinite logits on, a text's score is −∞ and it stays to the end.
    """
    if all_finite(logits):
        return _ask(name, logits, settings, problem_type)
    opinion = _ask(name, make_finite(logits), settings, problem_type)
    broken = np.logical_or.accumulate(~np.isfinite(logits).all(axis=-1), axis=1)  # (texts, exits)
    return Opinion(np.where(broken, -np.inf, opinion.score), opinion.answer)


def _ask(name: str, logits: NDArray, settings: Settings, problem_type: str) -> Opinion:
    """Ask a strategy about finite logits."""
    strategy = strategy_named(name)
    if strategy.combines:
        return strategy.function(logits, problem_type=problem_type, **settings)
    if problem_type == REGRESSION:
        return check_takes_values(name).function(logits, **settings)
    if problem_type == MULTI_LABEL:
        return _ask_every_label(strategy, logits, settings)
    if logits.shape[-1] < 2:
        raise InputError("a strategy for classes needs at least two; use problem_type regression for values")
    return strategy.function(logits, **settings)


def _ask_every_label(strategy: Strategy, logits: NDArray, settings: Settings) -> Opinion:
    """Ask about every label as a question of its own, no or yes; a text is as sure as its least sure label."""
    texts, exits, labels = logits.shape
    opinion = strategy.function(binary_logits(logits), **settings)
    score = opinion.score.reshape(texts, labels, exits).min(axis=1)
    return Opinion(score, opinion.answer.reshape(texts, labels, exits).swapaxes(1, 2))
