"""From a trace to a policy: for a speed-up, for a latency, or for a risk that is bounded with a stated confidence.

The guarantee is Learn-then-Test (Angelopoulos et al., 2021) with a fixed sequence: policies are tested one after
another, the most cautious first, each against the hypothesis that its risk is above the limit, and testing stops at
the first that cannot be refuted. As long as the order of the policies does not depend on the texts they are tested on,
the chance that the chosen one breaks the limit is at most 1 − confidence, whatever the model, for texts drawn as the
calibration texts were. One strategy is tested over a grid of thresholds fixed beforehand, on all texts. Several
strategies, or one that must be fitted, are searched on one half of the texts for the front of risk against speed-up,
and that front is tested on the other half (Pareto Testing, Laufer-Goldshtein et al., 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import takewhile
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from exitpoll.bounds import TESTS, texts_needed, upper_bound
from exitpoll.candidates import candidates, variants
from exitpoll.curves import POINTS, best_of, curve_of, front_of, sweep
from exitpoll.errors import InputError
from exitpoll.policy import Policy
from exitpoll.strategies import strategy_named
from exitpoll.tallies import agreement
from exitpoll.tasks import DEFAULT_METRICS, METRICS, REGRESSION, predictions
from exitpoll.trace import Trace

GRID_SIZE = 200
WORTH_WHILE = 1.1  # the least speed-up for which a nearer promise is named
LEAST_HALF = 20  # texts, below which halves are too small to search on

Risk = Literal["disagreement", "accuracy"]


@dataclass(frozen=True)
class Promise:
    """What is to be bounded, by how much, how surely."""

    risk: Risk = "disagreement"
    at_most: float = 0.01
    confidence: float = 0.95

    def __post_init__(self) -> None:
        """Refuse what cannot be promised."""
        if self.risk not in TESTS:
            raise InputError(f"risk '{self.risk}' is unknown; choose one of: {', '.join(TESTS)}")
        if not 0 < self.at_most < 1:
            raise InputError(f"max_drop {self.at_most:g} must be above 0 and below 1: 0.01 is one point")
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence {self.confidence:g} must be above 0 and below 1: 0.95 is usual")

    def __str__(self) -> str:
        """Say it in words."""
        share = f"{100 * self.at_most:.4g}"
        if self.risk == "disagreement":
            what = f"answers that differ from the full model's on at most {share} % of texts"
        else:
            what = f"an accuracy at most {share} points below the full model's"
        return f"{what}, with {100 * self.confidence:g} % confidence"


def calibrate(
    trace: Trace,
    strategy: str | Policy = "best",
    *,
    speedup: float | None = None,
    max_drop: float | None = None,
    latency_ms: float | None = None,
    confidence: float = 0.95,
    risk: Risk = "disagreement",
    metric: str | None = None,
    seed: int = 0,
) -> Policy:
    """Choose a policy for one goal: a speed-up, a bounded risk or a latency.

    Args:
        trace: What every exit said of the calibration texts; a loss of accuracy needs labels.
        strategy: A name, a policy whose settings are kept, or "best" to search all strategies.
        speedup: Goal: the best score at least this fast. No promise.
        max_drop: Goal: as fast as possible with a risk of at most this, promised with `confidence`.
        latency_ms: Goal: the best score within so many milliseconds a text on average, by the times that recording
            measured. No promise.
        confidence: How sure the promise is.
        risk: "disagreement", how often the answer differs from the full model's, or "accuracy", how much lower the
            share of right answers is than the full model's.
        metric: What to score by, for a speed-up or latency; the task's by default.
        seed: Seed of the halves, one to search on and one to certify on.

    Returns:
        The policy; its certificate says what it rests on. Where a promise cannot be met it never leaves early.
    """
    if sum(goal is not None for goal in (speedup, max_drop, latency_ms)) != 1:
        raise InputError("name one goal: speedup, max_drop or latency_ms")
    if not len(trace):
        raise InputError("the trace has no texts to calibrate on")
    if isinstance(strategy, str) and strategy != "best":
        strategy_named(strategy)
    if max_drop is not None:
        return _keep_promise(trace, strategy, Promise(risk, max_drop, confidence), seed)
    goal = {"speedup": speedup} if speedup is not None else {"latency_ms": latency_ms}
    return _reach(trace, strategy, goal, metric)


def _searched(strategy: str | Policy) -> list[str | Policy] | None:
    """Say which strategies to try; None for all."""
    return None if strategy == "best" else [strategy]


def _about(trace: Trace) -> dict[str, Any]:
    """Note what a policy rests on, for the certificate."""
    known = ("model", "runtime", "data", "split", "metric")
    return {
        "texts": len(trace),
        "about": {name: trace.about[name] for name in known if name in trace.about},
        "exitpoll": version("exitpoll"),
    }


# ---- a speed-up or a latency ----------------------------------------------------------------------------------------


def _reach(trace: Trace, strategy: str | Policy, goal: dict[str, Any], metric: str | None) -> Policy:
    """Take the best point of all curves that is fast enough; without labels, by agreement with the full model."""
    [(kind, wanted)] = goal.items()
    if not wanted > 0:
        raise InputError(f"{kind} {wanted:g} must be above 0")
    costs = np.asarray(trace.layers if kind == "speedup" else milliseconds(trace), dtype=np.float64)
    least = wanted if kind == "speedup" else costs[-1] / wanted
    scored, metric = _scored(trace, metric)
    policy = best_of(sweep(scored, _searched(strategy), metric=metric, costs=list(costs)), least)
    if policy is None:
        fastest = f"{costs[-1] / costs[0]:.4g} times as fast" if kind == "speedup" else f"{costs[0]:.3g} ms"
        raise InputError(f"{kind} {wanted:g} cannot be reached: leaving at the first exit is {fastest}")
    decisions = policy.decide(scored)
    measured = {
        "goal": goal,
        "speedup": round(decisions.speedup, 4),
        "metric" if trace.labels is not None else "agreement": metric,
        "score": round(decisions.score(metric), 6),
        "full_score": round(METRICS[metric](scored.gold("a score"), full_answers(scored)), 6),
    }
    if kind == "latency_ms":
        measured["latency_ms"] = round(float(costs[decisions.exit].mean()), 4)
    return replace(policy, certificate=measured | _about(trace))


def _scored(trace: Trace, metric: str | None) -> tuple[Trace, str]:
    """Give a trace to score by, and the metric; without labels the full model's answers stand in for them."""
    if trace.labels is not None:
        return trace, metric or trace.about.get("metric") or DEFAULT_METRICS[trace.problem_type]
    metric = "r2" if trace.problem_type == REGRESSION else "accuracy"
    return replace(trace, labels=full_answers(trace)), metric


def full_answers(trace: Trace) -> NDArray:
    """Give the full model's answers, those of the last exit.

    Args:
        trace: What every exit said.

    Returns:
        Its answers, in the form the metrics take.
    """
    return predictions(np.nan_to_num(np.asarray(trace.logits[:, -1])), trace.problem_type)


def milliseconds(trace: Trace) -> list[float]:
    """Say how long it takes to leave at each exit.

    Args:
        trace: A trace whose recording measured that.

    Returns:
        Milliseconds for one text, (exits,).
    """
    times = trace.about.get("milliseconds")
    if not times or len(times) != len(trace.layers):
        raise InputError("this trace has no times; record it with exitpoll record, or choose by speed-up")
    return list(times)


# ---- a promise ------------------------------------------------------------------------------------------------------


def _keep_promise(trace: Trace, strategy: str | Policy, promise: Promise, seed: int) -> Policy:
    """Test one strategy on all texts, or search on one half and test on the other."""
    if trace.problem_type == REGRESSION:
        raise InputError("a promise is about answers that are the same or right, and values are neither; use speedup")
    if promise.risk == "accuracy":
        trace.gold("a loss of accuracy")
    single = _single(strategy, trace)
    halves = 1 if single is not None else 2
    needed = halves * texts_needed(promise.risk, promise.at_most, promise.confidence)
    if len(trace) < max(needed, LEAST_HALF):
        raise InputError(
            f"{len(trace)} texts are too few to promise {promise}; {max(needed, LEAST_HALF)} or more could do"
            + (" (half of them to choose a strategy, half to test it)" if halves == 2 else "")
        )
    if single is not None:
        return certify(trace, on_grid(single, trace), promise)
    order = np.random.default_rng(seed).permutation(len(trace))
    search, proof = trace.select(np.sort(order[::2])), trace.select(np.sort(order[1::2]))
    policy = certify(proof, _front(search, _searched(strategy)), promise)
    assert policy.certificate is not None
    return replace(policy, certificate={**policy.certificate, "searched_on": len(search)})


def _single(strategy: str | Policy, trace: Trace) -> Policy | None:
    """Give the one policy to be tested, if nothing is to be chosen or fitted."""
    if isinstance(strategy, Policy):
        return replace(strategy, threshold=None) if strategy.strategy in _GRIDS else None
    found = variants([strategy]) if strategy in _GRIDS else []
    return replace(found[0], problem_type=trace.problem_type) if len(found) == 1 else None


def certify(trace: Trace, sequence: Sequence[Policy], promise: Promise) -> Policy:
    """Test policies one after another and take the fastest that is proven.

    Args:
        trace: Texts that nothing about the policies was chosen on.
        sequence: Policies, the most cautious first.
        promise: What is to be proven.

    Returns:
        The policy with its certificate; one that never leaves early where none that does can be proven.
    """
    test = TESTS[promise.risk]
    proven = list(
        takewhile(
            lambda each: test.p_value(each.losses, promise.at_most, promise.confidence) <= 1 - promise.confidence,
            try_out(trace, sequence, promise.risk),
        )
    )
    fastest = max(proven, key=lambda each: each.speedup, default=None)
    certificate = {"promise": asdict(promise), "test": test.name, **_about(trace)}
    if fastest is None or fastest.speedup <= 1:
        nearest = _nearest_promise(trace, sequence, promise)
        never = Policy(threshold=None, problem_type=trace.problem_type)
        return replace(never, certificate={**certificate, "met": False, "speedup": 1.0, "nearest": nearest})
    measured = {
        "met": True,
        "measured": round(float(fastest.losses.mean()), 6),
        "bound": round(upper_bound(promise.risk, fastest.losses, promise.confidence), 6),
        "speedup": round(fastest.speedup, 4),
    }
    return replace(fastest.policy, certificate=certificate | measured)


@dataclass(frozen=True)
class Tried:
    """A policy, what it lost and how fast it was on some texts."""

    policy: Policy
    losses: NDArray  # (texts,)
    speedup: float


def try_out(trace: Trace, sequence: Iterable[Policy], risk: str) -> Iterator[Tried]:
    """Decide by one policy after another; neighbours that differ in threshold alone ask their strategy once.

    Args:
        trace: The texts to decide on.
        sequence: The policies.
        risk: What counts as a loss.

    Yields:
        What each lost.
    """
    logits, layers = np.asarray(trace.logits), np.asarray(trace.layers)
    full = full_answers(trace)
    asked, opinion = None, None
    for policy in sequence:
        unset = replace(policy, threshold=None)
        if unset != asked:
            asked, opinion = unset, policy.opinion(logits)
        assert opinion is not None
        exit_number, answer = policy.settle(logits, opinion, trace.layers)
        yield Tried(policy, losses_of(trace, answer, full, risk), float(layers[-1] / layers[exit_number].mean()))


def losses_of(trace: Trace, answer: NDArray, full: NDArray, risk: str) -> NDArray:
    """Say what leaving early cost on each text.

    Args:
        trace: The texts.
        answer: What they were answered.
        full: What the full model answers.
        risk: What counts as a loss.

    Returns:
        1 where the answer differs from the full model's; or right answers lost minus won, (texts,).
    """
    if risk == "disagreement":
        return 1.0 - agreement(answer, full)
    gold = trace.gold("a loss of accuracy")
    return agreement(full, gold).astype(np.float64) - agreement(answer, gold)


def _nearest_promise(trace: Trace, sequence: Iterable[Policy], promise: Promise) -> dict[str, Any] | None:
    """Find the smallest risk that these texts would prove for a policy worth having."""
    bound = 0.0
    for tried in try_out(trace, sequence, promise.risk):
        bound = max(bound, upper_bound(promise.risk, tried.losses, promise.confidence))
        if tried.speedup >= WORTH_WHILE:
            limit = float(np.ceil(bound * 1000) / 1000)
            return {**asdict(promise), "at_most": limit, "speedup": round(tried.speedup, 4)}
    return None


# ---- what is tested, the most cautious first ------------------------------------------------------------------------


def _front(trace: Trace, strategies: list[str | Policy] | None) -> list[Policy]:
    """Search strategies for the front of disagreement against speed-up, on texts that will not be tested on.

    This order serves a loss of accuracy too: how often answers differ bounds it, and is far less a matter of chance.
    """
    by_full_model = replace(trace, labels=full_answers(trace))
    costs = np.asarray(trace.layers, dtype=np.float64)
    asked = candidates(trace, strategies)
    curves = [curve_of(by_full_model, candidate, "accuracy", POINTS, costs) for candidate in asked]
    speedup = np.concatenate([curve.speedup for curve in curves])
    score = np.concatenate([curve.score for curve in curves])
    points = [(curve, point) for curve in curves for point in range(len(curve.levels))]
    front = [points[number] for number in front_of(speedup, score)[::-1]]
    return [curve.policy_at(point) for curve, point in front]


def on_grid(policy: Policy, trace: Trace) -> list[Policy]:
    """Set one policy's threshold to every value of a grid that does not depend on the texts.

    Args:
        policy: Strategy and settings.
        trace: Tells how many exits and classes there are.

    Returns:
        Policies, the most cautious first.
    """
    grid = _GRIDS[policy.strategy](policy.settings, len(trace.layers), trace.logits.shape[-1])
    return [replace(policy, threshold=float(threshold)) for threshold in grid]


def _small() -> NDArray:
    """Shares of a range, finer and finer towards its sure end."""
    return np.geomspace(1e-6, 1, GRID_SIZE)


def _entropies(settings: Mapping[str, Any], exits: int, classes: int) -> NDArray:
    return _small() * (1.0 if settings.get("normalised") else np.log(classes))


def _probabilities(settings: Mapping[str, Any], exits: int, classes: int) -> NDArray:
    return 1 - _small() * (1 - 1 / max(classes, 2))


def _margins(settings: Mapping[str, Any], exits: int, classes: int) -> NDArray:
    return 1 - _small()


def _runs(settings: Mapping[str, Any], exits: int, classes: int) -> NDArray:
    return np.arange(exits, -1, -1) - 0.5


def _vote_counts(settings: Mapping[str, Any], exits: int, classes: int) -> NDArray:
    k = settings.get("k", 0.5)
    possible = np.unique([most / depth**k for depth in range(1, exits + 1) for most in range(1, depth + 1)])
    return (possible + np.concatenate([[0.0], possible[:-1]]))[::-1] / 2


def _summed_probabilities(settings: Mapping[str, Any], exits: int, classes: int) -> NDArray:
    return np.linspace(exits ** (1 - settings.get("k", 0.5)), 0.0, GRID_SIZE)


# Thresholds in natural units, the most cautious first: (settings, exits, classes) -> (points,)
_GRIDS: dict[str, Callable[[Mapping[str, Any], int, int], NDArray]] = {
    "entropy": _entropies,
    "max_prob": _probabilities,
    "margin": _margins,
    "patience": _runs,
    "confident_patience": _runs,
    "js_patience": _runs,
    "votes": _vote_counts,
    "soft_votes": _summed_probabilities,
    "mean": _probabilities,
    "geometric": _probabilities,
    "learned": _probabilities,
}
