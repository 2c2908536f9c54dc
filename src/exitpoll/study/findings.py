"""What runs show beyond their tables, as plain values: the material of the paper's figures and analyses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.analysis import consistency_oracle, label_oracle, static_exit
from exitpoll.decide.bootstrap import estimate
from exitpoll.decide.policy import Policy
from exitpoll.decide.sweep import front_of, sweep
from exitpoll.decide.trace import Trace
from exitpoll.study.comparisons import Mixture, Runs, mean_gain
from exitpoll.study.paper import BEST, NAMED, OURS_ROW, VARIANTS, WITHOUT, Row
from exitpoll.study.run import Outcome
from exitpoll.study.tables import Cell

EQUAL_SPEEDUP = 1.3  # at which the paper compares where texts leave
WITHIN = 0.005  # of the last exit's score counts as keeping it
SHOWN = ("DeeBERT", "PABEE", "ours, patience", "ours, votes", "ours, hybrid")  # as curves
Points = list[list[float]]  # speed-up and score of each


def about_task(runs: Runs, task: str, cells: Sequence[Cell]) -> dict[str, Any]:
    """Gather all figures' material of a task, from the runs of the first seed.

    Args:
        runs: The runs.
        task: The task.
        cells: Figures of the tables.

    Returns:
        Plain values by figure; a figure whose runs are missing is left out.
    """
    seed = runs.plan.seeds[0]
    found: dict[str, Any] = {"points": points(cells, task, seed), "curves": {}}
    for name in SHOWN:
        outcome = runs.of(task, NAMED[name], seed)
        if outcome is not None:
            found["curves"][name] = front(outcome.trace("test"), NAMED[name].strategies)
    ours = runs.of(task, OURS_ROW, seed)
    if ours is not None:
        test = ours.trace("test")
        found |= {
            "metric": test.metric,
            "layers": list(test.exit_layers),
            "exits": ours.summary["scores"]["test"],
            "oracle": oracle(runs, task, seed),
            "k": effect_of_k(test),
            "leaving": leaving(test),
            "alpha": alpha(ours),
            "closest": closest(ours),
        }
    return found


def about_states(runs: Runs, task: str) -> dict[str, Any]:
    """Lay out what the heads read through a training with diversity and through one without.

    Args:
        runs: The runs.
        task: The task.

    Returns:
        As `states` gives it, for both; nothing where a run is missing.
    """
    seed = runs.plan.seeds[0]
    ways = {"with diversity": runs.of(task, OURS_ROW, seed), "without diversity": runs.of(task, WITHOUT, seed)}
    known = {name: outcome for name, outcome in ways.items() if outcome is not None}
    return {name: states(outcome) for name, outcome in known.items()} if len(known) == len(ways) else {}


def points(cells: Sequence[Cell], task: str, seed: int) -> list[dict[str, Any]]:
    """List every method's figure in the table, as a point of score against speed-up.

    Args:
        cells: Figures of the tables.
        task: The task.
        seed: The seed.

    Returns:
        Name, score and speed-up of each.
    """
    here = [each for each in cells if (each.task, each.seed) == (task, seed)]
    return [{"name": each.row, "score": each.score, "speedup": each.speedup} for each in here]


def front(trace: Trace, strategies: Sequence[str | Policy]) -> Points:
    """Give the points that no threshold or setting beats in both speed-up and score.

    Args:
        trace: A trace with labels.
        strategies: The strategies, with all their settings.

    Returns:
        Speed-up and score, by rising speed-up.
    """
    curves = sweep(trace, strategies)
    speedup = np.concatenate([curve.speedup for curve in curves])
    score = np.concatenate([curve.score for curve in curves])
    best = front_of(speedup, score)[::-1]
    return [[round(float(speedup[each]), 4), round(float(score[each]), 5)] for each in best]


def effect_of_k(trace: Trace) -> dict[str, Points]:
    """Compare votes of every k with patience and entropy."""
    ways = {f"votes, k = {k:g}": Policy("votes", settings={"k": k}) for k in (0.0, 0.25, 0.5, 0.75)}
    ways |= {name: Policy(name) for name in ("patience", "entropy")}
    return {name: front(trace, [way]) for name, way in ways.items()}


def leaving(trace: Trace) -> dict[str, Any]:
    """Say which share of the texts leaves each exit with the right answer, by strategies that are equally fast.

    Args:
        trace: A trace with labels.

    Returns:
        For each strategy its speed-up, the nearest to 1.3, and a share for each exit.
    """
    found = {}
    for name in ("entropy", "patience", "votes"):
        curves = sweep(trace, [name])
        nearest = min(
            ((abs(speedup - EQUAL_SPEEDUP), -score, curve, point)
             for curve in curves
             for point, (speedup, score) in enumerate(zip(curve.speedup, curve.score, strict=True))),
            key=lambda each: each[:2],
        )  # fmt: skip
        decided = nearest[2].policy_at(nearest[3]).decide(trace)
        right = decided.answer == trace.gold("this")
        shares = [float((right & (decided.exit == number)).mean()) for number in range(len(trace.exit_layers))]
        found[name] = {"speedup": round(decided.speedup, 4), "shares": [round(share, 5) for share in shares]}
    return found


def oracle(runs: Runs, task: str, seed: int) -> dict[str, Any]:
    """Say how far from the oracles our best strategy is.

    Args:
        runs: The runs.
        task: The task.
        seed: The seed.

    Returns:
        The oracles' scores and speed-ups; the highest speed-up at which, on calibration texts, our best strategy
        keeps the last exit's score, and what that came to on test texts.
    """
    outcome = runs.of(task, BEST, seed)
    assert outcome is not None
    calibration, test = outcome.trace("calibration"), outcome.trace("test")
    right, agrees = label_oracle(test), consistency_oracle(test)
    full = static_exit(calibration, -1).score(calibration.metric)
    fast = [
        (float(curve.speedup[point]), curve.policy_at(int(point)))
        for curve in outcome.curves("calibration", BEST.strategies)
        for point in np.flatnonzero(curve.score >= full - WITHIN)
    ]
    decided = max(fast, key=lambda each: each[0])[1].decide(test) if fast else static_exit(test, -1)
    return {
        "first_right": {"score": right.score(test.metric), "speedup": right.speedup},
        "agrees_for_good": {"score": agrees.score(test.metric), "speedup": agrees.speedup},
        "keeps_score": {"score": decided.score(test.metric), "speedup": decided.speedup},
        "last_exit": static_exit(test, -1).score(test.metric),
    }


def alpha(outcome: Outcome) -> dict[str, Any]:
    """Follow α = λ·p_c of every exit from the second on through a training (the paper's equation 19)."""
    lines = [line for line in outcome.journal() if line["alpha"] is not None]
    return {"steps": [line["step"] for line in lines], "alpha": [_rounded(line["alpha"]) for line in lines]}


def closest(outcome: Outcome) -> list[list[float]]:
    """Say how often each earlier head was the nearest of a head, over the whole training: (exits, exits) shares."""
    counts = np.sum([line["closest"] for line in outcome.journal() if line["closest"] is not None], axis=0)
    return [_rounded(row / max(row.sum(), 1)) for row in counts]


def states(outcome: Outcome) -> dict[str, Any]:
    """Lay out by t-SNE what the heads read of the texts of one class, at the moments that were kept.

    Args:
        outcome: A run.

    Returns:
        For each step, places (exits, texts, 2), and how alike neighbouring exits' states are: the mean cosine.
    """
    found = {}
    for step, (features, labels) in outcome.moments().items():
        largest = np.bincount(labels).argmax()
        some = features[labels == largest].astype(np.float64)  # (texts, exits, width)
        found[str(step)] = {"places": _laid_out(some), "alike": round(_neighbours_alike(some), 4)}
    return found


def _laid_out(features: NDArray) -> list:
    """Lay texts out in the plane, all exits together: (exits, texts, 2)."""
    from sklearn.manifold import TSNE

    texts, exits, width = features.shape
    flat = features.transpose(1, 0, 2).reshape(exits * texts, width)
    places = TSNE(perplexity=min(30.0, (len(flat) - 1) / 3), random_state=0).fit_transform(flat)
    return np.round(places.reshape(exits, texts, 2).astype(np.float64), 1).tolist()


def _neighbours_alike(features: NDArray) -> float:
    """Mean cosine between the states of a text at neighbouring exits."""
    unit = features / np.maximum(np.linalg.norm(features, axis=-1, keepdims=True), 1e-12)
    return float((unit[:, 1:] * unit[:, :-1]).sum(axis=-1).mean())


def about_variants(runs: Runs, task: str, speedup: float = 2.0) -> list[dict[str, Any]]:
    """Compare other readings of the loss, other weights of it and other heads with ours.

    Args:
        runs: The runs.
        task: The task.
        speedup: Where to compare.

    Returns:
        For each variant the score of every exit, and how far it is above ours: on average over the exits, and by each
        strategy at the speed-up; a mean over the seeds that all were run with. Variants never run are left out.
    """
    ran = _distinct(runs, task)
    seeds = runs.seeds(task, *ran.values())
    found = []
    for name, row in ran.items() if seeds else ():
        outcomes = [outcome for seed in seeds if (outcome := runs.of(task, row, seed)) is not None]
        exits = np.mean([outcome.summary["scores"]["test"] for outcome in outcomes], axis=0)
        found.append(
            {
                "name": name,
                "seeds": len(seeds),
                "exits": _rounded(exits),
                "curve": front(outcomes[0].trace("test"), ["votes"]),
                "speedup": speedup,
                "above_ours": _above_ours(runs, task, row, seeds, speedup),
            }
        )
    return found


def _distinct(runs: Runs, task: str) -> dict[str, Row]:
    """Name ours, the same without diversity, and every variant that was run and is neither of them."""
    names: dict[str, Row] = {}
    for row in (OURS_ROW, WITHOUT, *VARIANTS):
        seeds = runs.seeds(task, row)
        outcome = runs.of(task, row, seeds[0]) if seeds else None
        if outcome is None or any(runs.of(task, other, seeds[0]) == outcome for other in names.values()):
            continue
        weight = outcome.run.settings.resolved().diversity_weight
        special = {OURS_ROW.name: f"λ = {weight:g} (ours)", WITHOUT.name: "λ = 0"}
        names[special.get(row.name, row.name)] = row
    return names


def _above_ours(
    runs: Runs, task: str, row: Row, seeds: Sequence[int], speedup: float
) -> dict[str, dict[str, float] | None]:
    """Say how far a variant is above ours, with intervals; None where a strategy is never that fast."""
    found: dict[str, dict[str, float] | None] = {}
    for way in ("exits", "patience", "votes", "entropy"):
        sides = [[_decided(runs, task, each, seed, way, speedup) for each in (row, OURS_ROW)] for seed in seeds]
        pairs = [(theirs, ours) for theirs, ours in sides if theirs is not None and ours is not None]
        test = runs.needed(task, row, seeds[0]).trace("test")
        whole = len(pairs) == len(seeds)
        found[way] = asdict(estimate(mean_gain(test, pairs, metric=test.metric))) if whole else None
    return found


def _decided(runs: Runs, task: str, row: Row, seed: int, way: str, speedup: float) -> Mixture | None:
    """Decide by a strategy at a speed-up, or let texts leave at every exit in equal shares."""
    if way != "exits":
        choice = runs.at(task, [replace(row, strategies=[way])], seed, speedup)
        return None if choice is None else choice.mixture
    test = runs.needed(task, row, seed).trace("test")
    return [(1 / len(test.exit_layers), static_exit(test, number)) for number in range(len(test.exit_layers))]


def _rounded(values: Any) -> list[float]:
    """Write numbers short."""
    return [round(float(value), 5) for value in values]
