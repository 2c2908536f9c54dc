"""exitpoll adopt: exits for a classifier that exists already, from texts without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from exitpoll.cli.console import print_as_json, progress_console, quieten_transformers, remark, say, show_result
from exitpoll.cli.groups import IN_DATA, IN_GOAL, IN_METHOD, IN_OUTPUT
from exitpoll.cli.options import AsJson, Names, Out, Overwrite


def adopt(
    classifier: str,
    /,
    *,
    texts: Annotated[Path, IN_DATA],
    out: Out,
    text_column: Annotated[str | None, IN_DATA] = None,
    pair_column: Annotated[str | None, IN_DATA] = None,
    max_disagreement: Annotated[float, IN_GOAL] = 0.01,
    tolerance: Annotated[float | None, IN_GOAL] = None,
    confidence: Annotated[float, IN_GOAL] = 0.95,
    adapt: Annotated[bool, IN_METHOD] = False,
    seed: Annotated[int, IN_METHOD] = 0,
    runtimes: Annotated[Names, IN_OUTPUT] = None,
    report: Annotated[bool, Parameter(negative_bool="no-"), IN_OUTPUT] = True,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Give a fine-tuned classifier early exits, from texts without labels, with a guarantee.

    Heads learn the classifier's own answers, a policy is chosen and certified on texts that nothing else has seen, the
    model is exported, and every runtime is timed on your texts: the fastest that keeps the guarantee becomes the
    default. The same command continues a job that was interrupted.

    Example: exitpoll adopt my-classifier --texts traffic.jsonl --out fast

    Args:
        classifier: A fine-tuned classifier or CrossEncoder, as a folder or a name on the hub; or a model folder of
            exitpoll.
        texts: Texts like those that it will see, some thousands: a CSV, TSV, JSON, JSONL, TXT or Parquet file.
        out: The model folder to write.
        text_column: The column of the text.
        pair_column: The column of the second text of a pair.
        max_disagreement: Guarantee that at most this share of answers differs from the original classifier's; 0.01 is
            one text in a hundred.
        tolerance: For regression: values at most so far from the original's count as the same answer; a tenth of the
            standard deviation of its values by default.
        confidence: The confidence of the guarantee.
        adapt: Train the encoder too, on the original's answers: more texts exit early, but full depth changes.
        seed: Seed of the division of the texts and of the training.
        runtimes: The runtimes to export for and to time: torch, onnx, onnx-int8; all that are installed by default.
        report: Write the HTML report.
        overwrite: Replace an older model folder.
        as_json: Print the result as JSON.
    """
    from exitpoll.adoption.adopt import adopt_classifier
    from exitpoll.adoption.settings import AdoptSettings
    from exitpoll.data.bars import progress_bars
    from exitpoll.data.columns import Columns
    from exitpoll.data.splits import read_unlabelled

    print_as_json(as_json)
    quieten_transformers()
    settings = AdoptSettings(max_disagreement, confidence, tolerance, adapt, runtimes, seed, report)
    given, notes = read_unlabelled(texts, Columns(text_column, pair_column))
    remark(*(f"note: {note}" for note in notes))
    with progress_bars(progress_console()) as on_progress:
        adopted = adopt_classifier(
            classifier, given, out, settings, overwrite=overwrite, on_step=remark, on_progress=on_progress
        )
    remark(*(f"note: {note}" for note in adopted.notes))
    say(*adopted.lines())
    show_result(adopted.to_dict() | {"folder": str(out)})
