"""Write folders aside and rename them, so that a folder is there whole or not at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from exitpoll.errors import InputError


def partial_of(out: Path) -> Path:
    """Name the folder in which the work for another folder is kept until it is whole."""
    return out.with_name(out.name + ".partial")


def check_free(out: Path, *, overwrite: bool) -> None:
    """Refuse to write where something is already.

    Args:
        out: The folder to be written.
        overwrite: Whether an older model folder may be replaced; anything else is never replaced.
    """
    older = _older(out)
    if older.exists() and not out.exists():
        older.rename(out)  # a kill came between the two renames of publish
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not overwrite:
        raise InputError(f"'{out}' exists already; choose another folder or say --overwrite")
    if not _is_model_folder(out):
        raise InputError(f"'{out}' is not a model folder of exitpoll, so it is not overwritten")


def publish(prepared: Path, out: Path) -> None:
    """Put a finished folder in its place, in place of an older one if need be.

    Args:
        prepared: The finished folder, on the same disk.
        out: Where it belongs.
    """
    older = _older(out)
    shutil.rmtree(older, ignore_errors=True)
    if out.exists():
        out.rename(older)
    prepared.rename(out)
    shutil.rmtree(older, ignore_errors=True)


def write_json(path: Path, content: object) -> None:
    """Write a JSON file whole or not at all."""
    aside = path.with_name(path.name + ".aside")
    aside.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.rename(path)


def read_json(path: Path) -> dict | None:
    """Read a JSON object, None if there is none or it is broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _older(out: Path) -> Path:
    """Name the place of what a folder replaces, until it has done so."""
    return out.with_name(out.name + ".older")


def _is_model_folder(folder: Path) -> bool:
    """Whether a folder holds a model of ours."""
    config = read_json(folder / "config.json")
    return config is not None and config.get("model_type") == "exitpoll"
