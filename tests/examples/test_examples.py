"""The examples run, on few texts, and print what they say they do."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *arguments):
    """Run an example as a user would, with one thread, and return what it prints."""
    command = [sys.executable, EXAMPLES / name, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The model that the first example trains, and what it prints."""
    folder = tmp_path_factory.mktemp("examples") / "reviews"
    options = ("--texts", "40", "--epochs", "1", "--max-disagreement", "0.2")
    return folder, run("train_and_calibrate.py", "--out", folder, *options)


def test_train_and_calibrate(trained):
    folder, printed = trained
    assert re.search(r"^accuracy of every exit:( \d+\.\d){6}$", printed, flags=re.M)
    assert "| guarantee: " in printed
    assert re.search(r"\d × fewer layers, \d+\.\d % of answers differ", printed)
    assert (folder / "policy.json").exists()


def test_pandas_and_scikit_learn(trained):
    folder, _ = trained
    printed = run("pandas_and_scikit_learn.py", "--model", folder, "--texts", "20")
    assert "label  probability  depth" in printed
    assert "macro avg" in printed
    assert "speed-up in layers" in printed


def test_exits_on_an_existing_classifier(tmp_path):
    printed = run("exits_on_existing_classifier.py", "--out", tmp_path / "mine", "--texts", "100")
    assert "logits at full depth are the same as before: True" in printed
    assert "guarantee: " in printed
    assert len(re.findall(r"^(?:negative|positive) 0\.\d\d after [1-4] layers$", printed, flags=re.M)) == 2


def test_fastapi_app(model_folder):
    create_app = runpy.run_path(str(EXAMPLES / "fastapi_app.py"))["create_app"]
    client = TestClient(create_app(str(model_folder)))
    answers = client.post("/predict", json={"texts": ["a good film", "an awful plot"]})
    assert answers.status_code == 200
    assert [answer["depth"] for answer in answers.json()] == [3, 3]  # without a policy no text exits early
    assert all(answer["label"] in ("bad", "good", "so-so") for answer in answers.json())
    assert client.post("/predict", json={"texts": []}).status_code == 422
    empty = client.post("/predict", json={"texts": ["fine", " "]})
    assert empty.status_code == 422
    assert "text 1 is empty" in empty.json()["detail"]
    assert client.get("/").json()["layers"] == 3


def test_examples_are_short():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 60, path
