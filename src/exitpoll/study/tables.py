"""The paper's tables from completed runs: thresholds chosen on calibration texts, scores measured on test texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from exitpoll.data.tasks import plain_name
from exitpoll.decide.analysis import static_exit
from exitpoll.decide.evaluate import measure
from exitpoll.decide.policy import Policy
from exitpoll.decide.sweep import best_of
from exitpoll.study.outcomes import Outcomes
from exitpoll.study.paper import FULL, PAPER_SCORES, RANGES, TableRow
from exitpoll.study.plan import Plan, group_of
from exitpoll.study.run import Outcome

FITTED = ("learned", "max_prob")  # strategies whose weights or temperatures are fitted on the texts for thresholds
LINK = "runs/{run}/run.json"  # from the folder into which `exitpoll reproduce` writes its tables


@dataclass(frozen=True)
class Cell:
    """One cell of a table: a method on a task with a seed."""

    task: str
    row: str
    seed: int
    run: str  # its name
    metric: str
    policy: str | None  # strategy, settings and threshold; None for a static model
    score: float  # on test texts, with thresholds chosen on calibration texts
    low: float  # of the 95 % bootstrap interval
    high: float
    speedup: float  # on test texts
    below_last: float  # score of the run's last exit minus this score
    score_on_dev: float | None  # with thresholds chosen on the test texts themselves, as the paper does on dev sets
    seconds: float  # duration of the run


def compute_cell(task: str, row: TableRow, outcome: Outcome, layers: int, speedups: tuple[float, float]) -> Cell | None:
    """Compute one cell of a table.

    Args:
        task: The task.
        row: The row of the table.
        outcome: The completed run.
        layers: The number of layers of the whole encoder.
        speedups: The range of speed-ups in which the threshold is chosen.

    Returns:
        The cell; None where no threshold gives a speed-up in the range.
    """
    test = outcome.trace("test")
    last = static_exit(test, -1)
    policy, decided, on_dev = None, last, None
    if row.share is None:
        policy = choose_policy(outcome, "calibration", row, speedups)
        if policy is None:
            return None
        decided, on_dev = policy.decide(test), _score_chosen_on_dev(outcome, row, speedups)
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


def _score_chosen_on_dev(outcome: Outcome, row: TableRow, speedups: tuple[float, float]) -> float | None:
    """Score as the paper does, with the threshold that is best on the scored texts themselves.

    Strategies with fitted parameters would be fitted on these texts, too, so they have no such score.
    """
    names = {strategy.strategy if isinstance(strategy, Policy) else strategy for strategy in row.strategies}
    if names & set(FITTED):
        return None
    policy, test = choose_policy(outcome, "test", row, speedups), outcome.trace("test")
    return None if policy is None else policy.decide(test).score(test.metric)


def _static_speedup(outcome: Outcome, layers: int) -> float:
    """Compute how many times fewer multiplications a static model needs than the full one."""
    assert outcome.run.exits is not None
    return outcome.summary["fewer_products"] * layers / outcome.run.exits[-1]


def choose_policy(outcome: Outcome, split: str, row: TableRow, speedups: tuple[float, float]) -> Policy | None:
    """Return the best threshold and setting in a range of speed-ups: the rule of the paper's tables.

    Args:
        outcome: The completed run.
        split: The texts to choose on.
        row: The row of the table, with its strategies.
        speedups: The range.

    Returns:
        The policy, or None where no threshold gives a speed-up in the range.
    """
    return best_of(outcome.curves(split, row.strategies), *speedups)


def compute_cells(plan: Plan, outcomes: Iterable[Outcome]) -> list[Cell]:
    """Compute all cells of the tables of a plan.

    Args:
        plan: What to reproduce.
        outcomes: Completed runs; some of the plan's may be missing.

    Returns:
        A cell for every task, row and seed whose run is complete, and whose strategy has a threshold in the range.
    """
    known = Outcomes(plan, outcomes)
    cells = [
        compute_cell(task, row, outcome, plan.of(task).layers, RANGES[group_of(task)])
        for task in plan.tasks
        for row in plan.rows
        for seed in plan.seeds
        if (outcome := known.find(task, row, seed)) is not None
    ]
    return [cell for cell in cells if cell is not None]


def format_table(
    cells: Sequence[Cell], tasks: Sequence[str], rows: Sequence[str], *, link: str = LINK, on_dev: bool = False
) -> str:
    """Format cells as a table: mean over seeds, standard deviation and speed-up, with links to the runs.

    Args:
        cells: The cells.
        tasks: The columns.
        rows: The rows, by name.
        link: Where a run is, with `{run}` for its name.
        on_dev: Whether to show the scores with thresholds chosen on the scored texts themselves.

    Returns:
        Markdown.
    """
    lines = ["| method | " + " | ".join(tasks) + " | mean |", "|---" * (len(tasks) + 2) + "|"]
    for row in rows:
        columns = [_select(cells, task, row) for task in tasks]
        texts = [_format_cell(by_seed, link, on_dev) for by_seed in columns]
        means = [mean(scores) for by_seed in columns if (scores := _scores(by_seed, on_dev))]
        average = f"{100 * mean(means):.1f}" if len(means) == len(tasks) else ""
        lines.append(f"| {row} | {' | '.join(texts)} | {average} |")
    return "\n".join(lines)


def format_tables(cells: Sequence[Cell], tasks: Sequence[str], rows: Sequence[str], *, link: str = LINK) -> str:
    """Format the tables of binary and of multi-class tasks, as far as they were reproduced.

    Args:
        cells: The cells.
        tasks: The tasks of both.
        rows: The rows, by name.
        link: Where a run is, with `{run}` for its name.

    Returns:
        Markdown.
    """
    parts = []
    for group, title in (("binary", "Binary tasks"), ("multiclass", "Multi-class tasks")):
        columns = [task for task in tasks if group_of(task) == group]
        if columns:
            low, high = RANGES[group]
            parts += [
                f"## {title}",
                f"Thresholds are chosen on the calibration split, with a speed-up in [{low}, {high}] there; scores, "
                "in %, and speed-ups are measured on the test split.",
                format_table(cells, columns, rows, link=link),
                "The same with thresholds chosen on the test split itself, as the paper chose them on the development "
                "sets that it reports; strategies with fitted parameters are left out:",
                format_table(cells, columns, rows, link=link, on_dev=True),
                "Points above or below the full model by these scores; in brackets, the same in the paper, with "
                "ALBERT-base:",
                format_against_paper(cells, columns, rows),
            ]
    return "\n\n".join(parts) + "\n"


def format_against_paper(cells: Sequence[Cell], tasks: Sequence[str], rows: Sequence[str]) -> str:
    """Format how far every method is above the full model, here and in the paper.

    Args:
        cells: The cells; the scores with thresholds chosen on the scored texts are compared, as in the paper.
        tasks: The columns.
        rows: The rows, by name; those that are not in the paper are left out.

    Returns:
        Markdown.
    """
    lines = ["| method | " + " | ".join(tasks) + " |", "|---" * (len(tasks) + 1) + "|"]
    for row in rows:
        if row in PAPER_SCORES and row != FULL:
            lines.append(f"| {row} | " + " | ".join(_format_above_full(cells, task, row) for task in tasks) + " |")
    return "\n".join(lines)


def _format_above_full(cells: Sequence[Cell], task: str, row: str) -> str:
    """Format how far a method is above the full model here and in the paper."""
    in_paper, key = "", plain_name(task)
    if key in PAPER_SCORES[row] and key in PAPER_SCORES[FULL]:
        in_paper = f" ({PAPER_SCORES[row][key] - PAPER_SCORES[FULL][key]:+.1f})"
    scores, full = ({cell.seed: cell.score_on_dev for cell in _select(cells, task, name)} for name in (row, FULL))
    pairs = [(score, full.get(seed)) for seed, score in scores.items()]
    gains = [score - full_score for score, full_score in pairs if score is not None and full_score is not None]
    return f"{100 * mean(gains):+.1f}{in_paper}" if gains else in_paper.strip()


def _select(cells: Sequence[Cell], task: str, row: str) -> list[Cell]:
    """Return the cells of a task and row, of all seeds."""
    return [cell for cell in cells if (cell.task, cell.row) == (task, row)]


def _scores(by_seed: Sequence[Cell], on_dev: bool) -> list[float]:
    """Return the scores of all seeds."""
    scores = [cell.score_on_dev if on_dev else cell.score for cell in by_seed]
    return [score for score in scores if score is not None]


def _format_cell(by_seed: Sequence[Cell], link: str, on_dev: bool) -> str:
    """Format one cell of a table from the cells of all seeds."""
    scores = [100 * score for score in _scores(by_seed, on_dev)]
    if not scores:
        return ""
    linked = f"[{mean(scores):.1f}]({link.format(run=by_seed[0].run)})"
    if on_dev:
        return linked
    spread = f" ± {stdev(scores):.1f}" if len(scores) > 1 else ""
    others = "".join(f" [s{cell.seed}]({link.format(run=cell.run)})" for cell in by_seed[1:])
    return f"{linked}{spread} at {mean(cell.speedup for cell in by_seed):.2f}×{others}"
