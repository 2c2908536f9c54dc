"""What `exitpoll export` writes: ONNX stages, a tokenizer, and a manifest that says how they go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from exitpoll.errors import InputError
from exitpoll.folders import read_json, write_json

MANIFEST = "exported.json"
TOKENIZER = "tokenizer.json"
VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """How the files of an export go together."""

    precision: str  # "float32" or "int8"
    model: str  # a fingerprint of the weights that were exported
    exits: Sequence[int]  # the layer of each
    label_names: Sequence[str]
    problem_type: str
    max_length: int
    truncation_side: str
    padding: Mapping[str, int]  # what to pad each kind of tokens with that the encoder wants
    embedding: str  # file: tokens -> the hidden states entering layer 1
    context: str  # file: hidden states, mask -> what every layer needs beside the hidden states
    layers: Sequence[str]  # files, one for each layer, the same one where layers share their weights
    heads: Sequence[str]  # files, one for each exit

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
        return cls(**content)
