"""Find the input files of a job: a file, a folder, a glob or a URL."""

from __future__ import annotations

from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path

from exitpoll.data.places import URL, Place, is_hidden, list_remote
from exitpoll.data.readers import READERS, check_known, kind_of
from exitpoll.errors import InputError


def is_several(data: str) -> bool:
    """Return whether data is a folder, a glob or a URL rather than one local file.

    Args:
        data: What the user named.
    """
    return URL in data or (not Path(data).is_file() and (Path(data).is_dir() or has_magic(data)))


def find_inputs(data: str) -> list[Place]:
    """Find the input files of a job, in the order in which their rows are written.

    Args:
        data: A file, a folder, a glob such as `questions/*.parquet`, or a URL of one of them that fsspec knows.

    Returns:
        The files, sorted by path; of several, those whose format is not known are left out.
    """
    places: Sequence[Place]
    if URL in data:
        places = list_remote(data)
    elif Path(data).is_dir():
        places = sorted(path for path in Path(data).rglob("*") if _is_data(path, Path(data)))
    elif Path(data).is_file():
        places = [Path(data)]
    elif has_magic(data):
        places = sorted(Path(name) for name in glob(data, recursive=True) if Path(name).is_file())
    else:
        raise InputError(f"'{data}' does not exist")
    if len(places) == 1:
        check_known(places[0])
    known = [place for place in places if kind_of(place) is not None]
    if not known:
        raise InputError(f"'{data}' has no files of a known kind: {', '.join(READERS)}")
    return [place.resolve() if isinstance(place, Path) else place for place in known]


def _is_data(path: Path, folder: Path) -> bool:
    """Return whether a path in a folder is a file that is not hidden."""
    return path.is_file() and not is_hidden(path.relative_to(folder).parts)
