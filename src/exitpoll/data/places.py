"""Where files are: on a disk, or behind a URL that fsspec knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from exitpoll.errors import InputError

URL = "://"
HIDDEN = (".", "_")  # files and folders whose names begin with these hold no data: .git, _delta_log, _temporary


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL, such as s3://bucket/questions.parquet; like a Path, as far as readers need one."""

    url: str

    def __str__(self) -> str:
        """Return the URL, as messages show it."""
        return self.url

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return PurePosixPath(self.url).name

    @property
    def suffix(self) -> str:
        """The last suffix of the name."""
        return PurePosixPath(self.url).suffix

    def with_suffix(self, suffix: str) -> RemoteFile:
        """Return the URL with another suffix."""
        return RemoteFile(self.url.removesuffix(self.suffix) + suffix)

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open the file."""
        import fsspec

        try:
            return cast(BinaryIO, fsspec.open(self.url, mode).open())
        except Exception as error:  # every file system has errors of its own
            raise InputError(f"'{self.url}' cannot be read: {type(error).__name__}: {error}") from error


Place = Path | RemoteFile


def to_place(name: str) -> Place:
    """Return the file that a path or URL names."""
    return RemoteFile(name) if URL in name else Path(name)


def list_remote(pattern: str) -> list[Place]:
    """List the files that a URL names: a file, all files of a folder and below it, or those that match a glob.

    Args:
        pattern: The URL, of any file system that fsspec knows.

    Returns:
        The files, sorted; local ones as paths.
    """
    from glob import has_magic

    filesystem, path = _filesystem_of(pattern)
    try:
        if has_magic(path) and not filesystem.exists(path):
            names = [name for name, about in filesystem.glob(path, detail=True).items() if about["type"] == "file"]
        else:
            names = _data_below(path, filesystem.find(path)) if filesystem.isdir(path) else [path]
            names = names if filesystem.exists(path) else []
    except Exception as error:  # every file system has errors of its own
        raise InputError(f"'{pattern}' cannot be listed: {type(error).__name__}: {error}") from error
    is_local = "file" in ([filesystem.protocol] if isinstance(filesystem.protocol, str) else filesystem.protocol)
    return [Path(name) if is_local else RemoteFile(filesystem.unstrip_protocol(name)) for name in sorted(names)]


def _data_below(folder: str, names: list[str]) -> list[str]:
    """Return the names below a folder that are not hidden, at any depth."""
    root = PurePosixPath(folder)
    return [name for name in names if not is_hidden(PurePosixPath(name).relative_to(root).parts)]


def is_hidden(parts: Sequence[str]) -> bool:
    """Return whether a path is hidden, or in a hidden folder.

    Args:
        parts: Of the path, below the folder that was named.
    """
    return any(part.startswith(HIDDEN) for part in parts)


def state_of(place: Place) -> tuple[int, str]:
    """Return the size of a file in bytes, and what changes when it is written again: its time or version.

    Args:
        place: A file that exists.
    """
    if isinstance(place, Path):
        stat = place.stat()
        return stat.st_size, str(stat.st_mtime_ns)
    filesystem, path = _filesystem_of(place.url)
    try:
        about = filesystem.info(path)
    except Exception as error:  # every file system has errors of its own
        raise InputError(f"'{place}' cannot be read: {type(error).__name__}: {error}") from error
    names = ("ETag", "etag", "md5", "mtime", "LastModified", "last_modified", "updated", "created")
    return int(about.get("size") or 0), str(next((about[name] for name in names if about.get(name)), ""))


def _filesystem_of(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path there."""
    import fsspec

    try:
        return fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InputError(f"'{url}' cannot be read: {error}") from error
