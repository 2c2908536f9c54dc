"""The data of the paper's figures and analyses, computed from completed runs as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.analysis import consistency_oracle, label_oracle, static_exit
from exitpoll.decide.bootstrap import estimate
from exitpoll.decide.decisions import Decisions
from exitpoll.decide.policy import Policy
from exitpoll.decide.strategies import KS
from exitpoll.decide.sweep import front_of, sweep
from exitpoll.decide.trace import Trace
from exitpoll.study.comparisons import Mixture, choose, mean_gain
from exitpoll.study.outcomes import Outcomes
from exitpoll.study.paper import BEST_ROW, NO_DIVERSITY_ROW, OURS_ROW, ROWS_BY_NAME, VARIANTS, TableRow
from exitpoll.study.run import Outcome
from exitpoll.study.tables import Cell

EQUAL_SPEEDUP = 1.3  # at which the paper compares where texts leave
TOLERANCE = 0.005  # below the last exit's score, which counts as keeping it
CURVES = ("DeeBERT", "PABEE", "ours, patience", "ours, votes", "ours, hybrid")  # rows that are shown as curves

Front = list[list[float]]  # points of speed-up and score, by rising speed-up


class ScoredPoint(TypedDict):
    """A score and a speed-up on test texts."""

    score: float
    speedup: float


class MethodPoint(ScoredPoint):
    """The point of a method in the tables."""

    name: str


class OracleFindings(TypedDict):
    """The oracles, and the fastest of our policies that keeps the last exit's score on calibration texts."""

    first_right: ScoredPoint
    agrees_for_good: ScoredPoint
    keeps_score: ScoredPoint
    last_exit: float


class ExitShares(TypedDict):
    """The share of all texts that leave with the right answer, by exit."""

    speedup: float
    shares: list[float]  # (exits,)


class AlphaFindings(TypedDict):
    """α = λ·p_c of every exit from the second on, during training."""

    steps: list[int]
    alpha: list[list[float]]  # (steps, exits - 1)


class TaskFindings(TypedDict, total=False):
    """The data of a task's figures; only points and curves where the run of ours is missing."""

    points: list[MethodPoint]
    curves: dict[str, Front]
    metric: str
    layers: list[int]
    exits: list[float]  # scores
    oracle: OracleFindings
    k: dict[str, Front]
    leaving: dict[str, ExitShares]
    alpha: AlphaFindings
    closest: list[list[float]]  # (exits, exits) shares


class StateFindings(TypedDict):
    """What the heads read of some texts at one training step."""

    places: list[list[list[float]]]  # by t-SNE, (exits, texts, 2)
    alike: float  # mean cosine between neighbouring exits


class VariantFindings(TypedDict):
    """A variant of ours, compared with ours."""

    name: str
    diversity_weight: float | None  # λ, if the variant changes nothing else
    seeds: int
    exits: list[float]  # mean scores
    curve: Front  # by votes
    speedup: float  # at which it is compared
    above_ours: dict[str, dict[str, float] | None]  # estimates by strategy, and for the mean of all exits


class Findings(TypedDict, total=False):
    """All data of the figures, and the gains of the comparisons."""

    contests: list[dict[str, Any]]  # gains as plain values
    tasks: dict[str, TaskFindings]
    varied: str | None  # the task of the variants and states
    variants: list[VariantFindings]
    states: dict[str, dict[str, StateFindings]]  # by training and step
    kept_afresh: list[dict[str, Any]]  # gains over the full model with new seeds, as plain values


def task_findings(outcomes: Outcomes, task: str, cells: Sequence[Cell]) -> TaskFindings:
    """Compute the data of all figures of a task, from the runs of the first seed.

    Args:
        outcomes: The completed runs.
        task: The task.
        cells: Cells of the tables.

    Returns:
        Data by figure; a figure whose runs are missing is left out.
    """
    seed = outcomes.plan.seeds[0]
    findings: TaskFindings = {"points": _points(cells, task, seed), "curves": {}}
    for name in CURVES:
        row = ROWS_BY_NAME[name]
        outcome = outcomes.find(task, row, seed)
        if outcome is not None:
            findings["curves"][name] = _front(outcome.trace("test"), row.strategies)
    ours = outcomes.find(task, OURS_ROW, seed)
    if ours is not None:
        test = ours.trace("test")
        findings |= {
            "metric": test.metric,
            "layers": list(test.exit_layers),
            "exits": ours.summary["scores"]["test"],
            "oracle": _oracles(outcomes.get(task, BEST_ROW, seed)),
            "k": _effect_of_k(test),
            "leaving": _leaving(test),
            "alpha": _alpha(ours),
            "closest": _closest(ours),
        }
    return findings


def state_findings(outcomes: Outcomes, task: str) -> dict[str, dict[str, StateFindings]]:
    """Project what the heads read during a training with diversity and one without.

    Args:
        outcomes: The completed runs.
        task: The task.

    Returns:
        For both trainings, the projections by training step; empty where a run is missing.
    """
    seed = outcomes.plan.seeds[0]
    with_diversity = outcomes.find(task, OURS_ROW, seed)
    without = outcomes.find(task, NO_DIVERSITY_ROW, seed)
    if with_diversity is None or without is None:
        return {}
    return {"with diversity": _states(with_diversity), "without diversity": _states(without)}


def _points(cells: Sequence[Cell], task: str, seed: int) -> list[MethodPoint]:
    """Return every method's point in the table."""
    here = [cell for cell in cells if (cell.task, cell.seed) == (task, seed)]
    return [{"name": cell.row, "score": cell.score, "speedup": cell.speedup} for cell in here]


def _front(trace: Trace, strategies: Sequence[str | Policy]) -> Front:
    """Return the points that no threshold or setting beats in both speed-up and score, by rising speed-up."""
    curves = sweep(trace, strategies)
    speedup = np.concatenate([curve.speedup for curve in curves])
    score = np.concatenate([curve.score for curve in curves])
    best = front_of(speedup, score)[::-1]
    return [[round(float(speedup[point]), 4), round(float(score[point]), 5)] for point in best]


def _effect_of_k(trace: Trace) -> dict[str, Front]:
    """Compare votes of every k with patience and entropy."""
    policies = {f"votes, k = {k:g}": Policy("votes", settings={"k": k}) for k in KS}
    policies |= {name: Policy(name) for name in ("patience", "entropy")}
    return {name: _front(trace, [policy]) for name, policy in policies.items()}


def _leaving(trace: Trace) -> dict[str, ExitShares]:
    """Compute the share of texts that leave with the right answer, by exit, for strategies of equal speed-up."""
    findings: dict[str, ExitShares] = {}
    for name in ("entropy", "patience", "votes"):
        decided = _policy_near(trace, name, EQUAL_SPEEDUP).decide(trace)
        right = decided.answer == trace.gold("the share of right answers")
        shares = [float((right & (decided.exit == number)).mean()) for number in range(len(trace.exit_layers))]
        findings[name] = {"speedup": round(decided.speedup, 4), "shares": [round(share, 5) for share in shares]}
    return findings


def _policy_near(trace: Trace, strategy: str, wanted: float) -> Policy:
    """Return the policy of a strategy that is nearest to a speed-up; of equals the one with the best score."""
    points = [
        (abs(speedup - wanted), -score, curve, number)
        for curve in sweep(trace, [strategy])
        for number, (speedup, score) in enumerate(zip(curve.speedup, curve.score, strict=True))
    ]
    _, _, curve, number = min(points, key=lambda point: point[:2])
    return curve.policy_at(number)


def _oracles(outcome: Outcome) -> OracleFindings:
    """Compare the oracles with the fastest policy that keeps the last exit's score on calibration texts."""
    calibration, test = outcome.trace("calibration"), outcome.trace("test")
    full = static_exit(calibration, -1).score(calibration.metric)
    fast = [
        (float(curve.speedup[point]), curve.policy_at(int(point)))
        for curve in outcome.curves("calibration", BEST_ROW.strategies)
        for point in np.flatnonzero(curve.score >= full - TOLERANCE)
    ]
    last = static_exit(test, -1)
    fastest = max(fast, key=lambda point: point[0])[1].decide(test) if fast else last
    return {
        "first_right": _scored_point(label_oracle(test), test),
        "agrees_for_good": _scored_point(consistency_oracle(test), test),
        "keeps_score": _scored_point(fastest, test),
        "last_exit": last.score(test.metric),
    }


def _scored_point(decided: Decisions, trace: Trace) -> ScoredPoint:
    """Return score and speed-up of decisions."""
    return {"score": decided.score(trace.metric), "speedup": decided.speedup}


def _alpha(outcome: Outcome) -> AlphaFindings:
    """Return α = λ·p_c of every exit from the second on, during training: Sun et al. (2021), Eq. 19."""
    lines = [(line["step"], line["alpha"]) for line in outcome.journal() if line["alpha"] is not None]
    return {"steps": [step for step, _ in lines], "alpha": [_rounded(alpha) for _, alpha in lines]}


def _closest(outcome: Outcome) -> list[list[float]]:
    """Compute how often every earlier head was the closest to a head over the whole training, (exits, exits) shares."""
    counts = np.sum([line["closest"] for line in outcome.journal() if line["closest"] is not None], axis=0)
    return [_rounded(row / max(row.sum(), 1)) for row in counts]


def _states(outcome: Outcome) -> dict[str, StateFindings]:
    """Project what the heads read of the texts of the largest class, by training step."""
    findings: dict[str, StateFindings] = {}
    for step, (features, labels) in outcome.snapshots().items():
        largest = np.bincount(labels).argmax()
        of_class = features[labels == largest].astype(np.float64)  # (texts, exits, width)
        findings[str(step)] = {"places": _project(of_class), "alike": round(_neighbour_cosine(of_class), 4)}
    return findings


def _project(features: NDArray) -> list[list[list[float]]]:
    """Project texts to the plane by t-SNE, all exits together: (exits, texts, 2)."""
    from sklearn.manifold import TSNE

    texts, exits, width = features.shape
    flat = features.transpose(1, 0, 2).reshape(exits * texts, width)
    places = TSNE(perplexity=min(30.0, (len(flat) - 1) / 3), random_state=0).fit_transform(flat)
    return np.round(places.reshape(exits, texts, 2).astype(np.float64), 1).tolist()


def _neighbour_cosine(features: NDArray) -> float:
    """Compute the mean cosine between what neighbouring exits read of a text."""
    unit = features / np.maximum(np.linalg.norm(features, axis=-1, keepdims=True), 1e-12)
    return float((unit[:, 1:] * unit[:, :-1]).sum(axis=-1).mean())


def variant_findings(outcomes: Outcomes, task: str, speedup: float = 2.0) -> list[VariantFindings]:
    """Compare other readings of the loss, other weights of its terms and other heads with ours.

    Args:
        outcomes: The completed runs.
        task: The task.
        speedup: Where to compare strategies.

    Returns:
        For every variant that was run the score of every exit, and how far it is above ours, on average over the exits
        and by strategy at the speed-up; means over the seeds with which all of them were run.
    """
    rows = _distinct_variants(outcomes, task)
    seeds = outcomes.seeds(task, *rows.values())
    if not seeds:
        return []
    findings: list[VariantFindings] = []
    for name, row in rows.items():
        by_seed = [outcomes.get(task, row, seed) for seed in seeds]
        findings.append(
            {
                "name": name,
                "diversity_weight": _only_diversity_weight(row, by_seed[0]),
                "seeds": len(seeds),
                "exits": _rounded(np.mean([outcome.summary["scores"]["test"] for outcome in by_seed], axis=0)),
                "curve": _front(by_seed[0].trace("test"), ["votes"]),
                "speedup": speedup,
                "above_ours": _above_ours(outcomes, task, row, seeds, speedup),
            }
        )
    return findings


def _distinct_variants(outcomes: Outcomes, task: str) -> dict[str, TableRow]:
    """Return ours, the same without diversity, and every variant that was run and differs from both, by name."""
    rows: dict[str, TableRow] = {}
    for row in (OURS_ROW, NO_DIVERSITY_ROW, *VARIANTS):
        seeds = outcomes.seeds(task, row)
        if not seeds:
            continue
        outcome = outcomes.get(task, row, seeds[0])
        if all(outcomes.find(task, other, seeds[0]) != outcome for other in rows.values()):
            is_ours = row.name == OURS_ROW.name
            rows[f"λ = {_diversity_weight(outcome):g} (ours)" if is_ours else row.name] = row
    return rows


def _only_diversity_weight(row: TableRow, outcome: Outcome) -> float | None:
    """Return λ of ours, or of a variant that changes nothing else."""
    changed = set(row.settings) | ({"pooling"} if row.pooling is not None else set())
    return _diversity_weight(outcome) if changed <= {"diversity_weight"} else None


def _diversity_weight(outcome: Outcome) -> float:
    """Return the λ of a run."""
    weight = outcome.run.settings.resolved().diversity_weight
    assert weight is not None
    return weight


def _above_ours(
    outcomes: Outcomes, task: str, row: TableRow, seeds: Sequence[int], speedup: float
) -> dict[str, dict[str, float] | None]:
    """Estimate how far a variant is above ours; None where a strategy is never that fast."""
    test = outcomes.get(task, row, seeds[0]).trace("test")
    findings: dict[str, dict[str, float] | None] = {}
    for strategy in ("exits", "patience", "votes", "entropy"):
        sides = [[_decide(outcomes, task, side, seed, strategy, speedup) for side in (row, OURS_ROW)] for seed in seeds]
        pairs = [(variant, ours) for variant, ours in sides if variant is not None and ours is not None]
        complete = len(pairs) == len(seeds)
        findings[strategy] = asdict(estimate(mean_gain(test, pairs, metric=test.metric))) if complete else None
    return findings


def _decide(outcomes: Outcomes, task: str, row: TableRow, seed: int, strategy: str, speedup: float) -> Mixture | None:
    """Decide by a strategy at a speed-up or, with "exits", let texts leave at all exits in equal shares."""
    if strategy != "exits":
        choice = choose(outcomes, task, [replace(row, strategies=[strategy])], seed, speedup)
        return None if choice is None else choice.mixture
    test = outcomes.get(task, row, seed).trace("test")
    exits = range(len(test.exit_layers))
    return [(1 / len(exits), static_exit(test, number)) for number in exits]


def _rounded(values: Iterable[float]) -> list[float]:
    """Round to five decimals."""
    return [round(float(value), 5) for value in values]
