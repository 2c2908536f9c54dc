"""The claims of the paper, compared with the results of `reproduce.py`: claim, verdict, figures."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import mean

from exitpoll.study.findings import ExitShares
from exitpoll.study.paper import FULL, PAPER_SCORES
from reproduce_results import Results, answer, format_estimate, format_gains, format_range

LAMBDA = 0.2  # of all runs but the variants
TABLE_SPEEDUPS = (1.3, 1.5, 2.0)  # in the range of the paper's tables
SAME_STRATEGY = "ours against PABEE, both by patience"
Claim = tuple[str, str, str]  # what the paper says, whether it was confirmed, the figures


def claims(results: Results) -> Iterator[Claim]:
    """Yield every claim of the paper with its verdict."""
    yield _best_method(results)
    yield _no_worse_than_full(results)
    yield from _comparisons(results)
    yield _oracle(results)
    yield from _weights(results)
    yield from _training(results)
    yield _leaving(results)


def _verdict(signs: set[int]) -> str:
    """Return whether a claim was confirmed, from the signs of gains: 0 if not significant."""
    verdicts = {frozenset({1}): "yes", frozenset({-1}): "no, the opposite", frozenset({0}): "not significant"}
    return verdicts.get(frozenset(signs), "in part")


def _verdict_by_task(confirmed: Collection[str], tasks: Collection[str]) -> str:
    """Return on how many tasks a claim was confirmed."""
    if len(confirmed) == len(tasks):
        return "yes"
    return f"on {len(confirmed)} of {len(tasks)} tasks" if confirmed else "no"


def _best_method(results: Results) -> Claim:
    """The best of the paper's methods, with thresholds chosen as in the paper; means over seeds."""
    best = {}
    for task in results.tasks:
        rows = [row for row in PAPER_SCORES if row != FULL]
        scores = {row: mean(by_seed) for row in rows if (by_seed := results.scores(task, row, on_dev=True))}
        best[task] = [row for row, score in scores.items() if score > max(scores.values()) - 1e-9]
    confirmed = [task for task, rows in best.items() if "ours, votes" in rows]
    others = ", ".join(f"{task} ({' and '.join(rows)})" for task, rows in best.items() if task not in confirmed)
    claim = "ours by votes is the best method, or equal to the best, on every task (Tables 2, 3)"
    return (
        claim,
        _verdict_by_task(confirmed, best),
        f"With thresholds chosen as in the paper, others are best on {others}.",
    )


def _no_worse_than_full(results: Results) -> Claim:
    """Points above the full model, with thresholds chosen as in the paper; means over seeds."""
    above = {
        task: mean(results.scores(task, "ours, votes", on_dev=True)) - mean(results.scores(task, FULL))
        for task in results.tasks
    }
    figures = ", ".join(f"{task} {gain:+.1f}" for task, gain in above.items())
    confirmed = [task for task, gain in above.items() if gain > -0.05]
    claim = "ours by votes is on no task below the full model (Tables 2, 3)"
    return claim, _verdict_by_task(confirmed, above), f"Points above it: {figures}."


def _comparisons(results: Results) -> Iterator[Claim]:
    """Comparisons at the same speed-up, on average over the tasks."""
    yield (
        "our loss is better than PABEE's by the same strategy (curves, 1 to 2×)",
        _verdict(results.signs(SAME_STRATEGY, TABLE_SPEEDUPS)),
        answer(results, SAME_STRATEGY),
    )
    on_bert = {task: results.gains_at(SAME_STRATEGY, [2.0], task) for task in ("sst2", "sst5")}
    yield (
        "also on BERT (curves of SST-2 and SST-5)",
        _verdict({gain.gain.sign for gains in on_bert.values() for gain in gains}),
        f"On a BERT: {', '.join(f'{task} {format_gains(gains)}' for task, gains in on_bert.items())}.",
    )
    votes, entropy = "votes against patience", "entropy against votes"
    yield (
        "votes are better than patience in most cases (curves)",
        _verdict(results.signs(votes, TABLE_SPEEDUPS)),
        answer(results, votes),
    )
    slow, fast = [1.3], (2.0, 2.5, 3.0)
    yield (
        "below 1.4×, votes are better than patience and entropy (effect of k)",
        _verdict(results.signs(votes, slow) | {-sign for sign in results.signs(entropy, slow)}),
        f"Votes against patience {format_gains(results.gains_at(votes, slow))}; entropy against votes "
        f"{format_gains(results.gains_at(entropy, slow))}.",
    )
    yield (
        "above 1.6×, votes drop and entropy is surprisingly good (effect of k)",
        _verdict(results.signs(entropy, fast)),
        f"Entropy against votes {format_gains(results.gains_at(entropy, fast))}.",
    )
    hybrid = "hybrid against the best of votes, patience and entropy"
    yield "so a hybrid may be better than either", _verdict(results.signs(hybrid)), answer(results, hybrid)


def _oracle(results: Results) -> Claim:
    """The oracle that knows the label, against the last exit."""
    oracles = {task: findings["oracle"] for task, findings in results.tasks.items()}
    gains = {task: 100 * (oracle["first_right"]["score"] - oracle["last_exit"]) for task, oracle in oracles.items()}
    speedups = format_range((oracle["first_right"]["speedup"] for oracle in oracles.values()), "×", 1)
    confirmed = [task for task, gain in gains.items() if gain > 0]
    return (
        "the oracle is faster and more accurate (Figure 1)",
        _verdict_by_task(confirmed, oracles),
        f"{speedups}, {format_range(gains.values(), ' points', 1)} above the last exit.",
    )


def _weights(results: Results) -> Iterator[Claim]:
    """The weights of the terms of the loss."""
    sst2 = results.gains_at("diversity, by votes", (2.0, 3.0), "sst2")
    by_lambda = {name: results.variant(name, "votes") for name in ("λ = 0", "λ = 0.1", "λ = 0.3")}
    others = ", ".join(f"{name} {format_estimate(gain)}" for name, gain in by_lambda.items())
    yield (
        "λ = 0.2 is best, λ = 0 worst (effect of λ, SST-2)",
        _verdict({-gain.sign for gain in by_lambda.values()}),
        f"By votes, points by which λ = 0.2 is above λ = 0, SST-2: {format_gains(sst2)}. "
        f"On TREC at 2×, points above λ = 0.2: {others}.",
    )
    uniform = {strategy: results.variant("weights alike", strategy) for strategy in ("votes", "entropy")}
    yield (
        "on BERT, uniform exit weights do poorly (appendix)",
        _verdict({-gain.sign for gain in uniform.values()}),
        f"On TREC at 2×, points above weights by depth: by votes {format_estimate(uniform['votes'])}, by entropy "
        f"{format_estimate(uniform['entropy'])}.",
    )
    last = results.variant("last head not diverse", "votes")
    yield (
        "leaving out the diversity term of the last head is sometimes better (appendix)",
        _verdict({last.sign}),
        f"On TREC, by votes at 2×: {format_estimate(last)}.",
    )


def _training(results: Results) -> Iterator[Claim]:
    """The heads during training."""
    ends = {
        task: [100 * findings["alpha"]["alpha"][-1][layer] / LAMBDA for layer in (0, -1)]
        for task, findings in results.tasks.items()
    }
    rises = [task for task, (first, last) in ends.items() if last > first]
    first, last = ends["mrpc"]
    yield (
        "targets of deeper layers are softer: α comes closer to λ (MRPC)",
        _verdict_by_task(rises, ends),
        f"At the end of MRPC's training, α is {first:.0f} % of λ at the second layer and {last:.0f} % at the last.",
    )
    previous = {task: _previous_layer(findings["closest"]) for task, findings in results.tasks.items()}
    mostly = [task for task, (_, most_common) in previous.items() if most_common]
    shares = [100 * share for share in previous["mrpc"][0]]
    yield (
        "the closest earlier layer is mostly the previous one (MRPC)",
        _verdict_by_task(mostly, previous),
        "Confirmed where, at every layer, the previous layer is the closest more often than any other. On MRPC it is "
        f"for {mean(shares[:5]):.0f} % of the texts at layers 3 to 7, and for {mean(shares[5:]):.0f} % at deeper ones.",
    )
    cosines = {
        training: [list(by_step.values())[number]["alike"] for number in (0, -1)]
        for training, by_step in results.states.items()
    }  # at the first and the last snapshot
    changes = " and ".join(f"from {first:.2f} to {last:.2f} {training}" for training, (first, last) in cosines.items())
    yield (
        "hidden states of adjacent layers come closer during training (t-SNE, SST-2)",
        _verdict({1 if last > first else -1 for first, last in cosines.values()}),
        f"On TREC, the cosine between what neighbouring heads read goes {changes}.",
    )


def _previous_layer(closest: Sequence[Sequence[float]]) -> tuple[list[float], bool]:
    """Return how often the previous layer is the closest, from layer 3 on, and whether no other is more often."""
    rows = [(row[layer - 1], max(row)) for layer, row in enumerate(closest) if layer >= 2]  # the second has one choice
    return [share for share, _ in rows], all(share == largest for share, largest in rows)


def _leaving(results: Results) -> Claim:
    """Where texts leave with the right answer at 1.3×: in the first third of the layers, and in the middle."""
    early, middle = (
        {task: _shares(findings["leaving"], layers) for task, findings in results.tasks.items()}
        for layers in (slice(0, 4), slice(4, 9))
    )
    confirmed = [task for task, shares in early.items() if shares["entropy"] > max(shares["patience"], shares["votes"])]
    entropy, patience, votes = (
        format_range(shares[strategy] for shares in early.values()) for strategy in ("entropy", "patience", "votes")
    )
    patience_later, votes_later = (
        format_range(shares[strategy] for shares in middle.values()) for strategy in ("patience", "votes")
    )
    return (
        "at 1.3×, more texts leave early by entropy; by patience and votes most leave in the middle (appendix)",
        _verdict_by_task(confirmed, early),
        f"In the first third of the layers, {entropy} of all texts leave with the right answer by entropy, {patience} "
        f"by patience and {votes} by votes; at layers 5 to 9, {patience_later} by patience and {votes_later} by votes.",
    )


def _shares(leaving: Mapping[str, ExitShares], layers: slice) -> dict[str, float]:
    """Return the share of all texts, in %, that leave at some layers with the right answer, by strategy."""
    return {strategy: 100 * sum(by_exit["shares"][layers]) for strategy, by_exit in leaving.items()}
