"""Strategies side by side on one trace: the best score at a speed-up, static exits and oracles beside them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from exitpoll.decide.analysis import oracles, static_exit
from exitpoll.decide.certificate import Metadata
from exitpoll.decide.costs import ExitCosts, Unit
from exitpoll.decide.decisions import Decisions, speedup_at
from exitpoll.decide.scoring import to_score
from exitpoll.decide.strategies import STATIC
from exitpoll.decide.sweep import Curve, best_point
from exitpoll.decide.trace import Trace
from exitpoll.files import JsonObject

SPEEDUPS = (1.3, 1.5, 2.0, 2.5, 3.0, 4.0)


@dataclass(frozen=True)
class Point:
    """A way to decide that has no threshold."""

    name: str
    score: float
    speedup: float


@dataclass(frozen=True)
class Comparison:
    """The result of a sweep."""

    texts: int
    metric: str  # or "agreement" with the full model, where there are no labels
    full_score: float
    curves: Sequence[Curve]  # of the strategies but static, whose points are the static exits
    static_exits: Sequence[Point]  # all texts leave at the same exit
    oracles: Sequence[Point]
    about: Metadata
    unit: Unit = "layers"  # what speed-ups are counted in

    @cached_property
    def best(self) -> dict[str, list[tuple[Curve, int] | None]]:
        """Of every strategy, whatever its settings, the best points at `SPEEDUPS` or faster; None if never."""
        names = dict.fromkeys(curve.strategy for curve in self.curves)
        by_name = {name: [curve for curve in self.curves if curve.strategy == name] for name in names}
        return {name: [best_point(curves, speedup) for speedup in SPEEDUPS] for name, curves in by_name.items()}

    @property
    def best_scores(self) -> dict[str, list[float]]:
        """The scores of these points, NaN where there is none."""
        return {
            name: [float("nan") if pair is None else float(pair[0].score[pair[1]]) for pair in points]
            for name, points in self.best.items()
        }

    @property
    def best_static(self) -> list[float]:
        """The best scores of a static exit at `SPEEDUPS` or faster."""
        best = (self.best_static_exit(speedup) for speedup in SPEEDUPS)
        return [float("nan") if point is None else point.score for point in best]

    def best_static_exit(self, speedup: float) -> Point | None:
        """Return the best static exit at a speed-up or faster; None if none is so fast."""
        as_fast = [point for point in self.static_exits if point.speedup >= speedup]
        return max(as_fast, key=lambda point: point.score, default=None)

    def to_dict(self) -> JsonObject:
        """Return plain values for JSON; a score that is never reached is null."""
        return {
            "texts": self.texts,
            "metric": self.metric,
            "full_score": self.full_score,
            "unit": self.unit,
            "speedups": list(SPEEDUPS),
            "best": {name: [_point_to_dict(pair) for pair in points] for name, points in self.best.items()},
            "best_static": [None if np.isnan(score) else score for score in self.best_static],
            "exits": [asdict(point) for point in self.static_exits],
            "oracles": [asdict(point) for point in self.oracles],
            "curves": [_curve_to_dict(curve) for curve in self.curves],
            "about": dict(self.about),
        }

    def to_csv(self) -> str:
        """Return every point of every curve as a line."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        speedup_column = "speedup" if self.unit == "layers" else f"speedup_in_{self.unit}"
        writer.writerow(["kind", "strategy", "name", "threshold", "score", speedup_column])
        for curve in self.curves:
            for level, score, speedup in zip(curve.levels, curve.score, curve.speedup, strict=True):
                threshold = curve.policy.natural(float(level))
                figures = [threshold, f"{score:.6f}", f"{speedup:.6f}"]
                writer.writerow(["strategy", curve.strategy, curve.name, *figures])
        for kind, points in (("static exit", self.static_exits), ("oracle", self.oracles)):
            for point in points:
                writer.writerow([kind, "", point.name, "", f"{point.score:.6f}", f"{point.speedup:.6f}"])
        return text.getvalue()


def compare(trace: Trace, curves: Sequence[Curve], costs: ExitCosts | None = None) -> Comparison:
    """Put a sweep's curves beside static exits and oracles.

    Args:
        trace: The trace that was swept, with labels or without.
        curves: What `sweep` returned.
        costs: What the sweep counted by; layers by default.

    Returns:
        The comparison.
    """
    name = curves[0].metric
    scored = to_score(trace, name)
    costs = ExitCosts.in_layers(trace.exit_layers) if costs is None else costs
    exits = {f"layer {layer}": static_exit(scored.trace, number) for number, layer in enumerate(trace.exit_layers)}
    static = _points(exits, scored.metric, costs)
    return Comparison(
        texts=len(trace),
        metric=name,
        full_score=static[-1].score,
        curves=[curve for curve in curves if curve.strategy != STATIC] or curves,
        static_exits=static,
        oracles=_points({} if trace.labels is None else oracles(trace), scored.metric, costs),
        about=dict(trace.about),
        unit=costs.unit,
    )


def _points(decided: Mapping[str, Decisions], metric: str, costs: ExitCosts) -> list[Point]:
    """Score decisions that ask no exit but the one where a text leaves."""
    return [
        Point(name, decisions.score(metric), float(speedup_at(costs.static[decisions.exit], costs.static.tolist())))
        for name, decisions in decided.items()
    ]


def _point_to_dict(pair: tuple[Curve, int] | None) -> JsonObject | None:
    """Return a point with the policy to decide by, as plain values."""
    if pair is None:
        return None
    curve, point = pair
    policy = curve.policy_at(point)
    return {
        "score": float(curve.score[point]),
        "speedup": float(curve.speedup[point]),
        "name": policy.name,
        "policy": policy.to_dict(),
    }


def _curve_to_dict(curve: Curve) -> JsonObject:
    """Return a curve as plain values."""
    return {
        "strategy": curve.strategy,
        "name": curve.name,
        "policy": curve.policy.to_dict(),
        "thresholds": [curve.policy.natural(float(level)) for level in curve.levels],
        "score": curve.score.tolist(),
        "speedup": curve.speedup.tolist(),
    }
