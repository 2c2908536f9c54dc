"""exitpoll bench: a table, and files if a folder is named."""

from __future__ import annotations

import json
import sys

import pytest

from exitpoll import Policy


@pytest.fixture
def arguments(model, recorded):
    """A model with a policy, and few texts."""
    Policy("max_prob", 0.5).save(model / "policy.json")
    return [model, "--data", recorded / "data", "--rounds", "1", "--batch-sizes", "4", "--texts", "12"]


def test_files_are_written_to_a_folder(run, arguments, tmp_path):
    code, out, err = run("bench", *arguments, "--out", tmp_path / "out")
    assert code == 0, err
    assert "plain transformers" in out
    assert "wall-clock speed-up over plain transformers" in " ".join(out.split())
    assert f"wrote bench.json and bench.png to {tmp_path / 'out'}" in out
    content = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert (content["texts"], content["about"]["split"]) == (12, "test")
    assert (tmp_path / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib(run, arguments, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run("bench", *arguments, "--out", tmp_path / "out")
    assert code == 0, err
    assert "no figure: drawing figures needs more packages" in out
    assert f"wrote bench.json to {tmp_path / 'out'}" in out


def test_no_texts_are_refused(refused, arguments):
    refused("texts 0 must be at least 1", "bench", *arguments[:-1], "0")
