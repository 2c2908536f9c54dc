"""exitpoll evaluate: measure a calibrated model on held-out texts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from exitpoll.cli.console import notes_of, print_as_json, quieten_transformers, remark, show_evaluation, show_result
from exitpoll.cli.groups import IN_DATA, IN_OUTPUT
from exitpoll.cli.options import (
    AsJson,
    BatchSize,
    Device,
    MetricName,
    OptionalData,
    OptionalOut,
    PolicyPath,
    Reading,
    ReadingFlags,
    SplitName,
    TracePath,
)
from exitpoll.errors import InputError

EXIT_CODES = {"held": 0, "broken": 1, "too few texts": 3}  # with --check

if TYPE_CHECKING:
    from exitpoll.decide.evaluate import Evaluation
    from exitpoll.decide.policy import Policy
    from exitpoll.decide.trace import Trace
    from exitpoll.engine.inputs import Split


def evaluate(
    model: str,
    /,
    *,
    data: OptionalData = None,
    trace: TracePath = None,
    split: SplitName = "test",
    policy: PolicyPath = None,
    by: Annotated[str | None, IN_DATA] = None,
    metric: MetricName | None = None,
    reading: ReadingFlags = None,
    batch_size: BatchSize = 64,
    device: Device = "auto",
    out: OptionalOut = None,
    as_json: AsJson = False,
    check: Annotated[bool, IN_OUTPUT] = False,
) -> None:
    """Measure a calibrated model on held-out texts.

    Prints the score with its interval, the speed-up in layers, where texts exit, and whether the guarantee held: by the
    95 % interval of the measured risk it held, was broken, or the texts are too few to tell. With --check the exit code
    is 0, 1 or 3 for these.

    Example: exitpoll evaluate trec-bert --data trec

    Args:
        model: The model folder, with its policy.json.
        data: The data.
        trace: Instead of data: a trace of the texts.
        split: Which split of the data; "all" reads a file as it is.
        policy: Another policy than the model's own.
        by: A column of the data; every group of texts with the same value is measured by itself too.
        metric: The metric to score by; the task's by default.
        reading: Which columns to read.
        batch_size: Texts in a batch.
        device: Where to run the model.
        out: A JSON file for all numbers.
        as_json: Print the result as JSON.
        check: Exit with 0 if the guarantee held, 1 if it was broken, 3 if the texts are too few to tell.
    """
    from exitpoll.cli.traces import load_trace
    from exitpoll.decide.evaluate import evaluate as evaluate_trace
    from exitpoll.decide.policy import Policy
    from exitpoll.engine.loading import source_of
    from exitpoll.files import check_replaceable, write_json
    from exitpoll.models.folder import policy_path
    from exitpoll.report.wording import note_not_finite, note_same_texts, note_shift, note_trained_on

    print_as_json(as_json)
    if (data is None) == (trace is None):
        raise InputError("name what to evaluate on: either --data or --trace")
    if by is not None and data is None:
        raise InputError("--by needs --data: a trace has no columns")
    if out is not None:
        check_replaceable(out, "rows", "evaluation")
    quieten_transformers()
    chosen, groups = Policy.load(policy or policy_path(model)), None
    if check and (chosen.certificate is None or chosen.certificate.guarantee is None):
        raise InputError("this policy guarantees nothing that --check could check")
    if trace is not None:
        recorded = load_trace(trace, model, source_of(model))
    else:
        columns = vars(reading or Reading()) | {"group_column": by}
        recorded, groups = _record(model, chosen, str(data), split, columns, batch_size, device)
    evaluation = evaluate_trace(recorded, chosen, metric=metric, groups=groups)
    if out is not None:
        write_json(out, evaluation.to_dict())
    show_evaluation(evaluation, chosen)
    show_result(evaluation.to_dict())
    remark(*note_shift(evaluation), *note_same_texts(chosen, recorded.about))
    remark(*note_trained_on(recorded), *note_not_finite(recorded))
    if out is not None:
        remark(f"wrote {out}")
    if check:
        sys.exit(_exit_code(evaluation))


def _exit_code(evaluation: Evaluation) -> int:
    """Return the exit code that tells whether the guarantee held."""
    if evaluation.guarantee is None:
        raise InputError("the guarantee of this policy cannot be checked on texts without labels")
    return EXIT_CODES[evaluation.guarantee.verdict]


def _record(
    model: str, policy: Policy, data: str, split: Split, columns: dict[str, str | None], batch_size: int, device: str
) -> tuple[Trace, Sequence[str] | None]:
    """Record a trace of the texts, and return it with the group of every text."""
    from exitpoll.cli.traces import record_texts
    from exitpoll.engine.inputs import read_texts
    from exitpoll.engine.loading import load_model

    loaded = load_model(model, device=device)
    policy.source.check_same(loaded.source)
    read = read_texts(loaded, data, split, **columns)
    trace = record_texts(loaded, read, batch_size)
    remark(*notes_of(read))
    return trace, read.texts.groups
