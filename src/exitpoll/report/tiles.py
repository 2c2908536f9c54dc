"""The tiles at the top of the page: the numbers that matter, each with what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exitpoll.benchmark.timing import Gain, Ratio
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
    low, high = points(ours.drop.low), points(ours.drop.high)
    if evaluation.metric == "agreement":
        return Tile(title, [(f"{points(ours.drop.value)} points", "less agreement with the full model")],
                    [f"95 % interval {low} to {high}", "measured without labels"])  # fmt: skip
    change = "less" if ours.drop.value >= 0 else "more"
    details = [
        f"95 % interval of the loss: {low} to {high}",
        f"{percent(ours.score.value)} % with early exit, {percent(full.score.value)} % without",
    ]
    if ours.differs == ours.differs:  # not NaN
        details.append(f"{percent(ours.differs)} % of answers differ from the full model’s")
    return Tile(
        title,
        [(f"{percent(abs(ours.drop.value))} points", f"{change} {evaluation.metric} than the full model")],
        details,
    )


def _guarantee(evaluation: Evaluation, policy: Policy) -> Tile:
    """State whether the guarantee held."""
    title, check, certificate = "Guarantee", evaluation.guarantee, policy.certificate
    if check is not None:
        value, low, high = (points(share) for share in (check.measured.value, check.measured.low, check.measured.high))
        interval = f"measured here: {value} %, 95 % interval {low} to {high}"
        words, mood = _VERDICTS[check.verdict]
        return Tile(title, [(words, str(check.guarantee))], [interval], mood)
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
    return Tile("Speed-up in layers", [(f"{speedup:.2f} ×", what)], ["layers are not time: see wall-clock time"])


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
