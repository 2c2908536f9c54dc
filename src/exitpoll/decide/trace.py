"""Trace: every exit's logits for a set of texts, with their labels, kept in one safetensors file."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from exitpoll.decide.certificate import Metadata
from exitpoll.decide.costs import columns_of, reduced_times
from exitpoll.decide.metrics import DEFAULT_METRICS, MULTI_LABEL, PROBLEM_TYPES, REGRESSION, SINGLE_LABEL
from exitpoll.errors import InputError
from exitpoll.files import JsonObject

FORMAT = "exitpoll trace 2"
ALL_EXITS = "all_exit_layers"  # in the metadata of a trace of some exits
CHUNK = 1 << 20  # logits that are worked on at a time
_TYPES = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "I64": np.int64}
_OPTIONAL: dict[str, tuple[Any, ...]] = {  # arrays that a trace may have; other types than these become the last
    "labels": (np.floating, np.int64),
    "lengths": (np.int64,),
    "reference": (np.floating, np.float64),
}
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}


@dataclass(frozen=True)
class Trace:
    """Every exit's logits for a set of texts; arrays may be memory-mapped and larger than memory."""

    logits: NDArray  # (texts, exits, classes)
    labels: NDArray | None = None  # (texts,), or (texts, classes) for multi-label
    exit_layers: Sequence[int] = ()  # the layers of the exits; 1, 2, … by default
    about: Metadata = field(default_factory=dict)  # fingerprint, runtime, data, task, label names, …
    lengths: NDArray | None = None  # (texts,) tokens of the texts
    reference: NDArray | None = None  # (texts, classes) logits of the model to agree with, if not of the last exit

    def __post_init__(self) -> None:
        """Number the layers and check that the arrays belong together."""
        object.__setattr__(self, "logits", _as_array(self.logits, (np.floating,), np.float64))
        for name, kinds in _OPTIONAL.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _as_array(getattr(self, name), kinds, kinds[-1]))
        if self.logits.ndim != 3:
            raise InputError(f"a trace's logits must be (texts, exits, classes), not of shape {self.logits.shape}")
        if not self.logits.shape[1] or not self.logits.shape[2]:
            raise InputError(f"a trace needs exits and classes; its logits are of shape {self.logits.shape}")
        if not len(self.exit_layers):
            object.__setattr__(self, "exit_layers", tuple(range(1, self.logits.shape[1] + 1)))
        if len(self.exit_layers) != self.logits.shape[1]:
            raise InputError(f"{len(self.exit_layers)} layers were named for {self.logits.shape[1]} exits")
        rising = all(earlier < later for earlier, later in pairwise((-1, *self.exit_layers)))
        if not rising or self.exit_layers[-1] < 1:
            raise InputError(
                f"the layers of exits must rise from 0 or more to 1 or more, and are {list(self.exit_layers)}"
            )
        self._check_labels_and_lengths()

    def _check_labels_and_lengths(self) -> None:
        """Check that labels and lengths are of the same texts."""
        if self.labels is not None and len(self.labels) != len(self.logits):
            raise InputError(f"there are {len(self.labels)} labels for {len(self.logits)} texts")
        if self.labels is not None and self.labels.shape[1:] not in ((), self.logits.shape[2:]):
            raise InputError(f"labels of shape {self.labels.shape} do not fit {self.logits.shape[2]} classes")
        if self.reference is not None and self.reference.shape != (len(self.logits), self.logits.shape[2]):
            raise InputError(f"reference of shape {self.reference.shape} does not fit logits {self.logits.shape}")
        if self.lengths is not None and self.lengths.shape != self.logits.shape[:1]:
            raise InputError(f"lengths of shape {self.lengths.shape} do not fit {len(self.logits)} texts")

    def __repr__(self) -> str:
        """Describe size and origin."""
        texts, exits, classes = self.logits.shape
        known = " ".join(str(self.about[name]) for name in ("data", "split") if name in self.about)
        return f"Trace({texts} texts × {exits} exits × {classes} classes{', ' + known if known else ''})"

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.logits)

    @property
    def problem_type(self) -> str:
        """The problem type, as in transformers; inferred from the shapes where the metadata do not state it."""
        stated = self.about.get("problem_type")
        if stated is not None:
            if stated not in PROBLEM_TYPES:
                raise InputError(f"problem_type {stated!r:.60} is unknown; known ones: {', '.join(PROBLEM_TYPES)}")
            return stated
        if self.labels is not None and self.labels.ndim == 2:
            return MULTI_LABEL
        return REGRESSION if self.logits.shape[-1] == 1 else SINGLE_LABEL

    @property
    def metric(self) -> str:
        """The metric to score by: the task's if the metadata state it, else the usual one of the problem type."""
        stated = self.about.get("metric")
        return stated if isinstance(stated, str) and stated else DEFAULT_METRICS[self.problem_type]

    @property
    def trained_on(self) -> float | None:
        """The share of the texts that the model was trained on, as far as the metadata tell."""
        if self.about.get("split") == "train":
            return 1.0
        overlap = self.about.get("overlap")
        if not isinstance(overlap, Mapping):
            return None
        checked, shared = overlap.get("checked"), overlap.get("shared")
        if not isinstance(checked, int) or not isinstance(shared, int) or not 0 <= shared <= checked:
            return None
        return shared / checked if checked else None

    def gold(self, purpose: str) -> NDArray:
        """Return the labels, or raise an error that names what needs them.

        Args:
            purpose: What needs them, as the start of a sentence.

        Returns:
            Class numbers (texts,), 0 and 1 for every label (texts, classes), or values (texts,).
        """
        if self.labels is None:
            raise InputError(f"{purpose} needs labels, and this trace has none; record it on labelled texts")
        given = np.asarray(self.labels)
        if not np.isfinite(given).all() or (self.problem_type != REGRESSION and (given != np.rint(given)).any()):
            raise InputError("some labels are not finite, or not integers as classes must be")
        if self.problem_type == REGRESSION:
            return given.astype(np.float64)
        labels, classes = given.astype(np.int64), self.logits.shape[-1]
        most = 1 if self.problem_type == MULTI_LABEL else classes - 1
        if len(labels) and not 0 <= labels.min() <= labels.max() <= most:
            raise InputError(f"labels must be between 0 and {most}, and are between {labels.min()} and {labels.max()}")
        return labels

    def select(self, rows: NDArray | slice) -> Trace:
        """Select some texts.

        Args:
            rows: Their numbers, or a slice.

        Returns:
            A trace of these texts.
        """
        optional = (self.labels, self.lengths, self.reference)
        labels, lengths, reference = (None if array is None else array[rows] for array in optional)
        return Trace(self.logits[rows], labels, self.exit_layers, self.about, lengths, reference)

    def at_exits(self, exit_layers: Sequence[int] | None) -> Trace:
        """Keep some exits, as if the model had no others.

        Args:
            exit_layers: Their layers; the last exit must stay, since it is the full model. None keeps all.

        Returns:
            A trace of these exits, whose metadata name the layers of all; the logits of evenly spaced exits are a view.
        """
        if exit_layers is None or tuple(exit_layers) == tuple(self.exit_layers):
            return self
        columns = columns_of(exit_layers, self.exit_layers)
        steps = set(np.diff(columns).tolist()) or {1}
        evenly = slice(columns[0], columns[-1] + 1, steps.pop()) if len(steps) == 1 else columns
        asked = tuple(int(layer) for layer in exit_layers)
        about = {ALL_EXITS: list(self.exit_layers), **reduced_times(self.about, self.exit_layers, asked)}
        return replace(self, logits=self.logits[:, evenly], exit_layers=asked, about=about)

    @property
    def some_exit_layers(self) -> Sequence[int] | None:
        """The layers of the exits, if `at_exits` left out others of the model; None if these are all."""
        return self.exit_layers if ALL_EXITS in self.about else None

    def chunks(self, numbers: int = CHUNK) -> Iterator[Trace]:
        """Iterate over the texts in parts that fit into memory.

        Args:
            numbers: Logits in a part, about.

        Yields:
            Traces of successive texts.
        """
        size = max(1, numbers // max(1, self.logits.shape[1] * self.logits.shape[2]))
        for start in range(0, len(self), size):
            yield self.select(slice(start, start + size))

    def save(self, path: str | Path) -> None:
        """Write the trace atomically.

        Args:
            path: The file to write.
        """
        optional = {name: getattr(self, name) for name in _OPTIONAL}
        small = {name: np.asarray(array) for name, array in optional.items() if array is not None}
        shapes = {name: (array.shape, array.dtype) for name, array in {"logits": self.logits, **small}.items()}
        with create(path, shapes, exit_layers=self.exit_layers, about=self.about) as arrays:
            done = 0
            for part in self.chunks():
                arrays["logits"][done : done + len(part)] = part.logits
                done += len(part)
            for name, array in small.items():
                arrays[name][:] = array

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Load a trace; its arrays are memory-mapped.

        Args:
            path: A file that `save` or `create` wrote.

        Returns:
            The trace.
        """
        path = Path(path)
        header, start = _read_header(path)
        about = header.pop("__metadata__", None)
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise InputError(f"'{path}' is not a trace of this version of exitpoll; record it again")
        try:
            arrays = {name: _map(path, start, entry) for name, entry in header.items()}
            layers, known = json.loads(about["exit_layers"]), json.loads(about["about"])
            if not isinstance(known, dict) or not all(type(layer) is int for layer in layers):
                raise ValueError("its metadata are broken")
            optional = [arrays.get(name) for name in ("lengths", "reference")]
            return cls(arrays["logits"], arrays.get("labels"), layers, known, *optional)
        except (LookupError, ValueError, TypeError, RecursionError) as error:
            raise InputError(f"'{path}' is not a trace, or a broken one: {error}") from error


@contextmanager
def create(
    path: str | Path,
    shapes: Mapping[str, tuple[tuple[int, ...], DTypeLike]],
    *,
    exit_layers: Sequence[int],
    about: Metadata,
) -> Iterator[dict[str, NDArray]]:
    """Create a trace of known size, to be filled row by row, in any order, with little memory.

    Args:
        path: The file to write; it appears when it is complete.
        shapes: Shapes and types of the arrays: logits, and labels and lengths where they are known.
        exit_layers: The layers of the exits.
        about: Metadata of the trace.

    Yields:
        The memory-mapped arrays, to be filled.
    """
    path = Path(path).resolve()
    aside = path.with_name(f"{path.name}.{os.getpid()}.partial")
    header: JsonObject = {
        "__metadata__": {
            "format": FORMAT,
            "exit_layers": json.dumps(list(map(int, exit_layers))),
            "about": json.dumps(dict(about), ensure_ascii=False),
        }
    }
    end = 0
    for name, (shape, kind) in shapes.items():
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
        header[name] = {"dtype": _NAMES[np.dtype(kind)], "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 8)  # safetensors aligns the data to 8 bytes
    try:
        with aside.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + end)
            if hasattr(os, "posix_fallocate") and end:
                os.posix_fallocate(file.fileno(), 0, 8 + len(text) + end)  # a full disk fails here, not in the map
        arrays = {name: _map(aside, 8 + len(text), header[name], mode="r+") for name in shapes}
        yield arrays
        for array in arrays.values():
            if isinstance(array, np.memmap):
                array.flush()
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


def _as_array(values: ArrayLike, kinds: Sequence[DTypeLike], otherwise: DTypeLike) -> NDArray:
    """Keep an array whose type can be saved, and convert any other."""
    array = values if isinstance(values, np.ndarray) else np.asarray(values)
    kept = array.dtype in _NAMES and any(np.issubdtype(array.dtype, kind) for kind in kinds)
    return array if kept else array.astype(otherwise)


def _read_header(path: Path) -> tuple[JsonObject, int]:
    """Read a safetensors header and where the data starts."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > path.stat().st_size:
                raise ValueError("its header is truncated")
            header = json.loads(file.read(length))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        if path.stat().st_size != 8 + length + end:
            raise ValueError("its data are truncated")
    except FileNotFoundError as error:
        raise InputError(f"'{path}' does not exist") from error
    except IsADirectoryError as error:
        raise InputError(f"'{path}' is a folder, not a trace") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise InputError(f"'{path}' is not a trace, or a broken one: {error}") from error
    return header, 8 + length


def _map(path: Path, start: int, entry: JsonObject, mode: Literal["r", "r+"] = "r") -> NDArray:
    """Memory-map one array of a safetensors file; an empty one cannot be mapped and is created."""
    kind, shape = _TYPES[entry["dtype"]], tuple(entry["shape"])
    first, end = entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, first, end)):
        raise ValueError("its shapes are not numbers")
    if end - first != math.prod(shape) * np.dtype(kind).itemsize:
        raise ValueError("its shapes do not fit its data")
    if 0 in shape:
        return np.zeros(shape, dtype=kind)
    return np.memmap(path, dtype=kind, mode=mode, offset=start + first, shape=shape)
