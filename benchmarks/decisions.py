"""The cost of decisions: a sweep of a large trace, against a plain loop, and one decision for one text.

python benchmarks/decisions.py
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from common import time_alternately, write_results
from exitpoll.decide.costs import ExitCosts
from exitpoll.decide.fitting import Candidate, candidates, variants
from exitpoll.decide.policy import Policy
from exitpoll.decide.strategies import STRATEGIES
from exitpoll.decide.sweep import POINTS, curve_of
from exitpoll.decide.trace import Trace

TEXTS, EXITS, CLASSES = 100_000, 12, 6
SHARE_BAR, SECONDS_BAR, MICROSECONDS_BAR = 0.1, 60.0, 60.0  # upper limits


class SweepCost(TypedDict):
    """Time of a sweep, as the results file holds it."""

    trace: list[int]  # its shape
    curves: int
    thresholds: int
    seconds: dict[str, float]
    share_of_plain_loop: float
    total_seconds: float


def make_trace(texts: int) -> Trace:
    """Draw logits that favour the label more with depth."""
    generator = np.random.default_rng(0)
    labels = generator.integers(CLASSES, size=texts)
    clarity = generator.exponential(size=(texts, 1, 1)) * np.linspace(0.5, 3, EXITS)[None, :, None]
    logits = generator.normal(size=(texts, EXITS, CLASSES)) + clarity * np.eye(CLASSES)[labels][:, None]
    return Trace(logits.astype(np.float32), labels)


def plain_loop(trace: Trace, candidate: Candidate, levels: NDArray) -> list[tuple[float, float]]:
    """Compute accuracy and speed-up as a script would: for every threshold, exit by exit, until all texts have left."""
    score, answer = candidate.opinion.score, candidate.opinion.answer
    labels, points = np.asarray(trace.labels), []
    for level in levels:
        inside = np.ones(len(trace), dtype=bool)
        right = layers = 0
        for number in range(EXITS):
            leaves = inside & (score[:, number] >= level) if number < EXITS - 1 else inside.copy()
            right += int((answer[leaves, number] == labels[leaves]).sum())
            layers += (number + 1) * int(leaves.sum())
            inside &= ~leaves
        points.append((right / len(trace), EXITS * len(trace) / layers))
    return points


def sweep_cost(texts: int) -> SweepCost:
    """Time the sweep and the plain loop alternately, strategy by strategy; both start from the strategy's opinion."""
    trace = make_trace(texts)
    costs = ExitCosts.in_layers(trace.exit_layers)
    seconds = {"asking strategies": 0.0, "sweep": 0.0, "plain loop": 0.0}
    points = []
    asked = candidates(trace)
    while True:
        started = time.perf_counter()
        candidate = next(asked, None)
        seconds["asking strategies"] += time.perf_counter() - started
        if candidate is None:
            break
        started = time.perf_counter()
        curve = curve_of(trace, candidate, "accuracy", POINTS, costs)
        swept = time.perf_counter()
        plain = plain_loop(trace, candidate, curve.levels)
        seconds["sweep"] += swept - started
        seconds["plain loop"] += time.perf_counter() - swept
        np.testing.assert_allclose(np.stack([curve.score, curve.speedup], axis=1), plain)
        points.append(len(curve.levels))
    ours = seconds["asking strategies"] + seconds["sweep"]
    return {
        "trace": [texts, EXITS, CLASSES],
        "curves": len(points),
        "thresholds": int(np.sum(points)),
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "share_of_plain_loop": round(seconds["sweep"] / seconds["plain loop"], 4),
        "total_seconds": round(ours, 2),
    }


def one_text() -> dict[str, float]:
    """Time every strategy on one text at the sixth exit, in microseconds."""
    trace = make_trace(400)
    plain = {policy.strategy: policy for policy in variants()}
    fitted = {fit.policy.strategy: fit.policy.at(0.5) for fit in candidates(trace, ["hybrid", "learned"])}
    logits = np.asarray(trace.logits[:1, :6])

    def decide(policy: Policy) -> None:
        """Decide a hundred times."""
        level = policy.levels(EXITS)[5]
        for _ in range(100):
            opinion = policy.opinion(logits)
            _ = opinion.score[0, -1] >= level, opinion.answer[0, -1]

    times = time_alternately({name: partial(decide, (plain | fitted)[name]) for name in STRATEGIES}, 25)
    return {name: round(1e6 * seconds / 100, 1) for name, seconds in times.items()}


def main() -> None:
    """Measure both and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=TEXTS)
    texts = parser.parse_args().texts
    cost, microseconds = sweep_cost(texts), one_text()
    within = {
        "share_of_plain_loop": cost["share_of_plain_loop"] <= SHARE_BAR,
        "total_seconds": cost["total_seconds"] <= SECONDS_BAR,
        "one_text_microseconds": max(microseconds.values()) <= MICROSECONDS_BAR,
    }
    write_results("decisions", {"sweep": cost, "one_text_microseconds": microseconds, "within_bar": within})


if __name__ == "__main__":
    main()
