"""exitpoll sweep: compare all strategies on a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from exitpoll.cli.console import print_as_json, remark, save_figure, say, say_written, show, show_result
from exitpoll.cli.groups import IN_METHOD
from exitpoll.cli.options import AsJson, Floats, MetricName, OptionalOut, Strategies
from exitpoll.errors import InputError


def sweep(
    trace: Path,
    /,
    *,
    strategies: Strategies = None,
    ks: Annotated[Floats, IN_METHOD] = None,
    metric: MetricName | None = None,
    points: Annotated[int, IN_METHOD] = 200,
    clock: Annotated[bool, IN_METHOD] = False,
    out: OptionalOut = None,
    as_json: AsJson = False,
) -> None:
    """Compare all exit strategies on a trace: score against speed-up.

    Example: exitpoll sweep trec.calibration.safetensors

    Args:
        trace: A trace; without labels, scores are the agreement with the full model.
        strategies: The strategies to compare; all by default.
        ks: The exponents of votes and soft_votes; 0, 0.25, 0.5 and 0.75 by default.
        metric: The metric to score by; the task's by default.
        points: How many thresholds of a strategy to try.
        clock: Count speed-ups in the milliseconds that recording measured, heads and decisions included, in place of
            layers.
        out: The folder for curves.json, curves.csv and curves.png; one beside the trace by default.
        as_json: Print the curves as JSON.
    """
    from exitpoll.cli.tables import comparison_table
    from exitpoll.decide.compare import SPEEDUPS, compare
    from exitpoll.decide.costs import ExitCosts
    from exitpoll.decide.strategies import KS
    from exitpoll.decide.sweep import sweep as sweep_trace
    from exitpoll.decide.trace import Trace
    from exitpoll.files import write_json, write_text
    from exitpoll.report.plots import draw_curves
    from exitpoll.report.wording import describe_best, note_not_finite

    print_as_json(as_json)
    if strategies is not None and not strategies:
        raise InputError("--strategies needs a name; leave it out to compare all")
    if points < 1:
        raise InputError(f"points {points} must be at least 1")
    recorded = Trace.load(trace)
    costs = ExitCosts.measured(recorded.exit_layers, recorded.about, needs_head=True) if clock else None
    curves = sweep_trace(recorded, strategies, ks=ks or KS, metric=metric, points=points, costs=costs)
    comparison = compare(recorded, curves, costs)
    out = out or trace.with_name(f"{trace.stem}-sweep")
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "curves.csv", comparison.to_csv())
    write_json(out / "curves.json", comparison.to_dict())
    figure = save_figure(lambda: draw_curves(comparison), out / "curves.png")
    show(comparison_table(comparison, SPEEDUPS))
    say(*describe_best(comparison))
    remark(*note_not_finite(recorded))
    show_result(comparison.to_dict())
    say_written(out, ["curves.json", "curves.csv", *figure])
