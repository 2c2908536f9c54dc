"""From a trace to a policy: for a speed-up, for a latency, or for a guarantee with a stated confidence."""

from __future__ import annotations

from exitpoll.decide.certificate import ASKED, Goal, Guarantee, Latency, Speedup
from exitpoll.decide.guarantee import with_certificate
from exitpoll.decide.policy import Policy
from exitpoll.decide.proof import prove
from exitpoll.decide.shift import Profile
from exitpoll.decide.speed import best_within
from exitpoll.decide.strategies import strategy_named
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError
from exitpoll.files import JsonObject

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
        seed: Seed of the halves, one to search on and one to certify on.
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
        goals.append(Guarantee("disagreement", max_disagreement, confidence))
    if max_accuracy_drop is not None:
        goals.append(Guarantee("accuracy", max_accuracy_drop, confidence))
    if len(goals) != 1:
        raise InputError("name exactly one goal: speedup, latency_ms, max_disagreement or max_accuracy_drop")
    return calibrate_for(trace, goals[0], strategy, metric=metric, seed=seed, allow_training_texts=allow_training_texts)


def calibrate_for(
    trace: Trace,
    goal: Goal,
    strategy: str | Policy = "best",
    *,
    metric: str | None = None,
    seed: int = 0,
    allow_training_texts: bool = False,
) -> Policy:
    """Choose a policy for a goal.

    Args:
        trace: Every exit's logits on the calibration texts.
        goal: A speed-up, a latency or a guarantee.
        strategy: As in `calibrate`.
        metric: As in `calibrate`.
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
    if isinstance(goal, Guarantee):
        if metric is not None:
            raise InputError(f"metric '{metric}' is for a speed-up or latency, and the goal is a guarantee")
        policy = prove(trace, strategy, goal, seed)
    else:
        policy = best_within(trace, None if strategy == "best" else [strategy], goal, metric)
    profile = Profile.of(policy.decide(trace), trace.lengths)
    return with_certificate(policy, asked=_asked(strategy), trained_on=trace.trained_on, profile=profile)


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
