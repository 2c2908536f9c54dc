"""A model folder, loaded, and texts read as the model was trained to see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from exitpoll.data.splits import Texts, load_splits, load_texts
from exitpoll.data.tasks import task_named
from exitpoll.decide.metrics import DEFAULT_METRICS, REGRESSION
from exitpoll.engine.manifest import MANIFEST, Manifest
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError
from exitpoll.files import read_json

RUNTIMES = ("torch", "onnx", "onnx-int8")
MOST_THREADS = 256

Split = Literal["train", "calibration", "test", "all"]


@dataclass(frozen=True)
class Read:
    """Texts, and what is to be noted of them."""

    texts: Texts
    about: Mapping[str, Any]  # data, split, metric
    notes: tuple[str, ...] = ()


def load_model(
    folder: str | Path, runtime: str | None = None, *, threads: int | None = None, device: str = "cpu"
) -> LoadedModel:
    """Open a model: a folder that `exitpoll train` or `exitpoll export` wrote, or one on the hub.

    Args:
        folder: Its path or name.
        runtime: "torch", "onnx" or "onnx-int8"; what the folder was written for by default. A trained folder is also
            searched for an export of that name.
        threads: How many threads to use.
        device: Where torch is to run.

    Returns:
        The model.
    """
    if runtime is not None and runtime not in RUNTIMES:
        raise InputError(f"runtime '{runtime}' is unknown; choose one of: {', '.join(RUNTIMES)}")
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise InputError(f"threads {threads} must be between 1 and {MOST_THREADS}")
    found = find_folder(folder, runtime)
    if not found.exists() and (found.parent.is_dir() or len(found.parts) != 2):
        raise InputError(f"'{folder}' does not exist, and is no name of the hub (owner/name)")
    if not (found / MANIFEST).exists():
        return _load_trained(folder, threads, device)
    from exitpoll.engine.onnx_runtime import load_exported

    if device != "cpu":
        raise InputError(f"'{found}' is for ONNX Runtime on the CPU; device '{device}' needs a trained folder")
    return replace(load_exported(found, threads), summary=read_summary(found))


def find_folder(folder: str | Path, runtime: str | None = None) -> Path:
    """Find the folder that holds what a runtime runs.

    Args:
        folder: A trained folder, or an export.
        runtime: As for `load_model`.

    Returns:
        The folder itself, or an export below it.
    """
    folder = Path(folder)
    if (folder / MANIFEST).exists():
        kind = Manifest.load(folder).kind
        if runtime not in (None, kind):
            raise InputError(f"'{folder}' was exported for {kind}, not {runtime}")
        return folder
    if runtime in (None, "torch"):
        return folder
    if not (folder / runtime / MANIFEST).exists():
        flag = " --int8" if runtime == "onnx-int8" else ""
        raise InputError(f"'{folder}' has no export for {runtime}; make one: exitpoll export {folder}{flag}")
    return find_folder(folder / runtime, runtime)


def _load_trained(folder: str | Path, threads: int | None, device: str) -> LoadedModel:
    """Open a folder with torch."""
    import torch

    from exitpoll.engine.torch_runtime import loaded_model
    from exitpoll.models.model import EarlyExitModel
    from exitpoll.models.tokenizer import load_tokenizer

    if threads is not None:
        torch.set_num_threads(threads)
    model = EarlyExitModel.from_pretrained(str(folder))
    summary = file_of(folder, "training.json")
    return loaded_model(
        model.to(device), load_tokenizer(folder), {} if summary is None else read_summary(summary.parent)
    )


def file_of(model: str | Path, name: str) -> Path | None:
    """Find a file that goes with a model, in its folder or on the hub.

    Args:
        model: The model's folder, or its name on the hub.
        name: The file's name.

    Returns:
        Its path; None if there is no such file.
    """
    if Path(model).is_dir():
        return Path(model) / name if (Path(model) / name).exists() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(hf_hub_download(str(model), name))
    except EntryNotFoundError:  # nor in the cache, where the hub cannot be reached
        return None


def read_summary(folder: Path) -> Mapping[str, Any]:
    """Read the summary of a training; nothing if there is none.

    Args:
        folder: The model's folder.

    Returns:
        The summary.
    """
    path = folder / "training.json"
    summary = read_json(path) if path.exists() else {}
    if summary is None or not isinstance(summary.get("settings", {}), dict):
        raise InputError(f"'{path}' is broken: how training cut the splits cannot be told; restore it or remove it")
    return summary


def exports_of(model: str) -> list[Path]:
    """List the exports in a model's folder, which have policies of their own.

    Args:
        model: The model's folder.

    Returns:
        Their folders.
    """
    return [Path(model) / name for name in RUNTIMES if (Path(model) / name / MANIFEST).exists()]


def policy_path(model: str) -> Path:
    """Say where a model's policy is kept.

    Args:
        model: The model's folder.

    Returns:
        The path of its policy.json.
    """
    if not Path(model).is_dir():
        raise InputError(f"'{model}' is no folder; name the model folder that exitpoll train wrote")
    return Path(model) / "policy.json"


def check_same_model(model: str, source: Mapping[str, Any], path: Path, about: Mapping[str, Any]) -> None:
    """Refuse a file that was made from another model or runtime.

    Args:
        model: The model's folder, for the message.
        source: Which model and runtime it is.
        path: The file, for the message.
        about: What the file says that it was made from.
    """
    for name, ours in source.items():
        theirs = about.get(name, ours)
        if ours != theirs:
            raise InputError(f"'{path}' was recorded from another {name} than '{model}': {theirs}, not {ours}")


def read_texts(
    loaded: LoadedModel,
    data: str,
    split: Split,
    *,
    task: str | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
) -> Read:
    """Read a split as training cut it, with labels numbered as the model numbers them.

    Args:
        loaded: The model.
        data: A file, a folder, a known task's name or a hub dataset's.
        split: Which split; "all" takes a file as it is, with labels or without.
        task: The known task whose metric to use, where neither the model's training nor the data's name says it.
        text_column: The column of the text.
        pair_column: The column of the second text of a pair.
        label_column: The column of the label.
        group_column: A column of groups of texts that are to be told apart.

    Returns:
        The texts.
    """
    kind = loaded.runtime.problem_type
    columns: dict[str, Any] = {
        "text_column": text_column,
        "pair_column": pair_column,
        "label_column": label_column,
        "group_column": group_column,
    }
    named = task or Path(data).name
    about = {"data": Path(data).name, "split": split, "task": named if task_named(named) else None}
    metric = loaded.summary.get("metric")
    if split == "all":
        texts = load_texts(data, label_names=list(loaded.label_names), problem_type=kind, **columns)
        loaded.check_pairs(f"'{data}'", pairs=texts.second is not None)
        return Read(texts, about | {"metric": metric or DEFAULT_METRICS[kind]})
    seed = loaded.summary.get("settings", {}).get("seed")
    splits = load_splits(
        data,
        task=task,
        label_names=None if kind == REGRESSION else list(loaded.label_names),
        problem_type=kind,
        seed=seed if isinstance(seed, int) and seed >= 0 else 0,
        **columns,
    )
    loaded.check_pairs(f"'{data}'", pairs=splits.is_pairs)
    if not isinstance(seed, int) and any("cut from train" in note for note in splits.notes):
        raise InputError(
            f"'{data}' has no {split} split, and how training cut it is not known; use a file and --split all"
        )
    return Read(getattr(splits, split), about | {"metric": metric or splits.metric}, tuple(splits.notes))
