"""Check the guarantee by simulation: calibrate many times where true risks are known, and count violations.

The baseline is the usual choice: the fastest policy whose measured risk is within the limit.

    python experiments/guarantee.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np

from exitpoll.decide.calibrate import calibrate_for
from exitpoll.decide.certificate import Guarantee, Risk
from exitpoll.decide.guarantee import losses_of, try_policies
from exitpoll.decide.policy import Policy
from exitpoll.decide.proof import on_grid
from exitpoll.decide.scoring import full_answers
from exitpoll.decide.trace import Trace
from exitpoll.files import write_json

RESULTS = Path(__file__).parent / "results" / "guarantee.json"
CONFIDENCE = 0.9
EXITS, CLASSES = 4, 3
POPULATION = 100_000  # texts, on which the risk is taken as the true risk


@dataclass(frozen=True)
class Simulation:
    """Result of many calibrations."""

    broken: float  # share of policies whose true risk is above the limit
    left_early: float  # share of policies that exit early at all
    speedup: float  # mean


def world(seed: int, texts: int) -> Trace:
    """Draw texts for which confidence is informative, but not perfectly so, of the last exit's answer."""
    chance = np.random.default_rng(seed)
    labels = chance.integers(CLASSES, size=texts)
    clarity = chance.exponential(size=(texts, 1, 1)) * np.linspace(0.6, 2.2, EXITS)[None, :, None]
    logits = chance.normal(size=(texts, EXITS, CLASSES)) + 2 * clarity * np.eye(CLASSES)[labels][:, None]
    return Trace(logits, labels)


Draw = Callable[[int, int], Trace]  # (seed, texts)


@cache
def _population(draw: Draw) -> Trace:
    """Draw the texts on which true risks are measured, once."""
    return draw(10**9, POPULATION)


_known: dict[str, tuple[float, float]] = {}


def truth(policy: Policy, risk: Risk, draw: Draw) -> tuple[float, float]:
    """Return a policy's true risk and speed-up."""
    key = f"{draw.__name__} {policy.strategy} {policy.threshold} {policy.settings} {policy.exit_layers} {risk}"
    if key not in _known:
        trace = _population(draw)
        decisions = policy.decide(trace)
        losses = losses_of(trace, decisions.answer, full_answers(trace), Guarantee(risk))
        _known[key] = float(losses.mean()), decisions.speedup
    return _known[key]


def looks_right(trace: Trace, strategy: str, guarantee: Guarantee) -> Policy:
    """Return the fastest policy whose measured risk is within the limit: the usual choice."""
    trials = try_policies(trace, on_grid(Policy(strategy), trace), guarantee)
    within = [trial for trial in trials if trial.losses.mean() <= guarantee.at_most]
    return max(within, key=lambda trial: trial.speedup).policy


def simulate(
    strategy: str,
    risk: Risk,
    texts: int,
    limit: float,
    runs: int,
    *,
    proven: bool = True,
    draw: Draw = world,
    exits: Literal["all", "auto"] = "all",
) -> Simulation:
    """Calibrate many times on different texts, and compare the guarantee with the true risk."""
    outcomes = []
    for seed in range(runs):
        trace, guarantee = draw(seed, texts), Guarantee(risk, limit, CONFIDENCE)
        if proven:
            policy = calibrate_for(trace, guarantee, strategy, exits=exits)
        else:
            policy = looks_right(trace, strategy, guarantee)
        outcomes.append((*truth(policy, risk, draw), policy.threshold is not None))
    risks, speedups, early = np.array(outcomes).T
    return Simulation(float((risks > limit).mean()), float(early.mean()), float(speedups.mean()))


def allowed(runs: int) -> float:
    """Return how often a guarantee may be violated in so many runs: 1 − confidence and three standard errors."""
    return float(1 - CONFIDENCE + 3 * np.sqrt(CONFIDENCE * (1 - CONFIDENCE) / runs))


def table(results: list[dict]) -> str:
    """Write the results as the table of docs/concepts/guarantees.md."""
    lines = [
        "| risk | texts | limit | usual choice: broken | speed-up | proven: broken | speed-up |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        usual, proven = result["usual"], result["proven"]
        lines.append(
            f"| {result['risk']} | {result['texts']} | {100 * result['limit']:g} % | {100 * usual['broken']:.0f} % | "
            f"{usual['speedup']:.2f} | {100 * proven['broken']:.1f} % | {proven['speedup']:.2f} |"
        )
    return "\n".join(lines)


def main(runs: int = 1000) -> None:
    """Simulate all settings and write the results."""
    risks: tuple[Risk, ...] = ("disagreement", "accuracy")
    results = []
    for risk, texts, limit in product(risks, (300, 1000), (0.02, 0.05)):
        usual, proven = (simulate("max_prob", risk, texts, limit, runs, proven=flag) for flag in (False, True))
        results.append({"risk": risk, "texts": texts, "limit": limit, "usual": asdict(usual), "proven": asdict(proven)})
        print(table(results[-1:]).splitlines()[-1], flush=True)
    write_json(RESULTS, {"runs": runs, "confidence": CONFIDENCE, "strategy": "max_prob", "results": results})


if __name__ == "__main__":
    main()
