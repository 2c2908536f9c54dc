"""Promises: what leaving early may cost at most, and the fastest policy for which that is proven."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import groupby, takewhile
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.bounds import TESTS, upper_bound
from exitpoll.decide.metrics import REGRESSION, agreement, predictions
from exitpoll.decide.policy import Policy
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError

AT_ONCE = 32  # policies that are tried together
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
        if self.risk not in tuple(TESTS):
            raise InputError(f"risk '{self.risk}' is unknown; choose one of: {', '.join(TESTS)}")
        if not 0 < self.at_most < 1:
            raise InputError(f"max_drop {self.at_most:g} must be above 0 and below 1: 0.01 is one point")
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence {self.confidence:g} must be above 0 and below 1: 0.95 is usual")

    @classmethod
    def of(cls, policy: Policy) -> Promise | None:
        """Read what a policy promises, or was to promise, from its certificate; None if that is nothing."""
        found = (policy.certificate or {}).get("promise")
        if found is None:
            return None
        try:
            return cls(**found)
        except TypeError as error:
            raise InputError(f"the promise in the policy's certificate is broken: {found}") from error

    def __str__(self) -> str:
        """Say it in words."""
        share = f"{100 * self.at_most:.4g}"
        if self.risk == "disagreement":
            what = f"answers that differ from the full model's on at most {share} % of texts"
        else:
            what = f"an accuracy at most {share} point{'' if share == '1' else 's'} below the full model's"
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
        **_scores(trace, fastest.policy),
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
        sequence: The policies, each with one threshold for all exits.
        risk: What counts as a loss.

    Yields:
        What each lost.
    """
    layers, full = np.asarray(trace.exit_layers), full_answers(trace)
    for open_policy, members in groupby(sequence, key=lambda policy: replace(policy, threshold=None)):
        policies = list(members)
        levels = np.array([policy.levels(1)[0] for policy in policies])
        end, highest, table = _losses_by_exit(trace, open_policy, full, risk)
        texts = np.arange(len(trace))
        for start in range(0, len(levels), AT_ONCE):
            # As the highest score so far never falls, it is below a level at just the exits that are passed.
            passed = (highest < levels[start : start + AT_ONCE, None, None]).sum(axis=-1)  # (policies, texts)
            speedups = layers[-1] / layers[np.minimum(passed, end)].mean(axis=1)
            for policy, column, speedup in zip(policies[start:], passed, speedups, strict=False):
                yield Tried(policy, table[texts, column], float(speedup))


def _losses_by_exit(trace: Trace, policy: Policy, full: NDArray, risk: str) -> tuple[int, NDArray, NDArray]:
    """Give the exit from which nobody goes on, the highest score up to each exit, and what leaving there costs.

    The columns of the costs are the exits, and one for texts at the end that never fired: (texts, exits + 1).
    """
    logits = np.asarray(trace.logits)
    end = int(policy.ends(trace.exit_layers).argmax())
    opinion = policy.opinion(logits)
    answers = [(number, policy.answer) for number in range(end + 1)] + [(end, policy.fallback)]
    losses = [losses_of(trace, policy.answers_at(*each, opinion, logits), full, risk) for each in answers]
    return end, np.maximum.accumulate(opinion.score[:, : end + 1], axis=1), np.stack(losses, axis=1)


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


def _scores(trace: Trace, policy: Policy) -> dict[str, Any]:
    """Score a policy and the full model where there are labels to score by, for the certificate."""
    if trace.labels is None:
        return {}
    metric = trace.metric
    full = Policy(threshold=None, problem_type=trace.problem_type).decide(trace)
    score, full_score = (round(each.score(metric), 6) for each in (policy.decide(trace), full))
    return {"metric": metric, "score": score, "full_score": full_score}


def _nearest_promise(trace: Trace, sequence: Iterable[Policy], promise: Promise) -> dict[str, Any] | None:
    """Find the smallest risk that these texts would prove for a policy worth having."""
    bound = 0.0
    for tried in try_out(trace, sequence, promise.risk):
        bound = max(bound, upper_bound(promise.risk, tried.losses, promise.confidence))
        if tried.speedup >= WORTH_WHILE:
            limit = float(np.ceil(bound * 1000) / 1000)
            if limit >= 1:
                return None
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


def by_full_model(trace: Trace) -> Trace:
    """Put the full model's answers in the place of labels, so that a score is the agreement with it.

    Args:
        trace: A trace, with labels or without.

    Returns:
        A trace to be scored by accuracy, or by r2 for values.
    """
    metric = "r2" if trace.problem_type == REGRESSION else "accuracy"
    return replace(trace, labels=full_answers(trace), about={**trace.about, "metric": metric})


def provenance(trace: Trace) -> dict[str, Any]:
    """Note what a policy rests on, for its certificate.

    Args:
        trace: The texts it was calibrated on.

    Returns:
        How many they are, and the model, runtime and data they are from.
    """
    known = ("fingerprint", "runtime", "data", "split", "metric")
    return {
        "texts": len(trace),
        "about": {name: trace.about[name] for name in known if name in trace.about},
        "exitpoll": version("exitpoll"),
    }
