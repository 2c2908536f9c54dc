"""What tests of the command line share: a model with its data and traces."""

from __future__ import annotations

import shutil

import pytest

from exitpoll.cli.app import app
from tests.tiny import toy_rows, write_toy_folder, write_tsv


@pytest.fixture(scope="session")
def recorded(tmp_path_factory, model_folder):
    """A folder with toy data, a copy of the model and traces that the verb wrote; tests only read it."""
    folder = tmp_path_factory.mktemp("recorded")
    for name, count, seed in (("train", 40, 1), ("dev", 300, 2), ("test", 120, 3)):
        rows = [(*row, "short" if len(row[0]) < 25 else "long") for row in toy_rows(count, seed)]
        write_tsv(folder / "data" / f"{name}.tsv", rows, ("text", "label", "length"))
    shutil.copytree(model_folder, folder / "model")
    for split in ("calibration", "test"):
        words = ["--data", str(folder / "data"), "--split", split, "--out", str(folder / f"{split}.safetensors")]
        app(["record", str(folder / "model"), *words], exit_on_error=False, result_action="return_value")
    return folder


@pytest.fixture
def model(recorded, tmp_path):
    """A copy of the model, to be calibrated."""
    return shutil.copytree(recorded / "model", tmp_path / "model")


@pytest.fixture
def data(tmp_path):
    return write_toy_folder(tmp_path / "data")
