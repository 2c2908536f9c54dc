"""exitpoll export: write a model for ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from exitpoll.cli.console import errors, notes_of, quieten_transformers, say
from exitpoll.cli.options import Reading
from exitpoll.engine.inputs import Split


def export(
    model: str,
    /,
    *,
    to: Path | None = None,
    int8: bool = False,
    data: str | None = None,
    split: Split = "calibration",
    reading: Annotated[Reading | None, Parameter(name="*")] = None,
    overwrite: bool = False,
) -> None:
    """Write a model for ONNX Runtime, which runs it faster and without torch; its policy is exported with it.

    Example: exitpoll export trec-bert --int8 --data trec

    Args:
        model: The model folder that `exitpoll train` wrote.
        to: The folder to write; by default onnx, or onnx-int8, in the model folder.
        int8: Quantize weights and activations: smaller and faster, with slightly different answers.
        data: The data the model was trained on, or other texts like those to come: the policy is calibrated on them
            again, and the cost of int8 is measured. Without data, an int8 export has no policy.
        split: Which split of the data; all takes a file as it is, with labels or without.
        reading: Which columns to read.
        overwrite: Replace an older export.
    """
    from exitpoll.data.bars import progress_bars
    from exitpoll.engine.inputs import read_texts
    from exitpoll.engine.loading import load_model
    from exitpoll.export.export import export_model
    from exitpoll.models.folder import policy_path
    from exitpoll.report.wording import describe_export

    quieten_transformers()
    to = to or policy_path(model).with_name("onnx-int8" if int8 else "onnx")
    read = None if data is None else read_texts(load_model(model), data, split, **vars(reading or Reading()))
    with progress_bars(errors) as on_progress:
        exported = export_model(
            model,
            to,
            int8=int8,
            texts=None if read is None else read.texts,
            about=None if read is None else read.about,
            overwrite=overwrite,
            on_progress=on_progress,
        )
    for line in (*([] if read is None else notes_of(read)), *describe_export(exported)):
        say(line)
