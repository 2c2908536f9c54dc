"""The guarantee: test policies one after another on calibration texts, and take the fastest whose risk is bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.bounds import TESTS
from exitpoll.decide.certificate import CHANGES, Certificate, Guarantee, Metadata, MoreCautious, Nearest, Source
from exitpoll.decide.decisions import speedup_at
from exitpoll.decide.metrics import agreement, predictions
from exitpoll.decide.policy import Policy
from exitpoll.decide.scoring import full_answers
from exitpoll.decide.strategies import STATIC
from exitpoll.decide.trace import Trace

AT_ONCE = 32  # policies that are tried together
SAVED = (0.75, 0.5, 0.25)  # of the layers that the fastest policy saves, by more cautious ones
WORTH_WHILE = 1.1  # the least speed-up for which a nearer guarantee is offered


def certify(
    trace: Trace, sequence: Sequence[Policy], guarantee: Guarantee, *, searched_on: int | None = None
) -> Policy:
    """Test policies one after another and take the fastest that passes (Learn-then-Test with a fixed sequence).

    Args:
        trace: Texts that nothing about the policies was chosen on.
        sequence: Policies, the most cautious first.
        guarantee: What is to be proven.
        searched_on: How many other texts the sequence was chosen on, for the certificate.

    Returns:
        The policy with its certificate; one that never exits early where none that does passes.
    """
    test = TESTS[guarantee.risk]
    passed, fastest = [], None
    for trial in try_policies(trace, sequence, guarantee):
        if test.p_value(trial.losses, guarantee.at_most, guarantee.confidence) > 1 - guarantee.confidence:
            break
        passed.append(Passed(trial.policy, float(trial.losses.mean()), trial.speedup))
        fastest = trial if fastest is None or trial.speedup > fastest.speedup else fastest
    certificate = Certificate(
        guarantee, len(trace), 1.0, Source.of(trace.about), test=test.name, searched_on=searched_on
    )
    if fastest is None or fastest.speedup <= 1:
        nearest = _nearest_guarantee(trace, sequence, guarantee)
        return replace(never_early(trace), certificate=replace(certificate, met=False, nearest=nearest))
    score, full_score = _scores(trace, fastest.policy)
    return replace(
        fastest.policy,
        exit_layers=trace.some_exit_layers,
        certificate=replace(
            certificate,
            speedup=round(fastest.speedup, 4),
            measured=round(float(fastest.losses.mean()), 6),
            bound=round(test.upper_bound(fastest.losses, guarantee.confidence), 6),
            cautious=_more_cautious(trace, passed, fastest, guarantee),
            metric=None if score is None else trace.metric,
            score=score,
            full_score=full_score,
        ),
    )


def certify_full_depth(trace: Trace, guarantee: Guarantee) -> Policy:
    """Test the policy that never exits early, where the answers of all layers may differ from the reference's.

    Args:
        trace: Texts, with the reference's logits.
        guarantee: What is to be proven.

    Returns:
        The policy with its certificate.
    """
    test, full = TESTS[guarantee.risk], predictions(np.asarray(trace.logits[:, -1]), trace.problem_type)
    losses = losses_of(trace, full, full_answers(trace), guarantee)
    alpha = 1 - guarantee.confidence
    certificate = Certificate(
        guarantee,
        len(trace),
        1.0,
        Source.of(trace.about),
        met=test.p_value(losses, guarantee.at_most, guarantee.confidence) <= alpha,
        asked=STATIC,
        test=test.name,
        measured=round(float(losses.mean()), 6),
        bound=round(test.upper_bound(losses, guarantee.confidence), 6),
    )
    return replace(never_early(trace), certificate=certificate)


@dataclass(frozen=True)
class Passed:
    """A policy that passed the test."""

    policy: Policy
    risk: float  # on the texts
    speedup: float

    @property
    def saving(self) -> float:
        """The share of layers that texts did not run."""
        return 1 - 1 / self.speedup


def _more_cautious(
    trace: Trace, passed: Sequence[Passed], fastest: Trial, guarantee: Guarantee
) -> tuple[MoreCautious, ...] | None:
    """Pick some of the policies that passed, each of which saves fewer layers and differs no more often."""
    picked, last = [], Passed(fastest.policy, float(fastest.losses.mean()), fastest.speedup)
    saving = last.saving
    for share in SAVED:
        slower = [one for one in passed if 0 < one.saving <= share * saving < last.saving and one.risk <= last.risk]
        if slower:
            last = max(slower, key=lambda one: one.saving)
            picked.append(last.policy)
    found = [
        MoreCautious(
            _changes(trial.policy, fastest.policy),
            round(trial.speedup, 4),
            round(float(trial.losses.mean()), 6),
            round(TESTS[guarantee.risk].upper_bound(trial.losses, guarantee.confidence), 6),
        )
        for trial in try_policies(trace, picked, guarantee)
    ]
    return tuple(found) or None


def _changes(policy: Policy, other: Policy) -> Metadata:
    """Return the fields in which a policy differs from another."""
    plain, others = policy.to_dict(), other.to_dict()
    return {name: plain[name] for name in CHANGES if plain[name] != others[name]}


def with_certificate(policy: Policy, **fields: object) -> Policy:
    """Change some fields of a policy's certificate.

    Args:
        policy: A policy with a certificate.
        fields: Their values, by name.

    Returns:
        The policy.
    """
    assert policy.certificate is not None
    return replace(policy, certificate=replace(policy.certificate, **fields))  # type: ignore[arg-type]


def never_early(trace: Trace) -> Policy:
    """Return the policy that never exits early: the full model."""
    return Policy(STATIC, threshold=None, problem_type=trace.problem_type)


@dataclass(frozen=True)
class Trial:
    """A policy tried on some texts: its losses and its speed-up."""

    policy: Policy
    losses: NDArray  # (texts,)
    speedup: float


def try_policies(trace: Trace, sequence: Iterable[Policy], guarantee: Guarantee) -> Iterator[Trial]:
    """Decide by one policy after another; neighbours that differ in threshold alone ask their strategy once.

    Args:
        trace: The texts to decide on.
        sequence: The policies, with one threshold for all exits.
        guarantee: Says what counts as a loss.

    Yields:
        A trial per policy.
    """
    exit_layers, full = np.asarray(trace.exit_layers), full_answers(trace)  # of the exits that all policies ask
    texts = np.arange(len(trace))
    for _, group in groupby(sequence, key=_all_but_threshold):
        policies = list(group)
        levels = np.array([policy.levels(len(exit_layers))[0] for policy in policies])
        end, highest, losses = _losses_by_exit(trace, policies[0], full, guarantee)
        for start in range(0, len(levels), AT_ONCE):
            # The highest score so far never falls, so it is below a level at exactly the exits that are passed.
            passed = (highest < levels[start : start + AT_ONCE, None, None]).sum(axis=-1)  # (policies, texts)
            speedups = speedup_at(exit_layers[np.minimum(passed, end)], trace.exit_layers)
            for policy, column, speedup in zip(policies[start:], passed, speedups, strict=False):
                yield Trial(policy, losses[texts, column], float(speedup))


def _all_but_threshold(policy: Policy) -> tuple[object, ...]:
    """Return what the losses of a policy depend on, beside its threshold."""
    return policy.strategy, policy.settings, policy.answer, policy.fallback, policy.max_depth


def _losses_by_exit(trace: Trace, policy: Policy, full: NDArray, guarantee: Guarantee) -> tuple[int, NDArray, NDArray]:
    """Return the final exit, the highest score up to every exit, and the loss of leaving there.

    The columns of the losses are the exits, and one for texts at the end that never fired: (texts, exits + 1).
    """
    logits = np.asarray(trace.logits)
    end = int(policy.ends(trace.exit_layers).argmax())
    opinion = policy.opinion(logits)
    columns = [(number, policy.answer) for number in range(end + 1)] + [(end, policy.fallback)]
    losses = [losses_of(trace, policy.answers_at(*column, opinion, logits), full, guarantee) for column in columns]
    return end, np.maximum.accumulate(opinion.score[:, : end + 1], axis=1), np.stack(losses, axis=1)


def losses_of(trace: Trace, answer: NDArray, full: NDArray, guarantee: Guarantee) -> NDArray:
    """Compute what early exit cost, text by text.

    Args:
        trace: The texts.
        answer: What they were answered.
        full: What the full model answers.
        guarantee: Says what counts as a loss.

    Returns:
        1 where the answer differs from the full model's; or right answers lost minus won, (texts,).
    """
    if guarantee.tolerance is not None:
        return (~(np.abs(answer - full) <= guarantee.tolerance)).astype(np.float64)  # also where a value is NaN
    if guarantee.risk == "disagreement":
        return 1.0 - agreement(answer, full)
    gold = trace.gold("a loss of accuracy")
    return agreement(full, gold).astype(np.float64) - agreement(answer, gold)


def _scores(trace: Trace, policy: Policy) -> tuple[float, float] | tuple[None, None]:
    """Score a policy and the full model where there are labels."""
    if trace.labels is None:
        return None, None
    policies = (policy, never_early(trace))
    score, full_score = (round(chosen.decide(trace).score(trace.metric), 6) for chosen in policies)
    return score, full_score


def _nearest_guarantee(trace: Trace, sequence: Iterable[Policy], guarantee: Guarantee) -> Nearest | None:
    """Find the smallest bound that these texts would prove for a policy worth having."""
    bound = 0.0
    for trial in try_policies(trace, sequence, guarantee):
        bound = max(bound, TESTS[guarantee.risk].upper_bound(trial.losses, guarantee.confidence))
        if trial.speedup >= WORTH_WHILE:
            limit = float(np.ceil(bound * 1000) / 1000)
            return None if limit >= 1 else Nearest(replace(guarantee, at_most=limit), round(trial.speedup, 4))
    return None
