"""exitpoll calibrate: choose the policy of a model, for a speed-up, a latency or a guarantee."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from exitpoll.cli.console import quieten_transformers, say


def calibrate(
    model: str,
    /,
    *,
    trace: Path,
    strategy: str = "best",
    speedup: float | None = None,
    max_drop: float | None = None,
    latency_ms: float | None = None,
    confidence: float = 0.95,
    risk: Literal["disagreement", "accuracy"] = "disagreement",
    metric: str | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Choose when a model may leave early, for one goal, and write it to policy.json in the model's folder.

    Where a promise cannot be kept, the exit code is 1, and a policy that is there already stays.

    Example: exitpoll calibrate trec-bert --trace trec.calibration.safetensors --max-drop 0.02

    Args:
        model: The model folder.
        trace: A trace of its calibration split.
        strategy: A strategy's name, or best to search them all.
        speedup: Goal: the best score at least this fast.
        max_drop: Goal: as fast as possible with a risk of at most this; 0.01 is one text in a hundred.
        latency_ms: Goal: the best score within so many milliseconds a text on average, one text at a time.
        confidence: How sure the promise is.
        risk: What is promised to be small: how often answers differ from the full model's, or the loss of accuracy.
        metric: What to score by, for a speed-up or latency; the task's by default.
        seed: Seed of the halves, one to search on and one to certify on.
        out: The policy to write, if not in the model's folder.
    """
    from exitpoll.decide.calibrate import calibrate as calibrate_trace
    from exitpoll.decide.trace import Trace
    from exitpoll.engine.loading import check_same_model, source_of
    from exitpoll.files import check_replaceable
    from exitpoll.models.card import write_card
    from exitpoll.models.folder import exports_of, policy_path
    from exitpoll.report.wording import describe, not_finite

    recorded = Trace.load(trace)
    out = out or policy_path(model)
    check_replaceable(out, "strategy", "policy")
    quieten_transformers()
    check_same_model(model, source_of(model), trace, recorded.about)
    policy = calibrate_trace(
        recorded,
        strategy,
        speedup=speedup,
        max_drop=max_drop,
        latency_ms=latency_ms,
        confidence=confidence,
        risk=risk,
        metric=metric,
        seed=seed,
    )
    notes = ["note: this is a test split; keep it for exitpoll evaluate"] * (recorded.about.get("split") == "test")
    for line in (*describe(policy), *notes, *not_finite(recorded)):
        say(line)
    if policy.threshold is not None:
        policy.save(out)
        if out.resolve() == policy_path(model).resolve():
            write_card(Path(model))
            for export in exports_of(model):
                say(f"{export} keeps the policy it has: exitpoll export {model} --overwrite renews it")
        say(f"wrote {out}")
        return
    if out.exists():
        say(f"{out} stays as it was")
    else:
        policy.save(out)
        say(f"wrote {out}, a policy that never leaves early")
    sys.exit(1)
