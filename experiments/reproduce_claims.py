"""What the paper claims, held against what `reproduce.py` found: a claim, whether it held, and the figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from exitpoll.study.paper import FULL, PAPER
from reproduce_results import Results, answer, in_points, said_at, span

LAMBDA = 0.2  # of all runs but the variants
IN_TABLES = (1.3, 1.5, 2.0)  # speed-ups in the range of the paper's tables
SAME = "ours against PABEE, both by patience"
Claim = tuple[str, str, str]  # what the paper says, whether it held, what was found


def claims(results: Results) -> Iterator[Claim]:
    """Give every claim with what was found of it."""
    yield _best_of_all(results)
    yield _no_worse_than_full(results)
    yield from _contests(results)
    yield _oracle(results)
    yield from _weights(results)
    yield from _training(results)
    yield _leaving(results)


def _told(signs: set[int]) -> str:
    """Say whether something held, by whether gains are surely above nought."""
    held = {frozenset({1}): "yes", frozenset({-1}): "the contrary", frozenset({0}): "cannot be told"}
    return held.get(frozenset(signs), "in part")


def _on(won: Sequence[str], of: Sequence[str]) -> str:
    """Say on how many tasks something held."""
    return "yes" if len(won) == len(of) else "no" if not won else f"on {len(won)} of {len(of)} tasks"


def _best_of_all(results: Results) -> Claim:
    """The best of the paper's methods, chosen as the paper chose; means over seeds."""
    best = {}
    for task in results.tasks:
        rows = [row for row in PAPER if row != FULL]
        known = {row: mean(scores) for row in rows if (scores := results.scores(task, row, on_dev=True))}
        best[task] = [row for row, score in known.items() if score > max(known.values()) - 1e-9]
    won = [task for task, rows in best.items() if "ours, votes" in rows]
    others = "; ".join(f"{task}: {' and '.join(rows)}" for task, rows in best.items() if task not in won)
    claim = "ours by votes is the best of all methods, or level with it, on every task (Tables 2, 3)"
    return claim, _on(won, list(best)), f"Chosen as in the paper, others are best on these: {others}."


def _no_worse_than_full(results: Results) -> Claim:
    """Points above the full model, chosen as the paper chose; means over seeds."""
    above = {
        task: mean(results.scores(task, "ours, votes", on_dev=True)) - mean(results.scores(task, FULL))
        for task in results.tasks
    }
    figures = ", ".join(f"{task} {gain:+.1f}" for task, gain in above.items())
    won = [task for task, gain in above.items() if gain > -0.05]
    return "and nowhere below the full model", _on(won, list(above)), f"Points above it: {figures}."


def _contests(results: Results) -> Iterator[Claim]:
    """What is a comparison at one speed-up, on average over the tasks."""
    yield (
        "our loss beats PABEE's by the same strategy (curves, 1 to 2×)",
        _told(results.signs(SAME, IN_TABLES)),
        answer(results, SAME),
    )
    on_bert = ", ".join(f"{task} {said_at(results, SAME, [2.0], task)}" for task in ("sst2", "sst5"))
    signs = {gain.gain.sign for task in ("sst2", "sst5") if (gain := results.gain(SAME, 2.0, task)) is not None}
    yield "on BERT, too (curves of SST-2 and SST-5)", _told(signs), f"On a BERT: {on_bert}."
    votes, entropy = "votes against patience", "entropy against votes"
    yield (
        "votes improve on patience in most cases (curves)",
        _told(results.signs(votes, IN_TABLES)),
        answer(results, votes),
    )
    low = results.signs(votes, [1.3]) | {-sign for sign in results.signs(entropy, [1.3])}
    yield (
        "below 1.4×, votes are above patience and entropy (effect of k)",
        _told(low),
        f"Votes against patience {said_at(results, votes, [1.3])}; entropy against votes "
        f"{said_at(results, entropy, [1.3])}.",
    )
    yield (
        "above 1.6×, votes drop and entropy is surprisingly good (effect of k)",
        _told(results.signs(entropy, (2.0, 2.5, 3.0))),
        f"Entropy against votes {said_at(results, entropy, (2.0, 2.5, 3.0))}.",
    )
    hybrid = "hybrid against the best of votes, patience and entropy"
    yield "so a hybrid is suggested", _told(results.signs(hybrid)), answer(results, hybrid)


def _oracle(results: Results) -> Claim:
    """The oracle that knows the label, against the last exit."""
    found = {task: each["oracle"] for task, each in results.tasks.items()}
    gains = {task: 100 * (each["first_right"]["score"] - each["last_exit"]) for task, each in found.items()}
    speeds = span((each["first_right"]["speedup"] for each in found.values()), "×", 1)
    won = [task for task, gain in gains.items() if gain > 0]
    return (
        "the oracle is faster and more accurate (Figure 1)",
        _on(won, list(found)),
        f"{speeds}, {span(gains.values(), ' points', 1)} above the last exit.",
    )


def _weights(results: Results) -> Iterator[Claim]:
    """What weighs the terms of the loss."""
    diversity = "diversity, by votes"
    by_lambda = {name: results.variant(name, "votes") for name in ("λ = 0", "λ = 0.1", "λ = 0.3")}
    others = ", ".join(f"{name} {in_points(gain)}" for name, gain in by_lambda.items())
    yield (
        "λ = 0.2 is best, λ = 0 worst (effect of λ, SST-2)",
        _told({-gain.sign for gain in by_lambda.values()}),
        f"By votes, points that λ = 0.2 gains on λ = 0, SST-2: {said_at(results, diversity, (2.0, 3.0), 'sst2')}. "
        f"On TREC at 2×, points above λ = 0.2: {others}.",
    )
    alike = {way: results.variant("weights alike", way) for way in ("votes", "entropy")}
    yield (
        "on BERT, all heads weighed alike do poorly (appendix)",
        _told({-gain.sign for gain in alike.values()}),
        f"On TREC at 2×, above weights by depth: by votes {in_points(alike['votes'])}, by entropy "
        f"{in_points(alike['entropy'])}.",
    )
    last = results.variant("last head not diverse", "votes")
    yield (
        "leaving out the last head's diversity is sometimes better (appendix)",
        _told({last.sign}),
        f"On TREC, by votes at 2×: {in_points(last)}.",
    )


def _training(results: Results) -> Iterator[Claim]:
    """What happens while the heads are trained."""
    ends = {
        task: [100 * each["alpha"]["alpha"][-1][layer] / LAMBDA for layer in (0, -1)]
        for task, each in results.tasks.items()
    }
    rises = [task for task, (first, last) in ends.items() if last > first]
    here = ends["mrpc"]
    yield (
        "targets of deeper layers are softer: α comes nearer to λ (MRPC)",
        _on(rises, list(ends)),
        f"At the end of MRPC's training α is {here[0]:.0f} % of λ at the second layer and {here[1]:.0f} % at the last.",
    )
    before = {task: _layer_before(each["closest"]) for task, each in results.tasks.items()}
    mostly = [task for task, (_, commonest) in before.items() if commonest]
    shares = [100 * share for share in before["mrpc"][0]]
    yield (
        "the nearest earlier layer is mostly the one before (MRPC)",
        _on(mostly, list(before)),
        "That is: at every layer, the layer before is nearest more often than any other. For MRPC, with "
        f"{mean(shares[:5]):.0f} % of the texts at layers 3 to 7, and with {mean(shares[5:]):.0f} % at deeper ones.",
    )
    alike = {
        name: [list(steps.values())[at]["alike"] for at in (0, -1)] for name, steps in results.states.items()
    }  # at the first and the last moment
    closer = {1 if last > first else -1 for first, last in alike.values()}
    yield (
        "states of adjacent layers come closer with training (t-SNE, SST-2)",
        _told(closer),
        "On TREC, the cosine of what neighbouring heads read goes "
        + " and ".join(f"from {first:.2f} to {last:.2f} {name}" for name, (first, last) in alike.items())
        + ".",
    )


def _layer_before(closest: Sequence[Sequence[float]]) -> tuple[list[float], bool]:
    """Give the share of the layer before as the nearest of each layer from the third on; whether it is the largest."""
    rows = [(row[at - 1], max(row)) for at, row in enumerate(closest) if at >= 2]  # the second has one layer before
    return [share for share, _ in rows], all(share == largest for share, largest in rows)


def _leaving(results: Results) -> Claim:
    """Where texts leave with the right answer at 1.3×: the first third of the layers, and the middle."""
    early, middle = ({task: _shares(each["leaving"], part) for task, each in results.tasks.items()} for part in (0, 1))
    won = [task for task, each in early.items() if each["entropy"] > max(each["patience"], each["votes"])]
    patience, votes = (span(each[name] for each in middle.values()) for name in ("patience", "votes"))
    return (
        "at 1.3×, by entropy more texts leave early; by patience and votes most leave in the middle (appendix)",
        _on(won, list(early)),
        f"In the first third of the layers, {span(each['entropy'] for each in early.values())} of all texts leave with "
        f"the right answer by entropy, {span(each['patience'] for each in early.values())} by patience and "
        f"{span(each['votes'] for each in early.values())} by votes; at layers 5 to 9 {patience} by patience and "
        f"{votes} by votes.",
    )


def _shares(leaving: Mapping[str, Mapping[str, Any]], part: int) -> dict[str, float]:
    """Say how many of all texts, in %, leave rightly in the first third of twelve layers, or after layers 5 to 9."""
    where = (slice(0, 4), slice(4, 9))[part]
    return {name: 100 * sum(each["shares"][where]) for name, each in leaving.items()}
