"""What the page says: the sentences and tables of its template, and the data of its script."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from exitpoll.benchmark.timing import Benchmark, Gain, Way
from exitpoll.data.batching import Text
from exitpoll.decide.analysis import disagreement, static_exit
from exitpoll.decide.compare import Comparison
from exitpoll.decide.evaluate import Evaluation
from exitpoll.decide.metrics import REGRESSION, agreement
from exitpoll.decide.policy import Policy
from exitpoll.decide.trace import Trace
from exitpoll.files import JsonObject
from exitpoll.report import clock
from exitpoll.report.breakdowns import Decided, by_class, by_length, confusion_matrix, lengths_of_texts, top_confusions
from exitpoll.report.curves import curves_data
from exitpoll.report.exits import describe_static, exit_scores, reliability_data, static_rows
from exitpoll.report.slider import Slider, slide
from exitpoll.report.texts import TextTable, text_table
from exitpoll.report.tiles import points, tiles_of
from exitpoll.report.wording import (
    describe_calibration,
    note_not_finite,
    note_same_texts,
    note_shift,
    note_trained_on,
    percent,
    verdict,
)

VERSIONS = ("exitpoll", "torch", "transformers", "onnxruntime")  # of packages that the header lists
ABOUT = ("runtime", "fingerprint", "threads", "device")  # metadata of the trace that the end of the page lists


@dataclass(frozen=True)
class Report:
    """What a report shows."""

    name: str  # of the model
    label_names: Sequence[str]
    policy: Policy
    trace: Trace  # of held-out texts, with labels or without
    scored: Trace  # the same; without labels, the full model's answers stand in for them
    texts: Sequence[Text]
    comparison: Comparison
    evaluation: Evaluation
    notes: Sequence[str] = ()
    benchmark: Benchmark | None = None
    training: Mapping[str, object] = field(default_factory=dict)  # the content of training.json
    written: datetime = field(default_factory=lambda: datetime.now().astimezone())

    @property
    def labelled(self) -> bool:
        """Whether the texts have labels."""
        return self.trace.labels is not None

    @property
    def regression(self) -> bool:
        """Whether answers are values."""
        return self.trace.problem_type == REGRESSION

    @cached_property
    def decided(self) -> Decided:
        """The answers of the policy and of the full model."""
        return Decided(self.scored, self.policy.decide(self.scored), static_exit(self.scored, -1), self.labelled)

    @cached_property
    def slider(self) -> Slider | None:
        """The policy at all its thresholds."""
        return slide(self.scored, self.policy, self.comparison.curves)

    @cached_property
    def table(self) -> TextTable:
        """The texts one by one."""
        return text_table(self.texts, self.trace, self.policy, self.label_names)

    @cached_property
    def exit_scores(self) -> dict[str, NDArray]:
        """Every exit's scores, (exits,)."""
        return exit_scores(self.scored, self.evaluation)


# ---- data of the script ---------------------------------------------------------------------------------------------


def page_data(report: Report) -> JsonObject:
    """Return what the page's script shows and draws.

    Args:
        report: The report.

    Returns:
        Plain values, without NaN.
    """
    ours, slider = report.evaluation.rows[0], report.slider
    strategy = report.policy.strategy if slider is None else slider["name"].split(" ")[0]
    return {
        "metric": report.evaluation.metric,
        "layers": list(report.trace.exit_layers),
        "curves": curves_data(report.comparison, strategy, (ours.speedup, ours.score.value)),
        "slider": slider,
        "depths": list(report.evaluation.depths.values()),
        "exits": {name: _without_nan(scores) for name, scores in report.exit_scores.items()},
        "reliability": reliability_data(report.scored, report.decided.policy),
        "agreement": [] if report.regression else (1 - disagreement(report.trace)).round(3).tolist(),
        "parts": [] if report.benchmark is None else _parts(report.benchmark),
        "texts": report.table,
    }


def _without_nan(values: NDArray) -> list[float | None]:
    """Return plain numbers, None for NaN."""
    return [None if np.isnan(value) else round(float(value), 4) for value in values]


def _parts(benchmark: Benchmark) -> list[JsonObject]:
    """Return the parts of the engine's time, in milliseconds a text and relative to plain transformers."""
    plain = {timing.batch_size: timing.milliseconds for timing in benchmark.timings if timing.way == Way.PLAIN}
    return [
        {
            "runtime": breakdown.runtime,
            "batch_size": breakdown.batch_size,
            "plain": plain[breakdown.batch_size],
            "milliseconds": {part: round(value, 4) for part, value in breakdown.milliseconds.items()},
        }
        for breakdown in clock.time_by_part(benchmark)
        if breakdown.batch_size in plain
    ]


# ---- the template ---------------------------------------------------------------------------------------------------


def page_content(report: Report) -> JsonObject:
    """Return the sentences and tables of the page.

    Args:
        report: The report.

    Returns:
        The variables of the template.
    """
    trace, policy, evaluation = report.trace, report.policy, report.evaluation
    calibrated_here = note_same_texts(policy, trace.about)
    return {
        "name": report.name,
        "layers": list(trace.exit_layers),
        "labelled": report.labelled,
        "regression": report.regression,
        "held_out": policy.certificate is not None and not calibrated_here,
        "facts": _facts(report),
        "warnings": [*calibrated_here, *note_trained_on(trace), *note_shift(evaluation), *note_not_finite(trace)],
        "tiles": tiles_of(evaluation, policy, trace.exit_layers[-1], _fastest(report)),
        "calibrated_on": " ".join(name for name in (policy.source.data, policy.source.split) if name),
        "guarantee": _describe_guarantee(policy),
        "verdict": verdict(evaluation, policy),
        "metric": evaluation.metric,
        "count": evaluation.texts,
        "shown": len(report.table["text"]),
        "slider": report.slider,
        "static": describe_static(evaluation, trace.exit_layers),
        "rows": evaluation.rows,
        "aurocs": _aurocs(report),
        "notes": report.notes,
        "about": {name: trace.about[name] for name in ABOUT if trace.about.get(name) is not None},
        "policy": json.dumps(policy.to_dict(), indent=1, ensure_ascii=False),
        "points": points,
        **_errors(report),
        **_wall_clock(report.benchmark),
    }


def _facts(report: Report) -> dict[str, str]:
    """List date, encoder, data, sizes of the splits, and versions, as far as they are known."""
    about, training = report.trace.about, report.training
    sizes = training.get("texts")
    splits = sizes.items() if isinstance(sizes, Mapping) else ()
    facts = {
        "written": f"{report.written:%Y-%m-%d %H:%M}",
        "encoder": training.get("encoder"),
        "trained on": training.get("data"),
        "splits": ", ".join(f"{split} {size:,}" for split, size in splits),
        "measured on": " ".join(str(about[name]) for name in ("data", "split") if about.get(name)),
        "texts": f"{len(report.trace):,}{'' if report.labelled else ', without labels'}",
        "versions": ", ".join(f"{name} {about[name]}" for name in VERSIONS if about.get(name)),
    }
    return {name: str(value) for name, value in facts.items() if value}


def _aurocs(report: Report) -> dict[str, str]:
    """Return the AUROC of every exit's confidence by the name of its row; none for values."""
    _, *others = report.exit_scores.values()
    names = [row.name for row in static_rows(report.evaluation, report.trace.exit_layers)]
    return {name: percent(value) for values in others for name, value in zip(names, values, strict=True)}


def _describe_guarantee(policy: Policy) -> list[str]:
    """Describe what is guaranteed, if anything is."""
    if policy.certificate is None:
        return [f"{policy.name}: never calibrated, so nothing is guaranteed"]
    return describe_calibration(policy, "the calibration texts")


def _errors(report: Report) -> JsonObject:
    """Break down what is wrong: by class, by length, and which classes are confused."""
    decided, lengths = report.decided, report.trace.lengths
    matrix = confusion_matrix(decided)
    return {
        "label_names": report.label_names,
        "matrix": None if matrix is None else matrix.tolist(),
        "confusions": top_confusions(decided),
        "flawless": not report.regression and bool(agreement(decided.policy.answer, decided.gold).all()),
        "by_class": by_class(decided, report.label_names),
        "by_length": by_length(decided, lengths_of_texts(report.texts) if lengths is None else np.asarray(lengths)),
        "length_unit": "words" if lengths is None else "tokens",
    }


def _fastest(report: Report) -> Gain | None:
    """Return the gains of the fastest way to run the model, if it was timed."""
    return None if report.benchmark is None else clock.fastest(report.benchmark)


def _wall_clock(benchmark: Benchmark | None) -> JsonObject:
    """Tabulate wall-clock time."""
    return {
        "benchmark": benchmark,
        "batch_sizes": [] if benchmark is None else clock.batch_sizes(benchmark),
        "timings": [] if benchmark is None else clock.timing_rows(benchmark),
        "gains": [] if benchmark is None else clock.gains_of(benchmark),
        "parts": [] if benchmark is None else clock.time_by_part(benchmark),
    }
