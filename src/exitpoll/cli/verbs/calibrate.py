"""exitpoll calibrate: choose the policy of a model, for a speed-up, a latency or a guarantee."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from exitpoll.cli.console import print_as_json, quieten_transformers, remark, say, show_result
from exitpoll.cli.groups import IN_DATA, IN_GOAL, IN_METHOD
from exitpoll.cli.options import AsJson, MetricName, OptionalOut, StrategyOrBest
from exitpoll.errors import InputError

if TYPE_CHECKING:
    from exitpoll.decide.calibrate import Exits
    from exitpoll.decide.policy import Policy


def calibrate(
    model: str,
    /,
    *,
    trace: Annotated[Path, IN_DATA],
    strategy: StrategyOrBest = "best",
    speedup: Annotated[float | None, IN_GOAL] = None,
    latency_ms: Annotated[float | None, IN_GOAL] = None,
    max_disagreement: Annotated[float | None, IN_GOAL] = None,
    max_accuracy_drop: Annotated[float | None, IN_GOAL] = None,
    tolerance: Annotated[float | None, IN_GOAL] = None,
    confidence: Annotated[float, IN_GOAL] = 0.95,
    metric: MetricName | None = None,
    exits: Annotated[str, IN_METHOD] = "all",
    seed: Annotated[int, IN_METHOD] = 0,
    allow_training_texts: Annotated[bool, IN_DATA] = False,
    out: OptionalOut = None,
    as_json: AsJson = False,
) -> None:
    """Choose when to exit: for a speed-up, a latency or a guarantee.

    The policy is written to policy.json in the model folder. If the guarantee is not possible, the exit code is 1 and
    an existing policy is kept.

    Example: exitpoll calibrate trec-bert --trace trec.calibration.safetensors --max-disagreement 0.02

    Args:
        model: The model folder.
        trace: A trace of its calibration split.
        strategy: The strategy to calibrate; best searches all of them, and static exits.
        speedup: Goal: the best score at this speed-up in layers, or as little above it as thresholds allow.
        latency_ms: Goal: the best score within this many milliseconds per text on average, one text at a time.
        max_disagreement: Goal: the fastest policy that is guaranteed to answer as the full model does on all but this
            share of texts; 0.01 is one text in a hundred. Needs no labels.
        max_accuracy_drop: Goal: the fastest policy that is guaranteed to lose at most this much accuracy against the
            full model; 0.01 is one point. Needs labels.
        tolerance: For --max-disagreement of regression: values at most so far apart count as the same answer.
        confidence: The confidence of the guarantee.
        metric: The metric to score by, for a speed-up or latency; the task's by default.
        exits: Which exits to ask: all, the layers of some with commas between them, such as 2,4,6,12, or auto to choose
            them by the times that recording measured.
        seed: Seed of the random halves of the texts, one to search on and one to certify on.
        allow_training_texts: Calibrate on texts that the model was trained on, which makes every figure too good.
        out: Where to write the policy, if not in the model folder.
        as_json: Print the result as JSON.
    """
    from exitpoll.cli.traces import load_trace
    from exitpoll.decide.calibrate import calibrate as calibrate_trace
    from exitpoll.engine.loading import source_of
    from exitpoll.files import check_replaceable
    from exitpoll.models.folder import policy_path
    from exitpoll.report.wording import describe_calibration, note_not_finite

    print_as_json(as_json)
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
        tolerance=tolerance,
        metric=metric,
        exits=_exits_from(exits),
        seed=seed,
        allow_training_texts=allow_training_texts,
    )
    written = _write(policy, Path(model), out)  # before anything is printed: nobody may read on, as in `| head -1`
    say(*describe_calibration(policy))
    show_result(policy.to_dict())
    if recorded.about.get("split") == "test":
        remark("note: this is a test split; keep it for exitpoll evaluate")
    remark(*note_not_finite(recorded), *written)
    if policy.threshold is None:
        sys.exit(1)


def _exits_from(text: str) -> Exits:
    """Read which exits to ask."""
    if text in ("all", "auto"):
        return "auto" if text == "auto" else "all"
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"exits '{text}' must be all, auto or layers such as 2,4,6,12")
    return [int(part) for part in parts]


def _write(policy: Policy, model_folder: Path, out: Path) -> list[str]:
    """Write a policy, but not one that never exits early over another; return what was done, as lines."""
    from exitpoll.models.card import write_card
    from exitpoll.models.folder import MANIFEST, exports_of, policy_path

    if policy.threshold is None and out.exists():
        return [f"kept {out} as it was"]
    policy.save(out)
    if policy.threshold is None:
        return [f"wrote {out}, a policy that never exits early"]
    lines = []
    if out.resolve() == policy_path(model_folder).resolve():
        write_card(model_folder)
        for export in exports_of(model_folder):
            lines.append(f"{export} keeps the policy it has: exitpoll export {model_folder} --overwrite renews it")
        if (model_folder / MANIFEST).exists():
            lines.append("the ONNX file keeps the policy inside it, for use without exitpoll; export again to renew it")
    return [*lines, f"wrote {out}"]
