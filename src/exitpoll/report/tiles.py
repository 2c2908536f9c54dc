"""The tiles at the top of the page: the numbers that matter, each with what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from exitpoll.benchmark.timing import Gain, Ratio
from exitpoll.decide.bootstrap import Estimate, estimate_share
from exitpoll.decide.certificate import Guarantee
from exitpoll.decide.evaluate import Evaluation, Verdict
from exitpoll.decide.policy import Policy
from exitpoll.report.wording import percent

_VERDICTS: dict[Verdict, tuple[str, str]] = {
    "held": ("held", "good"),
    "broken": ("broken", "bad"),
    "too few texts": ("too few texts to tell", "open"),
}


@dataclass(frozen=True)
class Tile:
    """One or two values, what they are, and what they rest on."""

    title: str
    values: Sequence[tuple[str, str]]  # the value, and what it is
    details: Sequence[str] = ()
    mood: str = ""  # "good", "bad" or "open" for a verdict


def tiles_of(evaluation: Evaluation, policy: Policy, layers: int, gain: Gain | None) -> list[Tile]:
    """Summarize a report.

    Args:
        evaluation: What was measured.
        policy: The policy.
        layers: Of the full model.
        gain: Wall-clock time, if it was measured.

    Returns:
        The tiles, the most important first.
    """
    tiles = [_cost(evaluation), _guarantee(evaluation, policy), _speedup(evaluation, layers)]
    return tiles if gain is None else [*tiles, _wall_clock(gain)]


def points(share: float) -> str:
    """Format a difference of shares in points, with a proper minus sign."""
    written = percent(share)
    return "0.0" if written == "-0.0" else written.replace("-", "−")


def _cost(evaluation: Evaluation) -> Tile:
    """State what early exit costs."""
    title, (ours, full) = "Cost of early exit", evaluation.rows[:2]
    known = ours.differs == ours.differs  # not NaN
    if evaluation.metric == "agreement" and known:
        share = estimate_share(np.arange(evaluation.texts) < round(ours.differs * evaluation.texts))
        what = "of answers differ from the full model’s"
        return Tile(title, [(f"{percent(share.value)} %", what)], [f"95 % interval {_interval(share)}"])
    change = "less" if ours.drop.value >= 0 else "more"
    details = [
        f"95 % interval of the loss: {_interval(ours.drop)}",
        f"{points(ours.score.value)} % with early exit, {points(full.score.value)} % without",
    ]
    if known:
        details.append(f"{percent(ours.differs)} % of answers differ from the full model’s")
    what = f"{change} {evaluation.metric} than the full model"
    return Tile(title, [(f"{percent(abs(ours.drop.value))} points", what)], details)


def _interval(measured: Estimate) -> str:
    """Format an interval, in points or %."""
    return f"{points(measured.low)} to {points(measured.high)}"


def _guarantee(evaluation: Evaluation, policy: Policy) -> Tile:
    """State whether the guarantee held."""
    title, check, certificate = "Guarantee", evaluation.guarantee, policy.certificate
    if check is not None:
        measured = f"measured here: {points(check.measured.value)} %, 95 % interval {_interval(check.measured)}"
        verdict, mood = _VERDICTS[check.verdict]
        return Tile(title, [(verdict, str(check.guarantee))], [measured], mood)
    if certificate is None:
        return Tile(title, [("none", "the policy was never calibrated")])
    if certificate.guarantee is not None:
        return Tile(title, [("not checked", str(certificate.guarantee))], ["checking it needs labels"], "open")
    if isinstance(certificate.goal, Guarantee):
        return Tile(title, [("not possible", f"not proven: {certificate.goal}")], ["so no text exits early"], "open")
    return Tile(title, [("none", f"calibrated for another goal: {certificate.goal}")])


def _speedup(evaluation: Evaluation, layers: int) -> Tile:
    """State how many layers are saved."""
    speedup = evaluation.rows[0].speedup
    what = f"{layers} layers ÷ {layers / speedup:.1f} on average"
    return Tile("Speed-up in layers", [(f"{speedup:.2f} ×", what)], ["not the same as wall-clock time"])


def _wall_clock(gain: Gain) -> Tile:
    """State what the runtime and what early exit save, never mixed."""
    values = [
        (f"{gain.by_exits.value:.2f} ×", f"by early exit ({_range(gain.by_exits)})"),
        (
            f"{gain.without_exits.value:.2f} ×",
            f"by running all layers in {gain.runtime} ({_range(gain.without_exits)})",
        ),
    ]
    details = [f"both at batch size {gain.batch_size}; in brackets, the range over the rounds"]
    return Tile("Wall-clock speed-up", values, details)


def _range(ratio: Ratio) -> str:
    """Format the range of a ratio."""
    return f"{ratio.low:.2f} to {ratio.high:.2f}"
