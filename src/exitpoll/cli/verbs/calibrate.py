"""exitpoll calibrate: choose the policy of a model, for a speed-up, a latency or a guarantee."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from exitpoll.cli.console import quieten_transformers, say
from exitpoll.cli.options import MetricName, StrategyOrBest

if TYPE_CHECKING:
    from exitpoll.decide.policy import Policy


def calibrate(
    model: str,
    /,
    *,
    trace: Path,
    strategy: StrategyOrBest = "best",
    speedup: float | None = None,
    latency_ms: float | None = None,
    max_disagreement: float | None = None,
    max_accuracy_drop: float | None = None,
    confidence: float = 0.95,
    metric: MetricName | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Choose when to exit: for a speed-up, a latency or a guarantee.

    The policy is written to policy.json in the model folder. If the guarantee is not possible, the exit code is 1 and
    an existing policy is kept.

    Example: exitpoll calibrate trec-bert --trace trec.calibration.safetensors --max-disagreement 0.02

    Args:
        model: The model folder.
        trace: A trace of its calibration split.
        strategy: The strategy to calibrate; best searches all of them.
        speedup: Goal: the best score at this speed-up in layers.
        latency_ms: Goal: the best score within this many milliseconds per text on average, one text at a time.
        max_disagreement: Goal: the fastest policy that is guaranteed to answer as the full model does on all but this
            share of texts; 0.01 is one text in a hundred. Needs no labels.
        max_accuracy_drop: Goal: the fastest policy that is guaranteed to lose at most this much accuracy against the
            full model; 0.01 is one point. Needs labels.
        confidence: The confidence of the guarantee.
        metric: The metric to score by, for a speed-up or latency; the task's by default.
        seed: Seed of the random halves of the texts, one to search on and one to certify on.
        out: Where to write the policy, if not in the model folder.
    """
    from exitpoll.cli.traces import load_trace
    from exitpoll.decide.calibrate import calibrate as calibrate_trace
    from exitpoll.engine.loading import source_of
    from exitpoll.files import check_replaceable
    from exitpoll.models.folder import policy_path
    from exitpoll.report.wording import describe_calibration, note_not_finite

    out = out or policy_path(model)
    check_replaceable(out, "strategy", "policy")
    quieten_transformers()
    recorded = load_trace(trace, model, source_of(model))
    policy = calibrate_trace(
        recorded,
        strategy,
        speedup=speedup,
        latency_ms=latency_ms,
        max_disagreement=max_disagreement,
        max_accuracy_drop=max_accuracy_drop,
        confidence=confidence,
        metric=metric,
        seed=seed,
    )
    say(*describe_calibration(policy))
    if recorded.about.get("split") == "test":
        say("note: this is a test split; keep it for exitpoll evaluate")
    say(*note_not_finite(recorded))
    if policy.threshold is None:
        _keep_or_write(policy, out)
        sys.exit(1)
    _write(policy, Path(model), out)


def _write(policy: Policy, model_folder: Path, out: Path) -> None:
    """Write a policy, and update the model card if it is the model's own."""
    from exitpoll.models.card import write_card
    from exitpoll.models.folder import exports_of, policy_path

    policy.save(out)
    if out.resolve() == policy_path(model_folder).resolve():
        write_card(model_folder)
        for export in exports_of(model_folder):
            say(f"{export} keeps the policy it has: exitpoll export {model_folder} --overwrite renews it")
    say(f"wrote {out}")


def _keep_or_write(policy: Policy, out: Path) -> None:
    """Write a policy that never exits early, unless there is one already."""
    if out.exists():
        say(f"kept {out} as it was")
        return
    policy.save(out)
    say(f"wrote {out}, a policy that never exits early")
