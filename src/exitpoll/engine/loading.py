"""Load models from folders, or from the hub, and check which model a file belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from exitpoll.decide.certificate import Source
from exitpoll.decide.policy import Policy
from exitpoll.engine.arguments import to_integer
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.runtime import LoadedModel, Origin, TrainingSummary
from exitpoll.errors import InputError
from exitpoll.files import read_json
from exitpoll.models.folder import ADOPTED, MANIFEST, POLICY, RUNTIMES, TRAINING, read_training

MOST_THREADS = 256


def load_model(
    folder: str | Path,
    runtime: str | None = None,
    *,
    threads: int | None = None,
    device: str = "auto",
    verify: bool = True,
) -> LoadedModel:
    """Load a model: a folder that `exitpoll train` or `exitpoll export` wrote, or one on the hub.

    Args:
        folder: Its path or name.
        runtime: "torch", "onnx" or "onnx-int8"; the one that the folder was written for by default. A trained folder is
            also searched for an export of that name.
        threads: How many threads this model uses; by default as many as torch uses in this process, or for an export
            as many as there are cores.
        device: The device for torch: "cpu", "cuda", …; "auto" is a GPU of CUDA where there is one, else the CPU.
        verify: Whether to check the hashes of an export's files, which is done while they are loaded.

    Returns:
        The model.
    """
    model_folder = _check_arguments(folder, runtime, device)
    threads = None if threads is None else to_integer("threads", threads, at_most=MOST_THREADS)
    place = str(Path(folder).resolve()) if Path(folder).is_dir() else str(folder)
    origin = Origin(place, runtime, threads, device, verify)
    if not (model_folder / MANIFEST).exists():
        from exitpoll.engine.torch_runtime import load_trained

        path = file_of(folder, TRAINING)
        training: TrainingSummary = {} if path is None else read_training(path.parent)
        return replace(load_trained(folder, threads, device), training=training, origin=origin)
    from exitpoll.engine.onnx_runtime import load_exported

    if device not in ("auto", "cpu"):
        raise InputError(f"'{model_folder}' is for ONNX Runtime on the CPU; device '{device}' needs a trained folder")
    loaded = load_exported(model_folder, threads, verify=verify)
    return replace(loaded, training=read_training(model_folder), origin=origin)


def _check_arguments(folder: object, runtime: object, device: object) -> Path:
    """Check what `load_model` was given, and return the folder with the files of the runtime."""
    if not isinstance(folder, str | Path) or not str(folder).strip():
        raise InputError(f"folder {folder!r:.60} must be the path of a model folder, or its name on the hub")
    if runtime is not None and runtime not in RUNTIMES:
        raise InputError(f"runtime {runtime!r:.60} is unknown; choose one of: {', '.join(RUNTIMES)}")
    if not isinstance(device, str):
        raise InputError(f"device {device!r:.60} must be a string, such as 'cpu' or 'cuda'")
    model_folder = find_folder(folder, None if runtime is None else str(runtime))
    if model_folder.is_file():
        raise InputError(f"'{folder}' is a file; name the model folder")
    if not model_folder.exists() and (model_folder.parent.is_dir() or len(model_folder.parts) != 2):
        raise InputError(f"'{folder}' does not exist, and is not a name on the hub (owner/name)")
    return model_folder


def find_folder(folder: str | Path, runtime: str | None = None) -> Path:
    """Find the folder with the files of a runtime.

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


def default_runtime(folder: str | Path) -> str | None:
    """Return the runtime that `exitpoll adopt` chose for a folder, if it made that folder.

    Args:
        folder: A model folder, or a name on the hub.

    Returns:
        The name of the runtime; None for the one that the folder was written for.
    """
    path = Path(folder) / ADOPTED
    if not path.is_file():
        return None
    chosen = (read_json(path) or {}).get("runtime")
    if chosen not in RUNTIMES:
        raise InputError(f"'{path}' is broken: it names no runtime; restore it or remove it")
    return chosen


def file_of(model: str | Path, name: str) -> Path | None:
    """Find a file of a model, in its folder or on the hub.

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
    except EntryNotFoundError:  # also raised if it is not in the cache and the hub cannot be reached
        return None


def policy_of(folder: str | Path, runtime: str | None = None) -> Policy | None:
    """Load the policy of a model folder.

    Args:
        folder: A model folder, or a name on the hub.
        runtime: As for `load_model`.

    Returns:
        The policy; None if there is none, so that no text would exit early.
    """
    path = file_of(find_folder(folder, runtime), POLICY)
    return None if path is None else Policy.load(path)


def source_of(model_folder: str | Path) -> Source:
    """Return fingerprint and runtime of a model, without loading it if its files state them.

    Args:
        model_folder: A trained folder, or an export.

    Returns:
        The source that its traces and policies name.
    """
    folder = Path(model_folder)
    if (folder / MANIFEST).exists():
        manifest = Manifest.load(folder)
        return Source(fingerprint=manifest.fingerprint, runtime=manifest.runtime)
    stated = read_training(folder).get("source")
    if isinstance(stated, Mapping) and {"fingerprint", "runtime"} <= set(stated):
        return Source.of(stated)
    return load_model(folder).source


def check_same_model(model_folder: str | Path, source: Source, path: Path, about: Mapping[str, object]) -> None:
    """Refuse a file that was made from another model or runtime.

    Args:
        model_folder: The model's folder, for the message.
        source: Its fingerprint and runtime; fields that are None are not compared.
        path: The file, for the message.
        about: The metadata of the file.
    """
    for name in ("runtime", "fingerprint"):  # the fingerprint of an export is not that of its model
        ours, theirs = getattr(source, name), about.get(name)
        if None not in (ours, theirs) and ours != theirs:
            raise InputError(f"'{path}' was made from another {name} than '{model_folder}': {theirs}, not {ours}")
