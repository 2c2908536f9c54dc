"""exitpoll evaluate: measure a calibrated model on held-out texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from exitpoll.cli.app import Reading, Split
from exitpoll.cli.console import errors, notes_of, quieten_transformers, say, show_evaluation
from exitpoll.errors import InputError


def evaluate(
    model: str,
    /,
    *,
    data: str | None = None,
    trace: Path | None = None,
    split: Split = "test",
    policy: Path | None = None,
    by: str | None = None,
    metric: str | None = None,
    reading: Annotated[Reading | None, Parameter(name="*")] = None,
    batch_size: int = 64,
    out: Path | None = None,
) -> None:
    """Measure a calibrated model on texts it has not seen: score, speed-up, depths, and whether its promise held.

    Example: exitpoll evaluate trec-bert --data trec

    Args:
        model: The model folder, with its policy.json.
        data: The texts: a file, a folder, a known task or a hub dataset.
        trace: Instead of data: a trace of the texts.
        split: Which split of the data; all takes a file as it is.
        policy: Another policy than the model's own.
        by: A column of the data; every group of texts is measured on its own too.
        metric: What to score by; the task's by default.
        reading: Which columns to read.
        batch_size: Texts in a batch.
        out: A JSON file for all figures.
    """
    from exitpoll.cli.progress import progress_bars
    from exitpoll.decide.evaluate import evaluate as evaluate_trace
    from exitpoll.decide.policy import Policy
    from exitpoll.decide.trace import Trace
    from exitpoll.engine.inputs import read_texts
    from exitpoll.engine.loading import check_same_model, load_model, source_of
    from exitpoll.engine.record import record_in_memory
    from exitpoll.files import check_replaceable, write_json
    from exitpoll.models.folder import policy_path
    from exitpoll.report.wording import not_finite, same_texts

    if (data is None) == (trace is None):
        raise InputError("say what to evaluate on: either --data or --trace")
    if by is not None and data is None:
        raise InputError("--by needs --data: a trace has no columns")
    if out is not None:
        check_replaceable(out, "rows", "evaluation")
    quieten_transformers()
    chosen, groups = Policy.load(policy or policy_path(model)), None
    if trace is not None:
        recorded = Trace.load(trace)
        check_same_model(model, source_of(model), trace, recorded.about)
    else:
        loaded = load_model(model)
        chosen.source.check_same(loaded.source)
        read = read_texts(loaded, str(data), split, **vars(reading or Reading()), group_column=by)
        groups = read.texts.groups
        with progress_bars(errors) as on_progress:
            recorded = record_in_memory(
                loaded, read.texts, about=read.about, batch_size=batch_size, on_progress=on_progress
            )
        for line in notes_of(read):
            say(line)
    evaluation = evaluate_trace(recorded, chosen, metric=metric, groups=groups)
    if out is not None:
        write_json(out, evaluation.to_dict())
    show_evaluation(evaluation, chosen)
    for line in (*same_texts(chosen, recorded.about), *not_finite(recorded)):
        say(line)
    if out is not None:
        say(f"wrote {out}")
