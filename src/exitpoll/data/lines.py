"""Bytes and lines of text files, plain or compressed, with what is wrong with them."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple, cast

from exitpoll.data.places import Place, RemoteFile
from exitpoll.errors import InputError, MissingExtraError

# What the first bytes of a file that is not UTF-8 text say, and what would be right.
FIRST_BYTES = {
    codecs.BOM_UTF16_LE: "UTF-16; save it as UTF-8",
    codecs.BOM_UTF16_BE: "UTF-16; save it as UTF-8",
    b"\x1f\x8b": "compressed by gzip; add .gz to its name",
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard; add .zst to its name",
    b"PK\x03\x04": "a ZIP archive or an Excel sheet; save it as CSV in UTF-8",
    b"PAR1": "a Parquet file; name it .parquet",
}


class Line(NamedTuple):
    """One line of a file."""

    number: int  # from 1
    text: str  # with its line break; what cannot be decoded is replaced
    problem: str | None = None  # why it is not UTF-8 text

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing but spaces in the line."""
        return self.problem is None and not self.text.strip(" \r\n")


def _open_gzip(path: Place) -> BinaryIO:
    """Open a file that gzip compressed."""
    return cast(BinaryIO, gzip.open(path.open("rb") if isinstance(path, RemoteFile) else path, "rb"))


def _open_zstandard(path: Place) -> BinaryIO:
    """Open a file that Zstandard compressed."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtraError(f"reading '{path.name}', which is compressed by Zstandard,", "data") from error
    source = path.open("rb") if isinstance(path, RemoteFile) else str(path)
    return cast(BinaryIO, io.BufferedReader(pyarrow.input_stream(source, compression="zstd")))


# A new compression is one row here.
COMPRESSIONS: dict[str, Callable[[Place], BinaryIO]] = {".gz": _open_gzip, ".zst": _open_zstandard}


@contextmanager
def open_bytes(path: Place) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed if its suffix says that it is compressed.

    Args:
        path: The file.

    Yields:
        The open file.
    """
    opener = COMPRESSIONS.get(path.suffix.lower())
    try:
        with path.open("rb") if opener is None else opener(path) as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        if opener is None:
            raise InputError(f"'{path}' cannot be read: {error}") from error
        raise InputError(f"'{path}' cannot be decompressed: {error}; is it damaged or cut off?") from error


def check_first_bytes(path: Place, content: bytes) -> None:
    """Refuse a file that is known not to be UTF-8 text.

    Args:
        path: The file, for the message.
        content: How it begins.
    """
    for start, meaning in FIRST_BYTES.items():
        if content.startswith(start):
            raise InputError(f"'{path}' is {meaning}")


def read_lines(path: Place) -> Iterator[Line]:
    """Read the lines of a UTF-8 file, and what is wrong with them.

    Args:
        path: The file, plain or compressed.

    Yields:
        The lines.
    """
    with open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                check_first_bytes(path, line)
            yield Line(number, *_decoded(line, "utf-8-sig" if number == 1 else "utf-8"))


def _decoded(line: bytes, encoding: str) -> tuple[str, str | None]:
    """Decode a line, and return what is wrong with it."""
    problem = None
    try:
        text = line.decode(encoding)
    except UnicodeDecodeError as error:
        text = line.decode(encoding, errors="replace")
        problem = f"invalid UTF-8 ({error.reason}); save it as UTF-8"
    if "\0" in text:
        text, problem = text.replace("\0", ""), "a NUL byte, so it is not plain text; save it as UTF-8"
    return text, problem
