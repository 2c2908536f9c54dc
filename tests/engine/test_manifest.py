"""A manifest is checked field by field, and an export of another version is refused in one line."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import asdict, replace

import hypothesis
import pytest
from hypothesis import strategies

from exitpoll import InputError, Texts, load_model
from exitpoll.engine.manifest import VERSION, Manifest
from tests.exports import write_manifest

MANIFEST = Manifest(
    precision="float32",
    model_fingerprint="0123456789abcdef",
    exit_layers=[1, 3],
    label_names=["bad", "good"],
    problem_type="single_label_classification",
    max_length=32,
    truncation_side="right",
    padding={"input_ids": 0, "token_type_ids": 0},
    embedding="embedding.onnx",
    context="context.onnx",
    layers=["layers-1.onnx"] * 3,
    heads=["head-01.onnx", "head-02.onnx"],
)


FILES = ("tokenizer.json", "embedding.onnx", "context.onnx", "layers-1.onnx", "head-01.onnx", "head-02.onnx")


HASHES = dict.fromkeys(FILES, "0")


def write(folder, **changed):
    write_manifest(folder, {"version": VERSION, **asdict(MANIFEST), "parts": HASHES, "files": HASHES, **changed})


def test_saving_and_loading(tmp_path):
    for name in FILES:
        (tmp_path / name).write_text(name)
    MANIFEST.save(tmp_path)
    saved = Manifest.load(tmp_path)
    assert replace(saved, files={}, parts={}) == MANIFEST
    assert set(saved.files) == set(saved.parts) == set(FILES)
    with saved.checking_files(tmp_path):
        pass
    (tmp_path / "head-02.onnx").write_text("else")
    with (
        pytest.raises(InputError, match=r"changed or missing after the export: '.*head-02.onnx'; export the model"),
        saved.checking_files(tmp_path),
    ):
        raise ValueError("what such a file leads to")


def test_names_of_the_runtime():
    assert (MANIFEST.kind, MANIFEST.runtime) == ("onnx", "onnx float32")
    quantized = replace(MANIFEST, precision="int8")
    assert (quantized.kind, quantized.runtime) == ("onnx-int8", "onnx int8")


@pytest.mark.parametrize("version", [None, 1, 3, 5, "4"])
def test_an_export_of_another_version_says_to_export_again(tmp_path, version):
    write(tmp_path, version=version)
    with pytest.raises(InputError) as refused:
        Manifest.load(tmp_path)
    assert str(refused.value) == (
        f"'{tmp_path}' is an export of version {version!r}; this exitpoll reads version 4: export the model again"
    )


def test_fields_that_are_missing_or_unknown_are_named(tmp_path):
    write(tmp_path, surprise=1)
    with pytest.raises(InputError, match=r"missing or unknown fields \(surprise\); export the model again"):
        Manifest.load(tmp_path)
    (tmp_path / "exported.json").write_text(json.dumps({"version": VERSION}))
    with pytest.raises(InputError, match=r"missing or unknown fields \(context, embedding, .*\); export"):
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
        ("graph", "../model.onnx", "graph is .*, and must be the name of a file, or null"),
        ("precision", "int4", "precision is 'int4', and must be one of: float32, int8"),
        ("label_names", [], r"label_names is \[\], and must be a list of names"),
        ("max_length", 2, "max_length is 2, and must be an integer between 3 and 1048576"),
        ("max_length", 1 << 40, "max_length is .*, and must be an integer between 3"),
        ("problem_type", "guessing", "problem_type is 'guessing', and must be one of: single_label_classification"),
        ("problem_type", ["regression"], "problem_type is .*, and must be one of"),
        ("model_fingerprint", 5, "model_fingerprint is 5, and must be a string"),
        ("files", {"tokenizer.json": "0"}, "files is .*, and must be a sha256 for every file"),
        ("files", ["0"], "files is .*, and must be a sha256 for every file"),
        ("embedding", "..", "embedding is '..', and must be the name of a file"),
        ("embedding", "a" * 300, "embedding is .*, and must be the name of a file"),
        ("truncation_side", "middle", "truncation_side is 'middle', and must be one of: left, right"),
        ("padding", {"input_ids": -1}, r"padding is \{'input_ids': -1\}, and must be integers from 0"),
        ("padding", {"token_type_ids": 0}, "padding is .*, and must be integers from 0 for input_ids"),
    ],
)
def test_every_field_is_checked(tmp_path, name, value, message):
    write(tmp_path, **{name: value})
    with pytest.raises(InputError, match=f"exported.json': {message}.*; export the model again$"):
        Manifest.load(tmp_path)


def values():
    """Draw any JSON, values of the right kind among it."""
    leaves = (
        strategies.none()
        | strategies.booleans()
        | strategies.integers()
        | strategies.integers(-1, 4)
        | strategies.floats()
        | strategies.text()
        | strategies.sampled_from(
            [*FILES, "..", "/", "int8", "left", "regression", "input_ids", "multi_label_classification"]
        )
    )
    return strategies.recursive(
        leaves,
        lambda inner: strategies.lists(inner, max_size=4) | strategies.dictionaries(leaves.map(str), inner, max_size=4),
    )


VALUES = values()  # making the strategy takes longer than drawing from it


@pytest.fixture(scope="module")
def export(exported_folder, tmp_path_factory):
    return shutil.copytree(exported_folder, tmp_path_factory.mktemp("fuzzed") / "onnx")


@pytest.mark.slow
@hypothesis.settings(max_examples=800)
@hypothesis.given(data=strategies.data())
def test_whatever_a_manifest_holds_it_loads_or_is_refused(export, exported_folder, data):
    """One or two fields hold anything, with a fingerprint that fits: nothing but an InputError is raised."""
    content = json.loads((exported_folder / "exported.json").read_text())
    names = strategies.lists(strategies.sampled_from(sorted(content)), min_size=1, max_size=2, unique=True)
    for name in data.draw(names):
        mutation = data.draw(strategies.sampled_from(["replace", "drop", "shuffle"]))
        if mutation == "drop":
            content.pop(name, None)
        elif mutation == "shuffle" and isinstance(content.get(name), list):
            content[name] = data.draw(strategies.lists(strategies.sampled_from(content[name]), max_size=4))
        else:
            content[name] = data.draw(VALUES)
    write_manifest(export, content)
    with suppress(InputError):
        load_model(export, threads=1).tokenize(Texts(["good film"]))
