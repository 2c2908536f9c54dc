"""Which policies are tested for a guarantee, in which order and on which texts.

The guarantee is Learn-then-Test (Angelopoulos et al., 2021) with a fixed sequence: policies are tested one after
another, the most cautious first, against the hypothesis that the risk is above the limit, and testing stops at the
first that cannot be rejected. As long as the order of the policies does not depend on the texts they are tested on, the
probability that the chosen one breaks the limit is at most 1 − confidence, whatever the model, for texts drawn as the
calibration texts were. A single strategy is tested over a grid of thresholds fixed beforehand, on all texts. Several
strategies, or one that must be fitted, are searched on one half of the texts for the front of risk against speed-up,
and that front is tested on the other half (Pareto Testing, Laufer-Goldshtein et al., 2023). Whether a search of all
strategies is worth half of the texts depends on the texts, so "best" tests both: the front, and one strategy fixed
beforehand on all texts, each at half of the allowed error, so that together they keep the confidence. The choice of the
exits to ask is a search too: it is made on a part of the texts that takes no part in the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from exitpoll.decide.bounds import texts_needed
from exitpoll.decide.certificate import Guarantee
from exitpoll.decide.costs import ExitCosts
from exitpoll.decide.exit_choice import choose_exits
from exitpoll.decide.fitting import candidates, variants
from exitpoll.decide.guarantee import certify, with_certificate
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION
from exitpoll.decide.policy import Policy
from exitpoll.decide.scoring import labelled_by_full_model
from exitpoll.decide.strategies import strategy_named
from exitpoll.decide.sweep import POINTS, curve_of, front_of
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError, TooFewTextsError

LEAST_TEXTS = 20  # to calibrate a guarantee on
CHOOSE_EXITS_ON = 4  # every so many-th text chooses the exits, if these are to be chosen
FIXED = "max_prob"  # the strategy that "best" tests on all texts: of those that need no search, the most robust one


def prove(
    trace: Trace,
    strategy: str | Policy,
    guarantee: Guarantee,
    seed: int,
    *,
    choose: bool = False,
    search: Trace | None = None,
) -> Policy:
    """Test one strategy on all texts, or search on one half and test on the other, or both.

    Args:
        trace: Every exit's logits on the calibration texts.
        strategy: A name, a policy whose settings are kept, or "best" to search all strategies.
        guarantee: What is to be proven.
        seed: Seed of the halves.
        choose: Whether to choose the exits to ask too, on a part of the texts that nothing is tested on.
        search: Other texts, to search on and to choose exits on; then all texts of `trace` are for the test.

    Returns:
        The policy with its certificate; one that never exits early where nothing could be proven.
    """
    if (trace.problem_type == REGRESSION) != (guarantee.tolerance is not None):
        missing = "values are never equal: name the tolerance up to which they count as the same, or use speedup"
        needless = "a tolerance is for regression, and these answers are classes"
        raise InputError(missing if guarantee.tolerance is None else needless, options=["tolerance", "speedup"])
    if guarantee.risk == "accuracy":
        trace.gold("a loss of accuracy")
    if choose and trace.problem_type == REGRESSION:
        raise InputError("for regression, exits are not chosen for a guarantee: ask all, or name some")
    if search is not None:
        return _searched_on(search, trace, strategy, guarantee, choose=choose)
    if choose:
        return _with_chosen_exits(trace, strategy, guarantee, seed)
    if strategy == "best" and trace.problem_type != REGRESSION:
        return _better_of_both(trace, guarantee, seed)
    if strategy == "best":
        return _tested_on_half(trace, None, guarantee, seed)
    single = _single(strategy, trace)
    if single is not None:
        return _tested_on_all(trace, single, guarantee)
    return _tested_on_half(trace, [strategy], guarantee, seed)


def _searched_on(search: Trace, trace: Trace, strategy: str | Policy, guarantee: Guarantee, *, choose: bool) -> Policy:
    """Search strategies, and exits if asked to, on some texts, and test what was found on others."""
    _check_enough(trace, guarantee, halves=1)
    strategies = None if strategy == "best" else [strategy]
    asked = choose_exits(search, strategies, guarantee, tested_on=len(trace)) if choose else None
    tested, searched = trace.at_exits(asked), search.at_exits(asked)

    def found(guarantee: Guarantee) -> Policy:
        return certify(tested, _front(searched, strategies), guarantee, searched_on=len(search))

    if strategy == "best" and trace.problem_type != REGRESSION:
        policy = _better_with_fixed(tested, found, guarantee, halves=1, searched_on=len(search))
    else:
        policy = found(guarantee)
    return with_certificate(policy, exits_chosen_on=len(search) if choose else None)


def _with_chosen_exits(trace: Trace, strategy: str | Policy, guarantee: Guarantee, seed: int) -> Policy:
    """Choose the exits to ask on some of the texts, and prove the guarantee on the others as if there were no more."""
    chosen_on = np.random.default_rng(seed).permutation(len(trace))[: len(trace) // CHOOSE_EXITS_ON]
    others = np.setdiff1d(np.arange(len(trace)), chosen_on)
    strategies = None if strategy == "best" else [strategy]
    asked = choose_exits(trace.select(np.sort(chosen_on)), strategies, guarantee, tested_on=len(others))
    try:
        policy = prove(trace.select(others).at_exits(asked), strategy, guarantee, seed)
    except InputError as error:
        raise InputError(f"{error}, beside the {len(chosen_on)} that choose the exits") from error
    return with_certificate(policy, exits_chosen_on=len(chosen_on))


def _better_of_both(trace: Trace, guarantee: Guarantee, seed: int) -> Policy:
    """Take the faster of what a search proves on half of the texts and of one strategy fixed beforehand."""

    def found(guarantee: Guarantee) -> Policy:
        return _tested_on_half(trace, None, guarantee, seed)

    return _better_with_fixed(trace, found, guarantee, halves=2, searched_on=len(trace) // 2)


def _better_with_fixed(
    trace: Trace, found: Callable[[Guarantee], Policy], guarantee: Guarantee, *, halves: int, searched_on: int
) -> Policy:
    """Take the faster of what a search proves and of one strategy fixed beforehand, tested on all texts.

    A search of few texts prefers what was right on them by chance, and then proves little. Either may fail with half of
    the allowed probability, so the faster one fails with at most all of it. With too few texts for a search, the fixed
    strategy is tested at the full level; that depends on their number alone.
    """
    fixed = Policy(FIXED, problem_type=trace.problem_type)
    stricter = for_the_better_of_two(guarantee)
    if len(trace) < _texts_needed(stricter, halves=halves):
        return with_certificate(_tested_on_all(trace, fixed, guarantee), fixed=FIXED)
    on_all = with_certificate(_tested_on_all(trace, fixed, stricter), fixed=FIXED, searched_on=searched_on)
    return at_confidence(max(on_all, found(stricter), key=_worth), guarantee)


def _worth(policy: Policy) -> tuple[float, float]:
    """Return how fast a policy is or, where nothing is guaranteed, how near it comes to that."""
    certificate = policy.certificate
    assert certificate is not None
    if certificate.met:
        return certificate.speedup, 0.0
    return 0.0, -1.0 if certificate.nearest is None else -certificate.nearest.guarantee.at_most


def for_the_better_of_two(guarantee: Guarantee) -> Guarantee:
    """Return the guarantee that each of two policies must keep, so that the better one keeps the given one.

    Args:
        guarantee: What is to hold for the better one.

    Returns:
        The same at a higher confidence: each may fail with half of the allowed probability.
    """
    return replace(guarantee, confidence=1 - (1 - guarantee.confidence) / 2)


def at_confidence(policy: Policy, guarantee: Guarantee) -> Policy:
    """State the guarantee of the better of two policies, of which each was tested at a higher confidence.

    Args:
        policy: The better one, with its certificate.
        guarantee: The guarantee that holds for it, though it was chosen.

    Returns:
        The policy.
    """
    certificate = policy.certificate
    assert certificate is not None
    nearest = certificate.nearest
    if nearest is not None:
        nearest = replace(nearest, guarantee=replace(nearest.guarantee, confidence=guarantee.confidence))
    level = f"{100 * certificate.goal.confidence:g} %" if isinstance(certificate.goal, Guarantee) else ""
    test = f"{certificate.test}, the better of two at {level}"
    return with_certificate(policy, goal=guarantee, nearest=nearest, test=test)


def _texts_needed(guarantee: Guarantee, halves: int) -> int:
    """Return how many texts a guarantee needs where it is tested on one of so many halves."""
    return max(halves * texts_needed(guarantee.risk, guarantee.at_most, guarantee.confidence), LEAST_TEXTS)


def _check_enough(trace: Trace, guarantee: Guarantee, halves: int) -> None:
    """Refuse too few texts for a guarantee, even if early exit changed nothing."""
    needed = _texts_needed(guarantee, halves)
    if len(trace) < needed:
        raise TooFewTextsError(
            f"{len(trace)} texts are too few to guarantee that {guarantee}; {needed} or more are needed"
            + (" (half of them to choose a strategy, half to test it)" if halves == 2 else "")
        )


def _tested_on_all(trace: Trace, policy: Policy, guarantee: Guarantee) -> Policy:
    """Test one strategy on all texts, over thresholds fixed beforehand."""
    _check_enough(trace, guarantee, halves=1)
    return certify(trace, on_grid(policy, trace), guarantee)


def _tested_on_half(trace: Trace, strategies: list[str | Policy] | None, guarantee: Guarantee, seed: int) -> Policy:
    """Search strategies on one half of the texts, and test their front on the other."""
    _check_enough(trace, guarantee, halves=2)
    order = np.random.default_rng(seed).permutation(len(trace))
    search, proof = trace.select(np.sort(order[::2])), trace.select(np.sort(order[1::2]))
    return certify(proof, _front(search, strategies), guarantee, searched_on=len(search))


def _single(strategy: str | Policy, trace: Trace) -> Policy | None:
    """Return the one policy to be tested, if nothing is to be chosen or fitted."""
    if isinstance(strategy, Policy):
        return replace(strategy, threshold=None) if strategy_named(strategy.strategy).grid else None
    if strategy == "best" or strategy_named(strategy).grid is None:
        return None
    choices = variants([strategy])
    return replace(choices[0], problem_type=trace.problem_type) if len(choices) == 1 else None


def on_grid(policy: Policy, trace: Trace) -> list[Policy]:
    """Set one policy's threshold to every value of a grid that does not depend on the texts.

    Args:
        policy: Strategy and settings.
        trace: Its shape says how many exits and classes there are.

    Returns:
        Policies, the most cautious first.
    """
    classes = 2 if trace.problem_type == MULTI_LABEL else trace.logits.shape[-1]  # every label is no or yes
    grid = strategy_named(policy.strategy).grid
    assert grid is not None
    thresholds = grid(policy.settings, len(trace.exit_layers), classes)
    return [replace(policy, threshold=float(threshold)) for threshold in thresholds]


def _front(trace: Trace, strategies: list[str | Policy] | None) -> list[Policy]:
    """Search strategies for the front of disagreement against speed-up, on texts that will not be tested on.

    This order serves a loss of accuracy too: disagreement bounds it, and is far less a matter of chance.
    """
    scored = labelled_by_full_model(trace)
    costs = ExitCosts.in_layers(trace.exit_layers)
    curves = [curve_of(scored, candidate, scored.metric, POINTS, costs) for candidate in candidates(trace, strategies)]
    speedup = np.concatenate([curve.speedup for curve in curves])
    score = np.concatenate([curve.score for curve in curves])
    points = [(curve, point) for curve in curves for point in range(len(curve.levels))]
    front = [points[number] for number in front_of(speedup, score)[::-1]]
    first, start = front[0]
    more_cautious = [(first, point) for point in range(len(first.levels) - 1, start, -1)]  # than the front itself
    return [curve.policy_at(point) for curve, point in (*more_cautious, *front)]
