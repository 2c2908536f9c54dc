"""One self-contained HTML page on a calibrated model: what it saves, what it promises, and text by text why."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.benchmark.timing import Benchmark, Timing, Way
from exitpoll.data.batching import Text
from exitpoll.decide.analysis import auroc, disagreement, static_exit
from exitpoll.decide.compare import Comparison, compare
from exitpoll.decide.evaluate import Evaluation, evaluate
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, SINGLE_LABEL, predictions
from exitpoll.decide.policy import Policy
from exitpoll.decide.sweep import sweep
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError, MissingExtraError
from exitpoll.files import write_text
from exitpoll.report.plots import as_svg, draw_agreement, draw_curves, draw_depths, draw_exits, draw_parts, save
from exitpoll.report.wording import describe, not_finite, same_texts, verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "report.html"
MARK = '<meta name="generator" content="exitpoll report">'  # by which to tell a page of ours
TITLES = {
    "curves": "Score against speed-up, for every strategy; the tables below have the figures",
    "depths": "Share of texts that left after each layer",
    "exits": "Score and AUROC of every exit; the table below has the figures",
    "agreement": "Share of texts on which two exits say the same",
    "parts": "Where the time goes, by runtime and batch size",
}
VERSIONS = ("exitpoll", "torch", "transformers", "onnxruntime")
MOST_TEXTS = 2000  # shown one by one
LONGEST = 400  # characters of a text that are shown


@dataclass(frozen=True)
class Material:
    """What a report is made of."""

    name: str  # of the model
    label_names: Sequence[str]
    policy: Policy
    trace: Trace  # of texts that calibration has not seen, with labels
    texts: Sequence[Text]
    comparison: Comparison
    evaluation: Evaluation
    notes: Sequence[str] = ()
    benchmark: Benchmark | None = None

    @cached_property
    def exits(self) -> dict[str, NDArray]:
        """Every exit's score and, for classes, how well its confidence tells right from wrong: (exits,) each."""
        found = {self.comparison.metric: np.array([each.score for each in self.comparison.static_exits])}
        if self.trace.problem_type != REGRESSION:
            found["AUROC of its confidence"] = auroc(self.trace)
        return found


def gather(
    name: str,
    label_names: Sequence[str],
    policy: Policy,
    trace: Trace,
    texts: Sequence[Text],
    *,
    notes: Sequence[str] = (),
    benchmark: Benchmark | None = None,
) -> Material:
    """Work out what a report tells.

    Args:
        name: What to call the model.
        label_names: Its classes.
        policy: When texts leave.
        trace: What every exit said of the texts, with labels.
        texts: The texts, in the order of the trace.
        notes: What a reader should know of the texts.
        benchmark: What `exitpoll bench` found, if it was run.

    Returns:
        All that the page is made of.
    """
    if trace.labels is None:
        raise InputError("a report says how often exits are right, and these texts have no labels")
    if len(texts) != len(trace):
        raise InputError(f"the trace is of {len(trace)} texts, and {len(texts)} were read: not the same")
    check_installed()
    comparison = compare(trace, sweep(trace))
    evaluation = evaluate(trace, policy)
    return Material(name, label_names, policy, trace, texts, comparison, evaluation, notes, benchmark)


def write_report(material: Material, folder: Path) -> Path:
    """Write the page, and its figures as PNG and SVG beside it.

    Args:
        material: What it tells.
        folder: The folder to write to.

    Returns:
        The page's path.
    """
    check_installed()
    from jinja2 import Environment, PackageLoader, StrictUndefined

    check_place(folder)
    folder.mkdir(parents=True, exist_ok=True)
    figures = _figures(material)
    for name, draw in figures.items():
        for kind in ("png", "svg"):
            save(draw(), folder / f"{name}.{kind}")
    environment = Environment(
        loader=PackageLoader("exitpoll.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template(PAGE).render(
        **_content(material), figures={name: as_svg(draw, name, TITLES[name]) for name, draw in figures.items()}
    )
    write_text(folder / PAGE, page)
    return folder / PAGE


def check_installed() -> None:
    """Say what is missing, before any work is done."""
    if find_spec("jinja2") is None or find_spec("matplotlib") is None:
        raise MissingExtraError("writing a report", "plots")


def check_place(folder: Path) -> None:
    """Refuse to write over anything but an older report.

    Args:
        folder: The folder to write to.
    """
    page = folder / PAGE
    if folder.exists() and not folder.is_dir():
        raise InputError(f"'{folder}' is no folder; name one for the report")
    ours = page.is_file() and MARK in page.read_text(encoding="utf-8", errors="replace")
    if folder.is_dir() and any(folder.iterdir()) and not ours:
        raise InputError(f"'{folder}' exists and is no report of exitpoll; choose another folder")


def _figures(material: Material) -> dict[str, Callable[[], Figure]]:
    """List the pictures, each with how to draw it."""
    ours, trace, layers = material.evaluation.rows[0], material.trace, tuple(material.trace.exit_layers)
    scores = material.exits
    found: dict[str, Callable[[], Figure]] = {
        "curves": partial(draw_curves, material.comparison, (ours.speedup, ours.score.value)),
        "depths": partial(draw_depths, material.evaluation.depths),
    }
    if trace.problem_type != REGRESSION:
        found["agreement"] = partial(draw_agreement, layers, 1 - disagreement(trace))
    found["exits"] = partial(draw_exits, layers, scores)
    if material.benchmark is not None:
        found["parts"] = partial(draw_parts, material.benchmark)
    return found


def _content(material: Material) -> dict[str, Any]:
    """Give the words and tables of the page."""
    rows = {row.name: row for row in material.evaluation.rows}
    about, warnings = material.trace.about, same_texts(material.policy, material.trace.about)
    known = ("data", "split", "runtime", "fingerprint", "threads", "device", *VERSIONS)
    return {
        "mark": MARK,
        "values": material.trace.problem_type == REGRESSION,
        "name": material.name,
        "layers": list(material.trace.exit_layers),
        "unseen": material.policy.certificate is not None and not warnings,
        "calibrated_on": _place(material.policy),
        "warnings": [*warnings, *not_finite(material.trace)],
        "exits": {name: values.tolist() for name, values in material.exits.items()},
        "shown": min(MOST_TEXTS, len(material.trace)),
        "metric": material.evaluation.metric,
        "count": material.evaluation.texts,
        "ours": rows["policy"],
        "full": rows["full model"],
        "rows": material.evaluation.rows,
        "guarantee": _guarantee_lines(material.policy),
        "verdict": verdict(material.evaluation, material.policy),
        "notes": material.notes,
        "about": {name: about[name] for name in known if about.get(name) is not None},
        "policy": json.dumps(material.policy.to_dict(), indent=1, ensure_ascii=False),
        "clock": None if material.benchmark is None else _clock(material.benchmark),
        "benchmark": material.benchmark,
        "fastest": None if material.benchmark is None else _fastest(material.benchmark),
        "data": json.dumps(_rows(material), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
    }


def _guarantee_lines(policy: Policy) -> list[str]:
    """Describe what is guaranteed, if anything is."""
    if policy.certificate is None:
        return [f"{policy.name}: never calibrated, so nothing is guaranteed"]
    return describe(policy, "the calibration texts")


def _place(policy: Policy) -> str | None:
    """Name the texts that a policy was calibrated on."""
    return " ".join(name for name in (policy.source.data, policy.source.split) if name) or None


def _clock(benchmark: Benchmark) -> list[dict[str, Any]]:
    """Tabulate wall-clock time: a row for each runtime and way, a column for each batch size."""
    sizes = list(dict.fromkeys(each.batch_size for each in benchmark.timings))
    ways = [way for way in Way if way != Way.NO_REFILL]
    found = []
    for runtime in dict.fromkeys(each.runtime for each in benchmark.timings):
        for way in ways:
            timings = [each for each in benchmark.timings if (each.runtime, each.way) == (runtime, way)]
            if timings:
                speeds = {each.batch_size: each.against_plain for each in timings}
                row = {"runtime": runtime, "way": way, "speeds": [speeds.get(size) for size in sizes], "sizes": sizes}
                found.append(row)
    return found


def _fastest(benchmark: Benchmark) -> Timing:
    """Find where the engine is furthest ahead of plain transformers."""
    return max((each for each in benchmark.timings if each.way == Way.ENGINE), key=lambda each: each.against_plain)


# ---- text by text ---------------------------------------------------------------------------------------------------


def _rows(material: Material) -> dict[str, Any]:
    """Give what the page's script shows: every text, what each exit said of it, where it left."""
    trace, policy = material.trace, material.policy
    shown = np.unique(np.linspace(0, len(trace) - 1, min(MOST_TEXTS, len(trace))).astype(int))
    part = trace.select(shown)
    decisions, full = policy.decide(part), static_exit(part, -1)
    said = predictions(np.asarray(part.logits), trace.problem_type)  # (texts, exits), or (texts, exits, labels)
    names = _Names(material.label_names, trace.problem_type)
    assert part.labels is not None
    rows = [
        {
            "text": _shortened(material.texts[number]),
            "gold": names(part.labels[row]),
            "said": [names(each) for each in said[row]],
            "exit": int(decisions.exit[row]),
            "answer": names(decisions.answer[row]),
            "full": names(full.answer[row]),
        }
        for row, number in enumerate(shown)
    ]
    return {
        "rows": rows,
        "answers": names.answers,
        "signs": names.signs,
        "layers": list(trace.exit_layers),
        "values": trace.problem_type == REGRESSION,
    }


class _Names:
    """Number what exits say, and find a short sign for each."""

    def __init__(self, label_names: Sequence[str], problem_type: str) -> None:
        """Start with the classes."""
        self.label_names, self.problem_type = label_names, problem_type
        self.answers: list[str] = list(label_names) if problem_type == SINGLE_LABEL else []
        self._numbers: dict[Any, int] = {}  # of sets of labels and of values, as they come up

    def __call__(self, answer: NDArray) -> int:
        """Give the number of an answer."""
        if self.problem_type == SINGLE_LABEL:
            return int(answer)
        if self.problem_type == MULTI_LABEL:
            key: Any = tuple(bool(each) for each in answer)
            name = ", ".join(label for label, yes in zip(self.label_names, key, strict=True) if yes) or "(none)"
        else:
            key = name = f"{float(answer):.2f}"
        if key not in self._numbers:
            self._numbers[key] = len(self.answers)
            self.answers.append(name)
        return self._numbers[key]

    @property
    def signs(self) -> list[str]:
        """The shortest beginnings that tell classes apart; none for sets of labels and values."""
        if self.problem_type != SINGLE_LABEL:
            return []
        for length in (1, 2, 3):
            signs = [name[:length].upper() for name in self.answers]
            if len(set(signs)) == len(signs):
                return signs
        return [str(number) for number in range(len(self.answers))]


def _shortened(text: Text) -> str:
    """Show a text, or a pair, in at most so many characters."""
    whole = text if isinstance(text, str) else " ⏐ ".join(text)
    return whole if len(whole) <= LONGEST else whole[:LONGEST] + " …"


def check_same_texts(labels: NDArray | None, about: Mapping[str, Any], trace: Trace) -> None:
    """Refuse a trace of other texts than were read, as far as can be told.

    Args:
        labels: The labels of the texts.
        about: What else is known of them.
        trace: The trace.
    """
    for name in ("data", "split"):
        if trace.about.get(name) not in (None, about.get(name)):
            raise InputError(f"the trace is of {name} {trace.about[name]}, and {name} {about.get(name)} was read")
    if labels is not None and trace.labels is not None and not np.array_equal(labels, trace.labels):
        raise InputError("the trace is of other texts than were read: their labels differ")
