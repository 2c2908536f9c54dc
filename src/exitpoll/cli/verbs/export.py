"""exitpoll export: write a model for ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from exitpoll.cli.console import (
    notes_of,
    print_as_json,
    progress_console,
    quieten_transformers,
    remark,
    say,
    show_result,
)
from exitpoll.cli.groups import IN_DATA, IN_OUTPUT
from exitpoll.cli.options import AsJson, Device, OptionalOut, Overwrite, Reading, ReadingFlags, SplitName

if TYPE_CHECKING:
    from exitpoll.export.export import Exported


def export(
    model: str,
    /,
    *,
    out: OptionalOut = None,
    int8: Annotated[bool, IN_OUTPUT] = False,
    single_file: Annotated[bool, IN_OUTPUT] = False,
    data: Annotated[str | None, IN_DATA] = None,
    split: SplitName = "calibration",
    reading: ReadingFlags = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write a model for ONNX Runtime, which runs it faster and without torch; its policy is exported with it.

    Example: exitpoll export trec-bert --int8 --data trec

    Args:
        model: The model folder that `exitpoll train` wrote.
        out: The folder to write; by default onnx, or onnx-int8, in the model folder.
        int8: Quantize weights and activations: smaller and faster, with slightly different answers.
        single_file: Write one graph, which exits early in plain ONNX Runtime too, even where all layers share their
            weights, as in ALBERT; other models always are one graph.
        data: The data the model was trained on, or other texts like those to come: the policy is calibrated on them
            again, and the cost of int8 is measured. Without data, an int8 export has no policy.
        split: Which split of the data; all takes a file as it is, with labels or without.
        reading: Which columns to read.
        device: Where to run the model on the data: cpu, cuda, …; auto takes a GPU where there is one. The export itself
            runs on the CPU.
        overwrite: Replace an older export.
        as_json: Print the result as JSON.
    """
    from exitpoll.data.bars import progress_bars
    from exitpoll.engine.inputs import read_texts
    from exitpoll.engine.loading import load_model
    from exitpoll.export.export import export_model
    from exitpoll.models.folder import policy_path
    from exitpoll.report.wording import describe_export

    print_as_json(as_json)
    quieten_transformers()
    out = out or policy_path(model).with_name("onnx-int8" if int8 else "onnx")
    loaded = None if data is None else load_model(model, device="cpu")
    read = None if loaded is None else read_texts(loaded, str(data), split, **vars(reading or Reading()))
    with progress_bars(progress_console()) as on_progress:
        exported = export_model(
            model,
            out,
            int8=int8,
            single_file=single_file,
            texts=None if read is None else read.texts,
            about=None if read is None else read.about,
            device=device,
            overwrite=overwrite,
            on_progress=on_progress,
        )
    remark(*([] if read is None else notes_of(read)))
    say(*describe_export(exported))
    show_result(_result_of(exported))


def _result_of(exported: Exported) -> dict[str, object]:
    """Return an export as plain values."""
    policy = None if exported.policy is None else exported.policy.to_dict()
    return {**vars(exported), "folder": str(exported.folder), "policy": policy}
