"""What a model folder contains: the names of its files, the summary of its training, and how to recognize one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, cast

from exitpoll.data.overlap import TextDigest
from exitpoll.errors import InputError
from exitpoll.files import check_free, read_json

CONFIG = "config.json"  # of transformers
COSTS = "call-costs.json"  # of an export: what calls cost, by machine
TOKENIZER = "tokenizer.json"
TRAINING = "training.json"  # settings, data, scores and fingerprint of the training
JOURNAL = "training.jsonl"  # a line for every logging step
POLICY = "policy.json"
CARD = "README.md"
REPORT = "report"  # folder of the HTML report
ADOPTED = "adopted.json"  # what `exitpoll adopt` certified and timed, and the runtime that is used by default
MANIFEST = "exported.json"  # of an export: how its ONNX graphs go together
RUNTIMES = ("torch", "onnx", "onnx-int8")  # exports are folders of these names inside the trained folder


class SplitScores(TypedDict):
    """The scores of the exits on one split."""

    exit_scores: list[float]  # by the metric of the task
    exit_accuracies: list[float] | None  # None for regression
    exit_losses: list[float]
    mean_score: float
    last_score: float
    mean_loss: float


class TrainingSummary(TypedDict, total=False):
    """The content of training.json."""

    versions: dict[str, str]  # of exitpoll and the packages that it trained with
    settings: dict[str, object]  # of the training
    source: dict[str, str]  # fingerprint and runtime of the model
    encoder: str | None  # its name
    data: str | None  # name of the dataset
    pairs: bool  # whether the texts are pairs
    metric: str
    exit_layers: list[int]
    scores: dict[str, SplitScores]  # by split
    texts: dict[str, int]  # number of texts, by split
    truncated: int  # number of texts longer than the maximum length
    notes: list[str]
    seconds: float  # in all sessions, if it was interrupted
    train_digest: dict[str, object]  # hashes of the training texts, as TextDigest keeps them


def is_model_folder(folder: Path) -> bool:
    """Return whether a folder contains an exitpoll model, trained or exported."""
    config = read_json(folder / CONFIG) or {}
    return config.get("model_type") == "exitpoll" or "precision" in (read_json(folder / MANIFEST) or {})


def check_free_for_model(out: Path, *, overwrite: bool) -> None:
    """Refuse to write a model folder over anything but, on request, an older model folder.

    Args:
        out: The folder to be written.
        overwrite: Whether an older model folder may be replaced.
    """
    check_free(out, overwrite=overwrite, may_replace=is_model_folder, kind="exitpoll model folder")


def read_training(folder: Path) -> TrainingSummary:
    """Read the summary of a training.

    Args:
        folder: The model folder.

    Returns:
        The content of training.json; empty if there is none.
    """
    path = folder / TRAINING
    summary = read_json(path) if path.exists() else {}
    if summary is None:
        raise InputError(f"'{path}' is broken, so the splits of the training are not known; restore it or remove it")
    for name, value in summary.items():
        if name in _IS_VALID and not _IS_VALID[name](value):
            raise InputError(f"'{path}' is broken: {name} is {value!r:.60}; restore it or remove it")
    exits = len(summary.get("exit_layers", ()))
    for split, scores in summary.get("scores", {}).items():
        if len(scores["exit_scores"]) != exits:
            raise InputError(f"'{path}' is broken: {split} has not one score for each of {exits} exits")
    return cast(TrainingSummary, summary)


def _is_number(value: object) -> bool:
    """Return whether a value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    """Return whether a value is a number of things."""
    return type(value) is int and value >= 0


def _are_layers(value: object) -> bool:
    """Return whether a value is a list of layers, in increasing order."""
    return isinstance(value, list) and all(map(_is_count, value)) and value == sorted(set(value))


def _is_name(value: object) -> bool:
    """Return whether a value is a name, or missing."""
    return value is None or isinstance(value, str)


def _are_names(value: object) -> bool:
    """Return whether a value holds names by name."""
    return isinstance(value, dict) and all(isinstance(name, str) for name in value.values())


def _are_scores(value: object) -> bool:
    """Return whether a value holds the scores of every exit, by split."""
    if not isinstance(value, dict):
        return False
    lists = [scores.get("exit_scores") if isinstance(scores, dict) else None for scores in value.values()]
    return all(isinstance(scores, list) and all(map(_is_number, scores)) for scores in lists)


def _is_digest(value: object) -> bool:
    """Return whether a value is the digest of texts."""
    try:
        TextDigest.from_dict(value)
    except InputError:
        return False
    return True


_IS_VALID: dict[str, Callable[[Any], bool]] = {  # of every field that is read again
    "versions": _are_names,
    "settings": lambda value: isinstance(value, dict),
    "source": _are_names,
    "encoder": _is_name,
    "data": _is_name,
    "pairs": lambda value: isinstance(value, bool),
    "metric": lambda value: isinstance(value, str),
    "exit_layers": _are_layers,
    "scores": _are_scores,
    "texts": lambda value: isinstance(value, dict) and all(map(_is_count, value.values())),
    "truncated": _is_count,
    "notes": lambda value: isinstance(value, list) and all(isinstance(note, str) for note in value),
    "seconds": _is_number,
    "train_digest": _is_digest,
}


def policy_path(model_folder: str | Path) -> Path:
    """Return the path of a model's policy.

    Args:
        model_folder: The model folder.

    Returns:
        The path of its policy.json, which may not exist yet.
    """
    if not Path(model_folder).is_dir():
        raise InputError(f"'{model_folder}' is not a folder; name the model folder that exitpoll train wrote")
    return Path(model_folder) / POLICY


def exports_of(model_folder: str | Path) -> list[Path]:
    """List the exports in a model folder, which have policies of their own.

    Args:
        model_folder: The model folder.

    Returns:
        Their folders.
    """
    return [Path(model_folder) / name for name in RUNTIMES if (Path(model_folder) / name / MANIFEST).exists()]
