"""One self-contained HTML page on a calibrated model: cost, guarantee, exits, errors, and texts with their answers."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from exitpoll.benchmark.timing import Benchmark
from exitpoll.data.batching import Text
from exitpoll.decide.analysis import disagreement
from exitpoll.decide.compare import compare
from exitpoll.decide.evaluate import evaluate
from exitpoll.decide.policy import Policy
from exitpoll.decide.scoring import to_score
from exitpoll.decide.sweep import sweep
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError, check_installed
from exitpoll.files import write_text
from exitpoll.report.content import Report, page_content, page_data
from exitpoll.report.plots import draw_agreement, draw_curves, draw_depths, draw_exits, draw_parts, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "report.html"  # the file that is written
SCRIPTS = ("core.js", "charts.js", "slider.js", "texts.js", "page.js")  # joined in this order
GENERATOR = '<meta name="generator" content="exitpoll report">'  # marks a page that may be replaced


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
    training: Mapping[str, object] | None = None,
) -> Report:
    """Compute what a report shows.

    Args:
        name: What to call the model.
        label_names: Its classes.
        policy: When texts exit.
        trace: Every exit's logits on the texts; without labels, answers are compared with the full model's.
        texts: The texts, in the order of the trace.
        notes: What a reader should know about the texts.
        benchmark: The result of `exitpoll bench`, if there is one.
        training: The content of training.json, for the encoder and the sizes of the splits.

    Returns:
        The report, to be written by `write_report`.
    """
    if not len(trace):
        raise InputError("there are no texts to report on")
    if len(texts) != len(trace):
        raise InputError(f"the trace is of {len(trace)} texts, and {len(texts)} were read")
    check_requirements()
    scored = to_score(trace).trace
    return Report(
        name=name,
        label_names=label_names,
        policy=policy,
        trace=trace,
        scored=scored,
        texts=texts,
        comparison=compare(trace, sweep(trace)),
        evaluation=evaluate(trace, policy),
        notes=notes,
        benchmark=benchmark,
        training=training or {},
    )


def write_report(report: Report, folder: Path) -> Path:
    """Write the page, and figures for slides as PNG and SVG beside it.

    Args:
        report: What it shows.
        folder: The folder to write to.

    Returns:
        The page's path.
    """
    check_requirements()
    check_report_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in _figures(report).items():
        for suffix in ("png", "svg"):
            save(draw(), folder / f"{name}.{suffix}")
    write_text(folder / PAGE, _render(report))
    return folder / PAGE


def _render(report: Report) -> str:
    """Fill the template. Its policy allows the one script and the one style that are part of it, and no request."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("exitpoll.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["unbroken"] = lambda text: re.sub(r"(?<=\d) (?=[%×])", "\u00a0", text)
    templates = files("exitpoll.report") / "templates"
    script = "\n".join((templates / name).read_text(encoding="utf-8") for name in SCRIPTS)
    style = (templates / "page.css").read_text(encoding="utf-8")
    data = json.dumps(page_data(report), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    security = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return environment.get_template("page.html").render(
        **page_content(report),
        generator=GENERATOR,
        security="; ".join(f"{name} {value}" for name, value in security.items()),
        script=script,
        style=style,
        data=data.replace("<", "\\u003c"),
    )


def _hash(text: str) -> str:
    """Return what a content security policy calls a script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _figures(report: Report) -> dict[str, Callable[[], Figure]]:
    """Return how to draw the figures, by name."""
    ours, exit_layers = report.evaluation.rows[0], tuple(report.trace.exit_layers)
    figures: dict[str, Callable[[], Figure]] = {
        "curves": partial(draw_curves, report.comparison, (ours.speedup, ours.score.value), report.policy.strategy),
        "depths": partial(draw_depths, report.evaluation.depths),
        "exits": partial(draw_exits, exit_layers, report.exit_scores),
    }
    if not report.regression:
        figures["agreement"] = partial(draw_agreement, exit_layers, 1 - disagreement(report.trace))
    if report.benchmark is not None:
        figures["parts"] = partial(draw_parts, report.benchmark)
    return figures
