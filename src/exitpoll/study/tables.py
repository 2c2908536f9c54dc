"""The paper's tables from runs of one's own: thresholds chosen on calibration texts, every figure from test texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from exitpoll.data.tasks import plain_name
from exitpoll.decide.analysis import static_exit
from exitpoll.decide.evaluate import measure
from exitpoll.decide.policy import Policy
from exitpoll.decide.sweep import best_of
from exitpoll.study.paper import FULL, PAPER, RANGES, Row
from exitpoll.study.plan import Plan, group_of
from exitpoll.study.run import Outcome

FITTED = ("learned", "max_prob")  # whose weights or temperatures are fitted to the texts that thresholds are chosen on
LINK = "runs/{run}/run.json"  # from where `exitpoll reproduce` writes its tables


@dataclass(frozen=True)
class Cell:
    """One figure of a table: a method on a task with a seed."""

    task: str
    row: str
    seed: int
    run: str  # its name
    metric: str
    policy: str | None  # strategy, settings and threshold in words; None for a static model
    score: float  # on test texts, chosen on calibration texts
    low: float  # of a 95 % interval by bootstrap
    high: float
    speedup: float  # on test texts
    below_last: float  # the run's own last exit minus the score
    score_on_dev: float | None  # chosen on the very texts it is reported on, as the paper does; None if none is
    seconds: float  # that the run took


def cell(task: str, row: Row, outcome: Outcome, layers: int, speedups: tuple[float, float]) -> Cell | None:
    """Work out one figure.

    Args:
        task: The task.
        row: The row of the table.
        outcome: What the run left behind.
        layers: How many the whole encoder has.
        speedups: In which range the threshold is looked for.

    Returns:
        The figure; None where no threshold gives a speed-up in the range.
    """
    test = outcome.trace("test")
    last = static_exit(test, -1)
    policy, decided, on_dev = None, last, None
    if row.share is None:
        policy = chosen(outcome, "calibration", row, speedups)
        if policy is None:
            return None
        decided, on_dev = policy.decide(test), _chosen_on_dev(outcome, row, speedups)
    score, below = measure(test, decided, last, metric=test.metric)
    return Cell(
        task=task,
        row=row.name,
        seed=outcome.run.settings.seed,
        run=outcome.run.name,
        metric=test.metric,
        policy=None if policy is None else f"{policy.name} at {policy.threshold}",
        score=score.value,
        low=score.low,
        high=score.high,
        speedup=decided.speedup if row.share is None else _static_speedup(outcome, layers),
        below_last=below.value,
        score_on_dev=score.value if row.share is not None else on_dev,
        seconds=outcome.summary["seconds"],
    )


def _chosen_on_dev(outcome: Outcome, row: Row, speedups: tuple[float, float]) -> float | None:
    """Score as the paper does, with the threshold that is best on the very texts reported on.

    Strategies that fit weights or temperatures would fit them to these texts, too: they have no such figure.
    """
    if any(str(getattr(way, "strategy", way)) in FITTED for way in row.strategies):
        return None
    policy, test = chosen(outcome, "test", row, speedups), outcome.trace("test")
    return None if policy is None else policy.decide(test).score(test.metric)


def _static_speedup(outcome: Outcome, layers: int) -> float:
    """Say how many fewer products a static model computes than the full one."""
    assert outcome.run.exits is not None
    return outcome.summary["fewer_products"] * layers / outcome.run.exits[-1]


def chosen(outcome: Outcome, split: str, row: Row, speedups: tuple[float, float]) -> Policy | None:
    """Take the best threshold and setting in a range of speed-ups: the rule of the paper's tables.

    Args:
        outcome: What the run left behind.
        split: On which texts.
        row: The row of the table, with its strategies.
        speedups: The range.

    Returns:
        The policy, or None where no threshold gives a speed-up in the range.
    """
    return best_of(outcome.curves(split, row.strategies), *speedups)


def cells(plan: Plan, outcomes: Iterable[Outcome]) -> list[Cell]:
    """Work out all figures of a plan.

    Args:
        plan: What was to be reproduced.
        outcomes: What its runs left behind; some may be missing.

    Returns:
        A figure for each task, row and seed that was run, and whose strategy gets into the range.
    """
    known = {outcome.run.name: outcome for outcome in outcomes}
    found = [
        cell(task, row, known[name], plan.of(task).layers, RANGES[group_of(task)])
        for task in plan.tasks
        for row in plan.rows
        for seed in plan.seeds
        if (name := plan.run(task, row, seed).name) in known
    ]
    return [each for each in found if each is not None]


def table(
    found: Sequence[Cell], tasks: Sequence[str], rows: Sequence[str], *, link: str = LINK, on_dev: bool = False
) -> str:
    """Write figures as a table: mean over seeds, its spread, and the speed-up, with links to the runs.

    Args:
        found: The figures.
        tasks: The columns.
        rows: The rows, by name.
        link: Where a run is, with `{run}` for its name.
        on_dev: Whether to show the figures that choosing on the reported texts themselves would give.

    Returns:
        Markdown.
    """
    lines = ["| method | " + " | ".join(tasks) + " | mean |", "|---" * (len(tasks) + 2) + "|"]
    for row in rows:
        columns = [_at(found, task, row) for task in tasks]
        texts = [_in_words(here, link, on_dev) for here in columns]
        scores = [mean(known) for here in columns if (known := _scores(here, on_dev))]
        average = f"{100 * mean(scores):.1f}" if len(scores) == len(tasks) else ""
        lines.append(f"| {row} | {' | '.join(texts)} | {average} |")
    return "\n".join(lines)


def tables(tasks: Sequence[str], rows: Sequence[str], found: Sequence[Cell], *, link: str = LINK) -> str:
    """Write the table of binary tasks and that of multi-class tasks, as far as they were reproduced.

    Args:
        tasks: The tasks of both.
        rows: The rows, by name.
        found: The figures.
        link: Where a run is, with `{run}` for its name.

    Returns:
        Markdown.
    """
    parts = []
    for group, title in (("binary", "Binary tasks"), ("multiclass", "Multi-class tasks")):
        columns = [task for task in tasks if group_of(task) == group]
        if columns:
            low, high = RANGES[group]
            rule = (
                f"Best on the calibration split with a speed-up there in [{low}, {high}]; scores, in %, and speed-ups "
                "are those of the test split."
            )
            dev = (
                "The same, chosen on the test split itself, as the paper's figures of development sets were on these; "
                "without what is fitted:"
            )
            against = (
                "Points above or below the full model by these figures, chosen as the paper's were (and in the paper, "
                "with ALBERT-base):"
            )
            parts += [f"## {title}", rule, table(found, columns, rows, link=link)]
            parts += [dev, table(found, columns, rows, link=link, on_dev=True)]
            parts += [against, against_paper(found, columns, rows)]
    return "\n\n".join(parts) + "\n"


def against_paper(found: Sequence[Cell], tasks: Sequence[str], rows: Sequence[str]) -> str:
    """Write how far every method is above the full model, here and in the paper, chosen on the texts reported on.

    Args:
        found: The figures.
        tasks: The columns.
        rows: The rows, by name; those that are not in the paper are left out.

    Returns:
        Markdown.
    """
    lines = ["| method | " + " | ".join(tasks) + " |", "|---" * (len(tasks) + 1) + "|"]
    for row in rows:
        if row in PAPER and row != FULL:
            lines.append(f"| {row} | " + " | ".join(_above_full(found, task, row) for task in tasks) + " |")
    return "\n".join(lines)


def _above_full(found: Sequence[Cell], task: str, row: str) -> str:
    """Say how far a method is above the full model here and in the paper."""
    in_paper, key = "", plain_name(task)
    if key in PAPER[row] and key in PAPER[FULL]:
        in_paper = f" ({PAPER[row][key] - PAPER[FULL][key]:+.1f})"
    here, full = ({each.seed: each.score_on_dev for each in _at(found, task, name)} for name in (row, FULL))
    both = [(ours, theirs) for seed, ours in here.items() if (theirs := full.get(seed)) is not None]
    gains = [ours - theirs for ours, theirs in both if ours is not None]
    return f"{100 * mean(gains):+.1f}{in_paper}" if gains else in_paper.strip()


def _at(found: Sequence[Cell], task: str, row: str) -> list[Cell]:
    """Find the figures of all seeds."""
    return [each for each in found if (each.task, each.row) == (task, row)]


def _scores(here: Sequence[Cell], on_dev: bool) -> list[float]:
    """Give the figures in question of all seeds."""
    figures = [each.score_on_dev if on_dev else each.score for each in here]
    return [figure for figure in figures if figure is not None]


def _in_words(here: Sequence[Cell], link: str, on_dev: bool) -> str:
    """Write one cell of a table."""
    scores = [100 * score for score in _scores(here, on_dev)]
    if not scores:
        return ""
    linked = f"[{mean(scores):.1f}]({link.format(run=here[0].run)})"
    if on_dev:
        return linked
    spread = f" ± {stdev(scores):.1f}" if len(scores) > 1 else ""
    others = "".join(f" [s{each.seed}]({link.format(run=each.run)})" for each in here[1:])
    return f"{linked}{spread} at {mean(each.speedup for each in here):.2f}×{others}"


def as_plain(found: Sequence[Cell]) -> list[Mapping[str, Any]]:
    """Give figures as plain values, for JSON."""
    return [vars(each) for each in found]
