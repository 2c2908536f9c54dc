"""Write folders aside and rename them, so that a folder is there whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from exitpoll.errors import InputError

REPLACED = "replaced"  # where, in the folder of the work, an older folder stands until the new one is in its place


def partial_of(out: Path) -> Path:
    """Name the folder in which the work for another folder is kept until it is whole."""
    return out.with_name(out.name + ".partial")


def check_free(out: Path, *, overwrite: bool) -> None:
    """Refuse to write where something is already.

    Args:
        out: The folder to be written.
        overwrite: Whether an older model folder may be replaced; anything else is never replaced.
    """
    put_back(partial_of(out), out)
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not _is_model_folder(out):
        raise InputError(f"'{out}' exists and is not a model folder of exitpoll; choose another folder")
    if not overwrite:
        raise InputError(f"'{out}' exists already; choose another folder or say --overwrite")


def check_writable(out: Path, *, overwrite: bool) -> None:
    """Refuse a file that is there already, or a folder that is not.

    Args:
        out: The file to be written.
        overwrite: Whether an older file may be replaced; anything else is never replaced.
    """
    if out.is_dir():
        raise InputError(f"'{out}' is a folder; name a file")
    if out.exists() and not out.is_file():
        raise InputError(f"'{out}' is no file that could be replaced")
    if out.exists() and not overwrite:
        raise InputError(f"'{out}' exists already; choose another name or say --overwrite")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder '{out.parent}' to write '{out.name}' to")


def check_replaceable(out: Path, field: str, kind: str) -> None:
    """Refuse to write over anything but an older file of the same kind.

    Args:
        out: The JSON file to be written.
        field: What files of that kind have.
        kind: What they are, for the message.
    """
    check_writable(out, overwrite=True)
    if out.exists() and field not in (read_json(out) or {}):
        raise InputError(f"'{out}' exists and is no {kind}; choose another name")


def put_back(work: Path, out: Path) -> None:
    """Put an older folder back in its place, if a kill came between the two renames of publish.

    Args:
        work: The folder of the work.
        out: Where the older folder belongs.
    """
    if (work / REPLACED).exists() and not out.exists():
        (work / REPLACED).rename(out)


def publish(prepared: Path, out: Path) -> None:
    """Put a finished folder in its place, in place of an older one if need be, and drop the work.

    Args:
        prepared: The finished folder, inside the folder of the work.
        out: Where it belongs.
    """
    work = prepared.parent
    try:
        if out.exists():
            out.rename(work / REPLACED)
        prepared.rename(out)
    except BaseException:
        put_back(work, out)
        raise
    shutil.rmtree(work)


def drop(folder: Path) -> None:
    """Remove a folder whole or not at all: one that is half removed has another name.

    Args:
        folder: The folder.
    """
    doomed = folder.with_name(folder.name + ".dropped")
    shutil.rmtree(doomed, ignore_errors=True)
    folder.rename(doomed)
    shutil.rmtree(doomed)


def write_json(path: Path, content: object) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, content: str) -> None:
    """Write a text file whole or not at all."""
    write_bytes(path, content.encode("utf-8", errors="backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path = path.resolve()
    aside = path.with_name(f"{path.name}.{os.getpid()}.aside")
    try:
        aside.write_bytes(content)
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


def read_json(path: Path) -> dict | None:
    """Read a JSON object, None if there is none or it is broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _is_model_folder(folder: Path) -> bool:
    """Whether a folder holds a model of ours, trained or exported."""
    config = read_json(folder / "config.json") or {}
    return config.get("model_type") == "exitpoll" or "precision" in (read_json(folder / "exported.json") or {})
