"""Manifest of an export: how its ONNX graphs and its tokenizer go together, and the hashes by which they are known."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import cast

from exitpoll.decide.metrics import DEFAULT_METRICS
from exitpoll.errors import InputError
from exitpoll.files import read_json, write_json
from exitpoll.models.folder import MANIFEST, TOKENIZER

VERSION = 4
PRECISIONS = ("float32", "int8")
COLUMNS = ("input_ids", "token_type_ids")  # of tokens
SHORTEST, LONGEST = 3, 1 << 20  # tokens of a text; the shortest has one token between two special ones
MOST_TOKENS = 1 << 31  # in a vocabulary
FILE_NAME = re.compile(r"[\w-][\w.-]{0,99}", re.ASCII)


@dataclass(frozen=True)
class Manifest:
    """How the files of an export go together."""

    precision: str  # "float32" or "int8"
    model_fingerprint: str  # of the trained model that was exported
    exit_layers: Sequence[int]
    label_names: Sequence[str]
    problem_type: str
    max_length: int
    truncation_side: str
    padding: Mapping[str, int]  # the columns of tokens that the encoder takes, with their padding values
    embedding: str  # part: tokens -> the hidden states entering layer 1
    context: str  # part: mask -> the other inputs of layers and heads
    layers: Sequence[str]  # parts, by layer; the same where layers share their weights
    heads: Sequence[str]  # parts, by exit
    parts: Mapping[str, str] = field(default_factory=dict)  # sha256 of every part, by name; `save` fills it in
    graph: str | None = None  # file: all parts in one graph that exits by itself; None where parts are files
    files: Mapping[str, str] = field(default_factory=dict)  # sha256 of every file, by name; `save` fills it in

    def __post_init__(self) -> None:
        """Check every field that could not be run, or would be run wrongly."""
        self._check_files()
        self._check_exit_layers()
        self._check("precision", self.precision in PRECISIONS, f"one of: {', '.join(PRECISIONS)}")
        self._check("label_names", _are_strings(self.label_names) and len(self.label_names) > 0, "a list of names")
        is_length = _is_integer(self.max_length) and SHORTEST <= self.max_length <= LONGEST
        self._check("max_length", is_length, f"an integer between {SHORTEST} and {LONGEST}")
        types = tuple(DEFAULT_METRICS)
        self._check("problem_type", self.problem_type in types, f"one of: {', '.join(types)}")
        self._check("model_fingerprint", isinstance(self.model_fingerprint, str), "a string")
        self._check("truncation_side", self.truncation_side in ("left", "right"), "one of: left, right")
        self._check("padding", _is_padding(self.padding), "integers from 0 for input_ids and maybe token_type_ids")

    def _check_files(self) -> None:
        """Check the names of files, which must be in the folder of the export itself, and their hashes."""
        for name in ("embedding", "context"):
            self._check(name, _are_file_names([getattr(self, name)]), "the name of a file")
        self._check("layers", _are_file_names(self.layers) and len(self.layers) > 0, "a list of names of files")
        self._check("graph", self.graph is None or _are_file_names([self.graph]), "the name of a file, or null")
        for name in ("parts", "files"):
            hashes = getattr(self, name)
            are_hashes = isinstance(hashes, Mapping) and _are_strings(list(hashes.values()))
            self._check(name, are_hashes, "a sha256 for every file")

    def _check_exit_layers(self) -> None:
        """Check that exits rise up to the last layer, and that all of them have heads."""
        rise = _are_integers(self.exit_layers) and all(low < high for low, high in pairwise([-1, *self.exit_layers]))
        reach_the_end = rise and list(self.exit_layers[-1:]) == [len(self.layers)]
        self._check("exit_layers", reach_the_end, f"layer numbers that rise to {len(self.layers)}, the last layer")
        have_heads = _are_file_names(self.heads) and len(self.heads) == len(self.exit_layers)
        self._check("heads", have_heads, "the name of a file for every exit")

    def _check(self, name: str, is_valid: bool, expected: str) -> None:
        """Refuse a field that is not what it should be."""
        if not is_valid:
            raise InputError(f"{name} is {getattr(self, name)!r:.60}, and must be {expected}")

    @property
    def kind(self) -> str:
        """The name of the runtime for `Engine.load`."""
        return "onnx-int8" if self.precision == "int8" else "onnx"

    @property
    def runtime(self) -> str:
        """The name of the runtime in traces and policies."""
        return f"onnx {self.precision}"

    @property
    def shares_layers(self) -> bool:
        """Whether all layers have the same weights."""
        return len(self.layers) > 1 and len(set(self.layers)) == 1

    @property
    def fingerprint(self) -> str:
        """The hash of all that decides the logits: 16 hexadecimal digits; the policy in a graph does not count."""
        decisive = {name: value for name, value in asdict(self).items() if name not in ("graph", "files")}
        return _digest({**decisive, "joined": self.graph is not None})

    @property
    def part_names(self) -> set[str]:
        """The names of the parts, with the tokenizer."""
        return {TOKENIZER, self.embedding, self.context, *self.layers, *self.heads}

    @property
    def file_names(self) -> set[str]:
        """The names of all files that the export needs beside the manifest."""
        return self.part_names if self.graph is None else {TOKENIZER, self.graph}

    def save(self, folder: Path) -> None:
        """Hash the files of an export, and write the manifest.

        Args:
            folder: The folder of the export; the hashes of parts are taken from it too where they are not known.
        """
        parts = self.parts or _hashes(folder, self.part_names)
        complete = replace(self, parts=parts, files=_hashes(folder, self.file_names))
        content = asdict(complete)
        write_json(folder / MANIFEST, {"version": VERSION, **content, "checksum": _digest(content)})

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Load the manifest of an export.

        Args:
            folder: The folder of the export.

        Returns:
            The manifest.
        """
        path = folder / MANIFEST
        content = read_json(path)
        if content is None:
            raise InputError(f"'{path}' is broken; export the model again")
        version = content.pop("version", None)
        if version != VERSION:
            raise InputError(
                f"'{folder}' is an export of version {version!r}; this exitpoll reads version {VERSION}: "
                "export the model again"
            )
        checksum = content.pop("checksum", None)
        names = {field.name for field in fields(cls)}
        if set(content) != names:
            differing = ", ".join(sorted(set(content) ^ names))
            raise InputError(
                f"'{path}' is not what exitpoll export writes: missing or unknown fields ({differing}); "
                "export the model again"
            )
        try:
            manifest = cls(**content)
            manifest._check("files", set(manifest.files) == manifest.file_names, "a sha256 for every file")
            manifest._check("parts", set(manifest.parts) == manifest.part_names, "a sha256 for every part")
        except InputError as error:
            raise InputError(f"'{path}': {error}; export the model again") from error
        if _digest(asdict(manifest)) != checksum:
            raise InputError(f"'{path}' was changed after the export; export the model again")
        return manifest

    @contextmanager
    def checking_files(self, folder: Path) -> Iterator[None]:
        """Hash the files of an export while a block loads them, and refuse those that are not what was exported.

        Args:
            folder: The folder of the export.

        Yields:
            Nothing; the files are known to be right when the block has ended.
        """
        with ThreadPoolExecutor(1) as pool:
            changed = pool.submit(self._changed_files, folder)
            try:
                yield
            finally:  # what the block stumbles on may be due to such a file
                if changed.result():
                    listed = ", ".join(f"'{folder / name}'" for name in changed.result())
                    raise InputError(f"changed or missing after the export: {listed}; export the model again")

    def _changed_files(self, folder: Path) -> list[str]:
        """Return the names of files that are missing, or not what was exported."""
        paths = {folder / name: sha256 for name, sha256 in self.files.items()}
        return [path.name for path, sha256 in paths.items() if not path.is_file() or _sha256(path) != sha256]


def _digest(content: Mapping[str, object]) -> str:
    """Return 16 hexadecimal digits of the hash of plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _hashes(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of files, by name."""
    return {name: _sha256(folder / name) for name in sorted(names)}


def _sha256(path: Path) -> str:
    """Compute the SHA-256 of a file in one go, so that other threads of Python are not waited for."""
    if not path.stat().st_size:
        return hashlib.sha256().hexdigest()
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return hashlib.sha256(content).hexdigest()


def _is_integer(value: object) -> bool:
    """Return whether a value is an integer, and not a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def _are_integers(values: object) -> bool:
    """Return whether a value is a list of integers."""
    return isinstance(values, list | tuple) and all(map(_is_integer, values))


def _are_strings(values: object) -> bool:
    """Return whether a value is a list of strings."""
    return isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)


def _are_file_names(values: object) -> bool:
    """Return whether a value is a list of plain names of files, without folders."""
    return _are_strings(values) and all(map(FILE_NAME.fullmatch, cast(Sequence[str], values)))


def _is_padding(values: object) -> bool:
    """Return whether a value maps the columns of tokens to padding values."""
    return (
        isinstance(values, Mapping)
        and "input_ids" in values
        and set(values) <= set(COLUMNS)
        and all(_is_integer(value) and 0 <= value < MOST_TOKENS for value in values.values())
    )
