"""One self-contained HTML page on a calibrated model: speed-up, guarantee, exits, and every text with its answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from exitpoll.benchmark.timing import Benchmark, Timing, Way
from exitpoll.data.batching import Text
from exitpoll.decide.analysis import auroc, disagreement
from exitpoll.decide.compare import Comparison, compare
from exitpoll.decide.evaluate import Evaluation, evaluate
from exitpoll.decide.metrics import REGRESSION
from exitpoll.decide.policy import Policy
from exitpoll.decide.sweep import sweep
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError, check_installed
from exitpoll.files import write_text
from exitpoll.report.plots import as_svg, draw_agreement, draw_curves, draw_depths, draw_exits, draw_parts, save
from exitpoll.report.texts import text_table
from exitpoll.report.wording import describe_calibration, note_not_finite, note_same_texts, verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "report.html"  # the file that is written
TEMPLATE = "page.html"  # includes page.css and page.js
GENERATOR = '<meta name="generator" content="exitpoll report">'  # marks a page that may be replaced
TITLES = {  # of the figures, for screen readers
    "curves": "Score against speed-up for every strategy; the tables below hold the numbers",
    "depths": "Share of texts that exit after every layer",
    "exits": "Score and AUROC of every exit; the table below holds the numbers",
    "agreement": "Share of texts on which two exits give the same answer",
    "parts": "Wall-clock time by part of the engine, runtime and batch size",
}
ABOUT = ("data", "split", "runtime", "fingerprint", "threads", "device")  # metadata of the trace that the page lists,
VERSIONS = ("exitpoll", "torch", "transformers", "onnxruntime")  # and versions of packages
WAYS = tuple(way for way in Way if way != Way.NO_REFILL)  # as the page orders them


@dataclass(frozen=True)
class Report:
    """What a report shows."""

    name: str  # of the model
    label_names: Sequence[str]
    policy: Policy
    trace: Trace  # of held-out texts, with labels
    texts: Sequence[Text]
    comparison: Comparison
    evaluation: Evaluation
    notes: Sequence[str] = ()
    benchmark: Benchmark | None = None

    @cached_property
    def exit_scores(self) -> dict[str, NDArray]:
        """Every exit's score and, for classes, how well its confidence separates right from wrong, (exits,)."""
        scores = {self.comparison.metric: np.array([point.score for point in self.comparison.static_exits])}
        if self.trace.problem_type != REGRESSION:
            scores["AUROC of its confidence"] = auroc(self.trace)
        return scores


@dataclass(frozen=True)
class TimingRow:
    """One row of the table of wall-clock times."""

    runtime: str
    way: str
    speeds: Sequence[float | None]  # times as fast as plain transformers, by batch size


def check_requirements() -> None:
    """Check that Jinja and matplotlib are installed, before any work is done."""
    check_installed(["jinja2", "matplotlib"], "writing a report", "plots")


def check_report_folder(folder: Path) -> None:
    """Refuse to write over anything but an older report.

    Args:
        folder: The folder to write to.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"'{folder}' is not a folder; name one for the report")
    page = folder / PAGE
    ours = page.is_file() and GENERATOR in page.read_text(encoding="utf-8", errors="replace")
    if folder.is_dir() and any(folder.iterdir()) and not ours:
        raise InputError(f"'{folder}' exists and is not an exitpoll report; choose another folder")


def check_same_texts(labels: NDArray | None, about: Mapping[str, object], trace: Trace) -> None:
    """Refuse a trace of other texts than were read, as far as names and labels tell.

    Args:
        labels: The labels of the texts.
        about: The metadata of the texts.
        trace: The trace.
    """
    for name in ("data", "split"):
        if trace.about.get(name) not in (None, about.get(name)):
            raise InputError(f"the trace is of {name} {trace.about[name]}, and {name} {about.get(name)} was read")
    if labels is not None and trace.labels is not None and not np.array_equal(labels, trace.labels):
        raise InputError("the trace is of other texts than were read: their labels differ")


def build_report(
    name: str,
    label_names: Sequence[str],
    policy: Policy,
    trace: Trace,
    texts: Sequence[Text],
    *,
    notes: Sequence[str] = (),
    benchmark: Benchmark | None = None,
) -> Report:
    """Compute what a report shows.

    Args:
        name: What to call the model.
        label_names: Its classes.
        policy: When texts exit.
        trace: Every exit's logits on the texts, with labels.
        texts: The texts, in the order of the trace.
        notes: What a reader should know about the texts.
        benchmark: The result of `exitpoll bench`, if there is one.

    Returns:
        The report, to be written by `write_report`.
    """
    if trace.labels is None:
        raise InputError("a report shows how often exits are right, and these texts have no labels")
    if len(texts) != len(trace):
        raise InputError(f"the trace is of {len(trace)} texts, and {len(texts)} were read")
    check_requirements()
    comparison = compare(trace, sweep(trace))
    evaluation = evaluate(trace, policy)
    return Report(name, label_names, policy, trace, texts, comparison, evaluation, notes, benchmark)


def write_report(report: Report, folder: Path) -> Path:
    """Write the page, and its figures as PNG and SVG beside it.

    Args:
        report: What it shows.
        folder: The folder to write to.

    Returns:
        The page's path.
    """
    check_requirements()
    from jinja2 import Environment, PackageLoader, StrictUndefined

    check_report_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    figures = _figures(report)
    for name, draw in figures.items():
        for suffix in ("png", "svg"):
            save(draw(), folder / f"{name}.{suffix}")
    environment = Environment(
        loader=PackageLoader("exitpoll.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    svgs = {name: as_svg(draw, name, TITLES[name]) for name, draw in figures.items()}
    write_text(folder / PAGE, environment.get_template(TEMPLATE).render(**_content(report), figures=svgs))
    return folder / PAGE


def _figures(report: Report) -> dict[str, Callable[[], Figure]]:
    """Return how to draw the figures, by name."""
    ours, exit_layers = report.evaluation.rows[0], tuple(report.trace.exit_layers)
    figures: dict[str, Callable[[], Figure]] = {
        "curves": partial(draw_curves, report.comparison, (ours.speedup, ours.score.value)),
        "depths": partial(draw_depths, report.evaluation.depths),
        "exits": partial(draw_exits, exit_layers, report.exit_scores),
    }
    if report.trace.problem_type != REGRESSION:
        figures["agreement"] = partial(draw_agreement, exit_layers, 1 - disagreement(report.trace))
    if report.benchmark is not None:
        figures["parts"] = partial(draw_parts, report.benchmark)
    return figures


def _content(report: Report) -> dict[str, object]:
    """Return the sentences and tables of the page."""
    trace, policy, evaluation, benchmark = report.trace, report.policy, report.evaluation, report.benchmark
    rows = {row.name: row for row in evaluation.rows}
    calibrated_here = note_same_texts(policy, trace.about)
    table = text_table(report.texts, trace, policy, report.label_names)
    return {
        "generator": GENERATOR,
        "name": report.name,
        "layers": list(trace.exit_layers),
        "regression": trace.problem_type == REGRESSION,
        "held_out": policy.certificate is not None and not calibrated_here,
        "calibrated_on": " ".join(name for name in (policy.source.data, policy.source.split) if name),
        "warnings": [*calibrated_here, *note_not_finite(trace)],
        "guarantee": _describe_guarantee(policy),
        "verdict": verdict(evaluation, policy),
        "metric": evaluation.metric,
        "count": evaluation.texts,
        "shown": len(table["rows"]),
        "ours": rows["policy"],
        "full": rows["full model"],
        "rows": evaluation.rows,
        "exit_scores": {name: scores.tolist() for name, scores in report.exit_scores.items()},
        "notes": report.notes,
        "about": {name: trace.about[name] for name in (*ABOUT, *VERSIONS) if trace.about.get(name) is not None},
        "policy": json.dumps(policy.to_dict(), indent=1, ensure_ascii=False),
        "benchmark": benchmark,
        "batch_sizes": [] if benchmark is None else _batch_sizes(benchmark),
        "timings": [] if benchmark is None else _timing_rows(benchmark),
        "fastest": None if benchmark is None else _fastest(benchmark),
        "table": json.dumps(table, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
    }


def _describe_guarantee(policy: Policy) -> list[str]:
    """Describe what is guaranteed, if anything is."""
    if policy.certificate is None:
        return [f"{policy.name}: never calibrated, so nothing is guaranteed"]
    return describe_calibration(policy, "the calibration texts")


def _batch_sizes(benchmark: Benchmark) -> list[int]:
    """List the batch sizes that were timed."""
    return list(dict.fromkeys(timing.batch_size for timing in benchmark.timings))


def _timing_rows(benchmark: Benchmark) -> list[TimingRow]:
    """Tabulate wall-clock time: a row for every runtime and way, a column for every batch size."""
    speeds: dict[tuple[str, str], dict[int, float]] = {}
    for timing in benchmark.timings:
        speeds.setdefault((timing.runtime, timing.way), {})[timing.batch_size] = timing.against_plain
    return [
        TimingRow(runtime, way, [speeds[runtime, way].get(size) for size in _batch_sizes(benchmark)])
        for runtime in dict.fromkeys(timing.runtime for timing in benchmark.timings)
        for way in WAYS
        if (runtime, way) in speeds
    ]


def _fastest(benchmark: Benchmark) -> Timing:
    """Return the timing of the engine that is furthest ahead of plain transformers."""
    timings = [timing for timing in benchmark.timings if timing.way == Way.ENGINE]
    return max(timings, key=lambda timing: timing.against_plain)
