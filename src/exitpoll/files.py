"""Atomic writes: a file or folder is written aside and renamed, so that it is complete or absent."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exitpoll.errors import InputError

JsonObject = dict[str, Any]

REPLACED = "replaced"  # inside the work folder: an older folder, until the new one is in its place


def partial_of(out: Path) -> Path:
    """Return the work folder in which another folder is prepared."""
    return out.with_name(out.name + ".partial")


def check_free(out: Path, *, overwrite: bool, may_replace: Callable[[Path], bool], kind: str) -> None:
    """Refuse to write a folder where something else exists.

    Args:
        out: The folder to be written.
        overwrite: Whether an older folder of the same kind may be replaced; anything else is never replaced.
        may_replace: Returns whether a folder is of that kind.
        kind: What it is called, for the message.
    """
    restore(partial_of(out), out)
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not may_replace(out):
        raise InputError(f"'{out}' exists and is not an {kind}; choose another folder")
    if not overwrite:
        raise InputError(f"'{out}' exists already; choose another folder or use --overwrite")


def check_writable(out: Path, *, overwrite: bool) -> None:
    """Refuse a file that exists already, or whose folder does not.

    Args:
        out: The file to be written.
        overwrite: Whether an older file may be replaced; anything else is never replaced.
    """
    if out.is_dir():
        raise InputError(f"'{out}' is a folder; name a file")
    if out.exists() and not out.is_file():
        raise InputError(f"'{out}' is not a regular file; choose another name")
    if out.exists() and not overwrite:
        raise InputError(f"'{out}' exists already; choose another name or use --overwrite")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder '{out.parent}' to write '{out.name}' to")


def check_replaceable(out: Path, field: str, kind: str) -> None:
    """Refuse to write over anything but an older file of the same kind.

    Args:
        out: The JSON file to be written.
        field: A field that files of that kind have.
        kind: What they are called, for the message.
    """
    check_writable(out, overwrite=True)
    if out.exists() and field not in (read_json(out) or {}):
        raise InputError(f"'{out}' exists and is not a file of the kind {kind}; choose another name")


def restore(work: Path, out: Path) -> None:
    """Move an older folder back to its place, if a kill came between the two renames of `publish`.

    Args:
        work: The work folder.
        out: Where the older folder belongs.
    """
    if (work / REPLACED).exists() and not out.exists():
        (work / REPLACED).rename(out)


def publish(work: Path, name: str, out: Path) -> None:
    """Move a finished folder to its place, replacing an older one, and remove the work folder.

    Args:
        work: The work folder; it is removed.
        name: The finished folder inside it.
        out: Where the finished folder belongs.
    """
    try:
        if out.exists():
            out.rename(work / REPLACED)
        (work / name).rename(out)
    except BaseException:
        restore(work, out)
        raise
    shutil.rmtree(work)


def remove_folder(folder: Path) -> None:
    """Remove a folder atomically: it is renamed first, so that it is never seen half removed.

    Args:
        folder: The folder.
    """
    doomed = folder.with_name(folder.name + ".dropped")
    shutil.rmtree(doomed, ignore_errors=True)
    folder.rename(doomed)
    shutil.rmtree(doomed)


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, content: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, content.encode("utf-8", errors="backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    path = path.resolve()
    aside = path.with_name(f"{path.name}.{os.getpid()}.aside")
    try:
        aside.write_bytes(content)
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


def read_json(path: Path) -> JsonObject | None:
    """Read a JSON object; None if there is none or it is broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
