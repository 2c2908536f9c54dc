"""What a model folder holds: the names of its files, and how to recognize one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exitpoll.errors import InputError
from exitpoll.files import check_free, read_json

CONFIG = "config.json"  # of transformers
TOKENIZER = "tokenizer.json"
TRAINING = "training.json"  # settings, data, scores and fingerprint of the training
JOURNAL = "training.jsonl"  # a line for every logging step
POLICY = "policy.json"
CARD = "README.md"
REPORT = "report"  # folder of the HTML report
MANIFEST = "exported.json"  # of an export: how its ONNX graphs go together
RUNTIMES = ("torch", "onnx", "onnx-int8")  # exports are folders of these names inside the trained folder


def is_model_folder(folder: Path) -> bool:
    """Return whether a folder holds a model of exitpoll, trained or exported."""
    config = read_json(folder / CONFIG) or {}
    return config.get("model_type") == "exitpoll" or "precision" in (read_json(folder / MANIFEST) or {})


def check_free_for_model(out: Path, *, overwrite: bool) -> None:
    """Refuse to write a model folder over anything but, on request, an older model folder.

    Args:
        out: The folder to be written.
        overwrite: Whether an older model folder may be replaced.
    """
    check_free(out, overwrite=overwrite, may_replace=is_model_folder, kind="exitpoll model folder")


def read_training(folder: Path) -> Mapping[str, Any]:
    """Read the summary of a training.

    Args:
        folder: The model's folder.

    Returns:
        The content of training.json; nothing if there is none.
    """
    path = folder / TRAINING
    summary = read_json(path) if path.exists() else {}
    if summary is None or not isinstance(summary.get("settings", {}), dict):
        raise InputError(f"'{path}' is broken, so the splits of the training are not known; restore it or remove it")
    return summary


def policy_path(model_folder: str | Path) -> Path:
    """Return where a model's policy is kept.

    Args:
        model_folder: The model's folder.

    Returns:
        The path of its policy.json.
    """
    if not Path(model_folder).is_dir():
        raise InputError(f"'{model_folder}' is not a folder; name the model folder that exitpoll train wrote")
    return Path(model_folder) / POLICY


def exports_of(model_folder: str | Path) -> list[Path]:
    """List the exports in a model's folder, which have policies of their own.

    Args:
        model_folder: The model's folder.

    Returns:
        Their folders.
    """
    return [Path(model_folder) / name for name in RUNTIMES if (Path(model_folder) / name / MANIFEST).exists()]
