"""Promises: what leaving early may cost at most, and the fastest policy for which that is proven."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import takewhile
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from exitpoll.bounds import TESTS, upper_bound
from exitpoll.errors import InputError
from exitpoll.policy import Policy
from exitpoll.tallies import agreement
from exitpoll.tasks import predictions
from exitpoll.trace import Trace

WORTH_WHILE = 1.1  # the least speed-up for which a nearer promise is named

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
    certificate = {"promise": asdict(promise), "test": test.name, **provenance(trace)}
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


def full_answers(trace: Trace) -> NDArray:
    """Give the full model's answers, those of the last exit.

    Args:
        trace: What every exit said.

    Returns:
        Its answers, in the form the metrics take.
    """
    return predictions(np.asarray(trace.logits[:, -1]), trace.problem_type)


def provenance(trace: Trace) -> dict[str, Any]:
    """Note what a policy rests on, for its certificate.

    Args:
        trace: The texts it was calibrated on.

    Returns:
        How many they are, and the model, runtime and data they are from.
    """
    known = ("model", "runtime", "data", "split", "metric")
    return {
        "texts": len(trace),
        "about": {name: trace.about[name] for name in known if name in trace.about},
        "exitpoll": version("exitpoll"),
    }
