"""A manifest is checked field by field, and an export of another version is refused in one line."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from exitpoll import InputError
from exitpoll.engine.manifest import VERSION, Manifest

MANIFEST = Manifest(
    precision="float32",
    fingerprint="0123456789abcdef",
    exit_layers=[1, 3],
    label_names=["bad", "good"],
    problem_type="single_label_classification",
    max_length=32,
    truncation_side="right",
    padding={"input_ids": 0, "token_type_ids": 0},
    embedding="embedding.onnx",
    context="context.onnx",
    layers=["layers-1.onnx"] * 3,
    branches=[0, 1, 2],
    heads=["head-01.onnx", "head-02.onnx"],
)


def write(folder, **changed):
    content = {"version": VERSION, **asdict(MANIFEST), **changed}
    (folder / "exported.json").write_text(json.dumps(content))


def test_saving_and_loading(tmp_path):
    MANIFEST.save(tmp_path)
    assert Manifest.load(tmp_path) == MANIFEST


def test_names_of_the_runtime():
    assert (MANIFEST.kind, MANIFEST.runtime) == ("onnx", "onnx float32")
    quantized = replace(MANIFEST, precision="int8")
    assert (quantized.kind, quantized.runtime) == ("onnx-int8", "onnx int8")


@pytest.mark.parametrize("version", [None, 1, 3, "2"])
def test_an_export_of_another_version_says_to_export_again(tmp_path, version):
    write(tmp_path, version=version)
    with pytest.raises(InputError) as refused:
        Manifest.load(tmp_path)
    assert str(refused.value) == (
        f"'{tmp_path}' is an export of version {version!r}; this exitpoll reads version 2: export the model again"
    )


def test_fields_that_are_missing_or_unknown_are_named(tmp_path):
    write(tmp_path, surprise=1)
    with pytest.raises(InputError, match=r"missing or unknown fields \(surprise\); export the model again"):
        Manifest.load(tmp_path)
    (tmp_path / "exported.json").write_text(json.dumps({"version": VERSION}))
    with pytest.raises(InputError, match=r"missing or unknown fields \(branches, context, .*\); export"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("exit_layers", [3, 1], r"exit_layers is \[3, 1\], and must be layer numbers that rise to 3, the last layer"),
        ("exit_layers", [1, 2], r"exit_layers is \[1, 2\], and must be layer numbers that rise to 3"),
        ("exit_layers", [True, 3], r"exit_layers is \[True, 3\], and must be layer numbers"),
        ("exit_layers", None, "exit_layers is None, and must be layer numbers"),
        ("heads", ["head-01.onnx"], "heads is .*, and must be the name of a file for every exit"),
        ("layers", ["../layers-1.onnx"] * 3, "layers is .*, and must be a list of names of files"),
        ("layers", [], r"layers is \[\], and must be a list of names of files"),
        ("embedding", 5, "embedding is 5, and must be the name of a file"),
        ("context", "a/b.onnx", "context is 'a/b.onnx', and must be the name of a file"),
        ("branches", [0, 1, 3], r"branches is \[0, 1, 3\], and must be a branch for every layer"),
        ("precision", "int4", "precision is 'int4', and must be one of: float32, int8"),
        ("label_names", [], r"label_names is \[\], and must be a list of names"),
        ("max_length", 2, "max_length is 2, and must be an integer, at least 3"),
        ("truncation_side", "middle", "truncation_side is 'middle', and must be one of: left, right"),
        ("padding", {"input_ids": -1}, r"padding is \{'input_ids': -1\}, and must be integers from 0"),
        ("padding", {"token_type_ids": 0}, "padding is .*, and must be integers from 0 for input_ids"),
    ],
)
def test_every_field_is_checked(tmp_path, name, value, message):
    write(tmp_path, **{name: value})
    with pytest.raises(InputError, match=f"exported.json': {message}.*; export the model again$"):
        Manifest.load(tmp_path)
