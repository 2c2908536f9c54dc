"""exitpoll sweep: compare all strategies on a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from exitpoll.cli.app import Names, try_to_draw
from exitpoll.cli.console import console, say
from exitpoll.errors import InputError


def sweep(
    trace: Path,
    /,
    *,
    strategies: Names = None,
    ks: Annotated[list[float] | None, Parameter(consume_multiple=True, negative="")] = None,
    metric: str | None = None,
    points: int = 200,
    out: Path | None = None,
) -> None:
    """Compare all strategies on a trace: the best score at every speed-up.

    Example: exitpoll sweep trec.calibration.safetensors

    Args:
        trace: A trace with labels.
        strategies: Which to compare, of entropy, max_prob, margin, patience, confident_patience, js_patience, votes,
            soft_votes, mean, geometric, hybrid and learned; all by default.
        ks: The exponents of votes and soft votes; 0, 0.25, 0.5 and 0.75 by default.
        metric: What to score by: accuracy, accuracy_and_f1, matthews, micro_f1 or r2; the task's by default.
        points: How many thresholds to try of each.
        out: The folder for curves.json, curves.csv and curves.png; one beside the trace by default.
    """
    from exitpoll.cli.tables import comparison_table
    from exitpoll.decide.compare import SPEEDUPS, compare
    from exitpoll.decide.fitting import KS
    from exitpoll.decide.sweep import sweep as sweep_trace
    from exitpoll.decide.trace import Trace
    from exitpoll.files import write_json, write_text
    from exitpoll.report.plots import draw_curves, save
    from exitpoll.report.wording import best_in_words, not_finite

    if strategies is not None and not strategies:
        raise InputError("--strategies needs a name, or leave it out for all")
    if points < 1:
        raise InputError(f"points {points} must be at least 1")
    recorded = Trace.load(trace)
    comparison = compare(recorded, sweep_trace(recorded, strategies, ks=ks or KS, metric=metric, points=points))
    out = out or trace.with_name(f"{trace.stem}-sweep")
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "curves.csv", comparison.to_csv())
    console.print(comparison_table(comparison, SPEEDUPS))
    for line in best_in_words(comparison):
        say(line)
    for line in not_finite(recorded):
        say(line)
    drawn = try_to_draw(lambda: save(draw_curves(comparison), out / "curves.png"))
    write_json(out / "curves.json", comparison.to_dict())
    say(f"wrote {out}/curves.json{f' and curves.csv{drawn}' if drawn else ', curves.csv and curves.png'}")
