"""Atomic writes and locks: a file or folder is complete or absent, and written by one process at a time."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime
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
        raise InputError(f"'{out}' exists already; choose another folder or use overwrite", options=["overwrite"])


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
        raise InputError(f"'{out}' exists already; choose another name or use overwrite", options=["overwrite"])
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


# ---- locks ----------------------------------------------------------------------------------------------------------


@contextmanager
def locked(path: Path, job: str) -> Iterator[None]:
    """Hold `<path>.lock` while a block writes a file or folder, so that no second process writes it too.

    The lock of a process that was killed is taken over, and the files that it was writing aside are removed.

    Args:
        path: The file or folder to be written.
        job: What writes it, as a second process is told: "predict", "record", …

    Yields:
        Nothing; the lock is removed at the end of the block.
    """
    path = path.resolve()
    lock = path.with_name(path.name + ".lock")
    owner = _Owner.this_process(job)
    try:
        with _alone_in(path.parent):
            check_not_owned(lock, path)
            write_json(lock, asdict(owner))
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {error.strerror}") from error
    try:
        _remove_leftovers(path)
        yield
    finally:
        if owner.pid == os.getpid() and read_json(lock) == asdict(owner):  # not a fork, and not taken over
            lock.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Owner:
    """The process that holds a lock."""

    pid: int
    host: str
    job: str
    started: str  # when the lock was taken
    pid_started: int | None  # when the process started, in ticks since the start of the system; None if not known

    @classmethod
    def this_process(cls, job: str) -> _Owner:
        """Describe this process."""
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        return cls(os.getpid(), platform.node(), job, now, _start_of(os.getpid()))

    @classmethod
    def of(cls, lock: Path) -> _Owner | None:
        """Read who holds a lock; None if the file is not a lock of ours."""
        content = read_json(lock) or {}
        if set(content) != {field.name for field in fields(cls)} or not isinstance(content["pid"], int):
            return None
        return cls(**content)

    @property
    def is_gone(self) -> bool:
        """Whether the process has certainly ended."""
        if self.host != platform.node():
            return False
        return not _is_alive(self.pid) or _start_of(self.pid) != self.pid_started


def check_not_owned(lock: Path, path: Path) -> None:
    """Refuse a lock that is held by a process that runs, or that may run on another host, and other files.

    Args:
        lock: The lock.
        path: What it locks, for the message.
    """
    if not lock.exists():
        return
    owner = _Owner.of(lock)
    if owner is None:
        raise InputError(f"'{lock}' exists and is not a lock of exitpoll; remove it")
    if owner.is_gone:
        return
    where = f"process {owner.pid} on {owner.host}"
    remedy = "wait until it has ended"
    if owner.host != platform.node():
        remedy += f", or remove '{lock}' if it has"
    raise InputError(f"'{path}' is being written by {owner.job}, {where}, since {owner.started}; {remedy}")


def release_elsewhere(folder: Path) -> None:
    """Remove the locks below a folder that processes of other hosts hold, where these are known to have ended.

    Args:
        folder: The folder; it need not exist.
    """
    for lock in folder.rglob("*.lock"):
        owner = _Owner.of(lock)
        if owner is not None and owner.host != platform.node():
            lock.unlink(missing_ok=True)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Let one process at a time look at the locks in a folder and take one, where the system can do so."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without such locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _is_alive(pid: int) -> bool:
    """Return whether a process of this host runs; where that cannot be told, it is taken to run."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return _state_of(pid)[:1] != ["Z"]  # killed, and not yet waited for by its parent


def _start_of(pid: int) -> int | None:
    """Return when a process started, in ticks since the start of the system; None if it is not known."""
    state = _state_of(pid)
    return int(state[19]) if len(state) > 19 else None


def _state_of(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on; none where there is no such file."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _remove_leftovers(path: Path) -> None:
    """Remove what processes that were killed had begun to write aside, in place of a file."""
    leftover = re.compile(re.escape(path.name) + r"(?:\.lock)?\.(\d+)\.(?:aside|partial)")
    for other in path.parent.iterdir():
        match = leftover.fullmatch(other.name)
        if match and not _is_alive(int(match[1])):
            other.unlink(missing_ok=True)


# ---- files ----------------------------------------------------------------------------------------------------------


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
