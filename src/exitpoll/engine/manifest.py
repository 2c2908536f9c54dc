"""What `exitpoll export` writes: ONNX stages, a tokenizer, and a manifest that says how they go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from exitpoll.errors import InputError
from exitpoll.files import read_json, write_json
from exitpoll.models.folder import MANIFEST

VERSION = 2


@dataclass(frozen=True)
class Manifest:
    """How the files of an export go together."""

    precision: str  # "float32" or "int8"
    fingerprint: str  # of the weights that were exported
    exit_layers: Sequence[int]  # the layer of each
    label_names: Sequence[str]
    problem_type: str
    max_length: int
    truncation_side: str
    padding: Mapping[str, int]  # what to pad each kind of tokens with that the encoder wants
    embedding: str  # file: tokens -> the hidden states entering layer 1
    context: str  # file: hidden states, mask -> what every layer needs beside the hidden states
    layers: Sequence[str]  # files, one for each layer
    branches: Sequence[int]  # where in its file each layer is; the same place where layers share their weights
    heads: Sequence[str]  # files, one for each exit

    def __post_init__(self) -> None:
        """Refuse what could not be run, or would be run wrongly."""
        names = [self.embedding, self.context, *_list(self.layers), *_list(self.heads)]
        checks = {
            "precision": self.precision in ("float32", "int8"),
            "exit_layers": all(type(each) is int for each in _list(self.exit_layers))
            and [0, *_list(self.exit_layers)] == sorted({0, *_list(self.exit_layers)})
            and _list(self.exit_layers)[-1:] == [len(_list(self.layers))],
            "layers, heads, embedding or context": len(_list(self.heads)) == len(_list(self.exit_layers))
            and all(isinstance(name, str) and name == Path(name).name for name in names),
            "branches": len(_list(self.branches)) == len(_list(self.layers))
            and all(type(each) is int and 0 <= each < len(self.layers) for each in self.branches),
            "label_names": all(isinstance(name, str) for name in _list(self.label_names)) and _list(self.label_names),
            "max_length": type(self.max_length) is int and self.max_length > 2,
            "truncation_side": self.truncation_side in ("left", "right"),
            "padding": isinstance(self.padding, Mapping)
            and "input_ids" in self.padding
            and set(self.padding) <= {"input_ids", "token_type_ids"}
            and all(type(each) is int and each >= 0 for each in self.padding.values()),
        }
        for name, holds in checks.items():
            if not holds:
                raise InputError(f"{name} of an export are not what exitpoll export writes")

    @property
    def kind(self) -> str:
        """What `Engine.load` calls the runtime."""
        return "onnx-int8" if self.precision == "int8" else "onnx"

    @property
    def runtime(self) -> str:
        """What traces and policies call the runtime."""
        return f"onnx {self.precision}"

    def save(self, folder: Path) -> None:
        """Write the manifest.

        Args:
            folder: The folder of the export.
        """
        write_json(folder / MANIFEST, {"version": VERSION, **asdict(self)})

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read the manifest of an export.

        Args:
            folder: The folder of the export.

        Returns:
            The manifest.
        """
        content = read_json(folder / MANIFEST)
        if content is None:
            raise InputError(f"'{folder / MANIFEST}' is broken; export the model anew")
        version = content.pop("version", None)
        if version != VERSION:
            raise InputError(f"'{folder}' is an export of version {version!r}; this exitpoll reads version {VERSION}")
        if set(content) != {each.name for each in fields(cls)}:
            raise InputError(f"'{folder / MANIFEST}' is not what exitpoll export writes; export the model anew")
        try:
            return cls(**content)
        except InputError as error:
            raise InputError(f"'{folder / MANIFEST}': {error}; export the model anew") from error


def _list(value: Any) -> list[Any]:
    """Take a list as it is, and anything else for an empty one."""
    return list(value) if isinstance(value, list | tuple) else []
