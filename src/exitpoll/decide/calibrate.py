"""From a trace to a policy: for a speed-up, for a latency, or for a guarantee with a stated confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from exitpoll.decide.certificate import ASKED, ORIGINAL, Goal, Guarantee, Latency, Speedup
from exitpoll.decide.guarantee import with_certificate
from exitpoll.decide.policy import Policy
from exitpoll.decide.proof import prove
from exitpoll.decide.shift import Profile
from exitpoll.decide.speed import best_within
from exitpoll.decide.strategies import strategy_named
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError
from exitpoll.files import JsonObject

Exits = Literal["all", "auto"] | Sequence[int]  # which exits a policy asks

MOST_TRAINED_ON = 0.05  # share of the texts that the model may have been trained on


def calibrate(
    trace: Trace,
    strategy: str | Policy = "best",
    *,
    speedup: float | None = None,
    latency_ms: float | None = None,
    max_disagreement: float | None = None,
    max_accuracy_drop: float | None = None,
    confidence: float = 0.95,
    metric: str | None = None,
    exits: Exits = "all",
    tolerance: float | None = None,
    search: Trace | None = None,
    seed: int = 0,
    allow_training_texts: bool = False,
) -> Policy:
    """Choose a policy for exactly one goal: a speed-up, a latency, or a guarantee.

    Args:
        trace: Every exit's logits on the calibration texts.
        strategy: A name, a policy whose settings are kept, or "best" to search all strategies.
        speedup: Goal: the best score at this speed-up in layers, or as little above it as thresholds allow; at a higher
            one only where the score is significantly better. No guarantee.
        latency_ms: Goal: the best score within so many milliseconds a text on average, by the times that recording
            measured. No guarantee.
        max_disagreement: Goal: the fastest policy whose answer differs from the full model's on at most this share of
            texts, guaranteed with `confidence`. Needs no labels.
        max_accuracy_drop: Goal: the fastest policy whose accuracy is at most this much below the full model's,
            guaranteed with `confidence`. Needs labels.
        confidence: How sure the guarantee is.
        metric: What to score by, for a speed-up or latency; the task's by default.
        exits: Which exits to ask: "all", the layers of some, the last among them, or "auto" to choose them by the times
            that recording measured; for a guarantee, on a quarter of the texts, which it is not tested on.
        tolerance: For `max_disagreement` of regression: values at most so far apart count as the same answer.
        search: For a guarantee: every exit's logits on other texts, to search strategies, settings and exits on. Then
            the guarantee is tested on all texts of `trace`.
        seed: Seed of the halves, one to search on and one to certify on, where `search` is not given.
        allow_training_texts: Calibrate on texts that the model was trained on, which makes every figure too good.

    Returns:
        The policy; its certificate states what it rests on. Where no guarantee is possible it never exits early.
    """
    goals: list[Goal] = []
    if speedup is not None:
        goals.append(Speedup(speedup))
    if latency_ms is not None:
        goals.append(Latency(latency_ms))
    if max_disagreement is not None:
        goals.append(_about(trace, Guarantee("disagreement", max_disagreement, confidence, tolerance)))
    if max_accuracy_drop is not None:
        goals.append(_about(trace, Guarantee("accuracy", max_accuracy_drop, confidence)))
    if len(goals) != 1:
        names = ("speedup", "latency_ms", "max_disagreement", "max_accuracy_drop")
        raise InputError(f"name exactly one goal: {', '.join(names[:-1])} or {names[-1]}", options=names)
    return calibrate_for(
        trace,
        goals[0],
        strategy,
        metric=metric,
        exits=exits,
        search=search,
        seed=seed,
        allow_training_texts=allow_training_texts,
    )


def _about(trace: Trace, guarantee: Guarantee) -> Guarantee:
    """Say whose answers a guarantee is about."""
    return guarantee if trace.reference is None else replace(guarantee, reference=ORIGINAL)


def calibrate_for(
    trace: Trace,
    goal: Goal,
    strategy: str | Policy = "best",
    *,
    metric: str | None = None,
    exits: Exits = "all",
    search: Trace | None = None,
    seed: int = 0,
    allow_training_texts: bool = False,
) -> Policy:
    """Choose a policy for a goal.

    Args:
        trace: Every exit's logits on the calibration texts.
        goal: A speed-up, a latency or a guarantee.
        strategy: As in `calibrate`.
        metric: As in `calibrate`.
        exits: As in `calibrate`.
        search: As in `calibrate`.
        seed: As in `calibrate`.
        allow_training_texts: As in `calibrate`.

    Returns:
        As in `calibrate`.
    """
    if not len(trace):
        raise InputError("the trace has no texts to calibrate on")
    if seed < 0:
        raise InputError(f"seed {seed} must be 0 or more")
    if not allow_training_texts:
        _check_not_trained_on(trace)
    if isinstance(strategy, Policy):
        strategy.check(trace)
    elif strategy != "best":
        strategy_named(strategy)
    asked = trace.at_exits(_layers_of(exits, strategy))
    if isinstance(goal, Guarantee):
        if metric is not None:
            raise InputError(f"metric '{metric}' is for a speed-up or latency, and the goal is a guarantee")
        other = None if search is None else search.at_exits(_layers_of(exits, strategy))
        policy = prove(asked, strategy, goal, seed, choose=exits == "auto", search=other)
    else:
        policy = best_within(asked, None if strategy == "best" else [strategy], goal, metric, choose=exits == "auto")
    profile = Profile.of(policy.decide(trace), trace.lengths)
    return with_certificate(policy, asked=_asked(strategy), trained_on=trace.trained_on, profile=profile)


def _layers_of(exits: Exits, strategy: str | Policy) -> Sequence[int] | None:
    """Return the layers of the exits to ask; None for all, or for those that are yet to be chosen."""
    own = strategy.exit_layers if isinstance(strategy, Policy) else None
    if isinstance(exits, str):
        if exits not in ("all", "auto"):
            raise InputError(f"exits '{exits}' must be all, auto or the layers of some exits, such as [2, 4, 12]")
        if exits == "auto" and own is not None:
            raise InputError("exits cannot be chosen for a policy that names its own; leave exits out")
        return own
    if own is not None and tuple(own) != tuple(exits):
        raise InputError(f"exits {list(exits)} are not those of the policy, {list(own)}; leave exits out")
    return exits


def _check_not_trained_on(trace: Trace) -> None:
    """Refuse texts that the model was trained on: on these its early heads are surer and more often right."""
    share = trace.trained_on
    if share is not None and share > MOST_TRAINED_ON:
        texts = "the training split" if trace.about.get("split") == "train" else f"{100 * share:.0f} % training texts"
        raise InputError(
            f"this trace is of {texts}: what is calibrated on texts that the model was trained on does not hold for "
            "others; record other texts, or allow it with allow_training_texts"
        )


def _asked(strategy: str | Policy) -> str | JsonObject:
    """Return what was asked for, as the certificate keeps it."""
    if isinstance(strategy, str):
        return strategy
    plain = strategy.to_dict()
    return {name: plain[name] for name in ASKED}
