"""A strategy, metric, objective, method, task or encoder family is one row in one table, and shows up everywhere.

A module that is not part of exitpoll adds one of each; the command line is then run as a user would run it.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModel

from tests.tiny import tiny_tokenizer, toy_rows

ROOT = Path(__file__).parents[1]
EXTRA = '''
"""One row in every table."""

import numpy as np

from exitpoll.data.tasks import TASKS, Task
from exitpoll.decide import thresholds
from exitpoll.decide.metrics import METRICS, SINGLE_LABEL, Metric
from exitpoll.decide.numerics import softmax
from exitpoll.decide.formulas import Opinion
from exitpoll.decide.strategies import STRATEGIES, Strategy
from exitpoll.training.methods import METHODS, Method
from exitpoll.training.objectives import OBJECTIVES, Objective


def least_doubt(logits):
    p = softmax(logits)
    return Opinion(1 - np.sort(p, axis=-1)[..., -2], p.argmax(axis=-1))


def counts(gold, answers, classes):
    return np.stack([np.ones(len(gold)), gold != answers], axis=-1)


def bind(settings, problem_type):
    from exitpoll.models.losses import relevancy

    return lambda logits, labels: relevancy(logits, labels, problem_type=problem_type) / logits.shape[1]


STRATEGIES["least_doubt"] = Strategy(least_doubt, "one minus the second highest probability", grid=thresholds.shares)
METRICS["minus_errors"] = Metric(counts, lambda sums: -sums[..., 1] / sums[..., 0], (SINGLE_LABEL,))
OBJECTIVES["mean_relevancy"] = Objective(bind)
METHODS["doubtful"] = Method("mean_relevancy", "joint", "least_doubt", paper="Nobody (2026)")
TASKS["toy_task"] = Task("nobody/toy", metric="minus_errors")
'''
FAMILY = """
from exitpoll.models.encoders import FAMILIES

FAMILIES["data2vec-text"] = FAMILIES["roberta"]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The module, an encoder of a family that exitpoll does not know, and data named like the new task."""
    folder = tmp_path_factory.mktemp("extension")
    (folder / "extra.py").write_text(EXTRA)
    (folder / "family.py").write_text(FAMILY)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    config = AutoConfig.for_model("data2vec-text", vocab_size=60, max_position_embeddings=42, pad_token_id=1, **sizes)
    AutoModel.from_config(config).save_pretrained(folder / "encoder")
    tiny_tokenizer().save_pretrained(folder / "encoder")
    (folder / "toy_task").mkdir()
    for split, size in {"train": 120, "dev": 60, "test": 30}.items():
        with (folder / "toy_task" / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *toy_rows(size, seed=size)])
    return folder


@pytest.fixture
def exitpoll(place):
    """Run the command line after importing the module."""

    def run(*arguments, family=False):
        modules = "import extra, family" if family else "import extra"
        code = f"{modules}; from exitpoll.cli.main import main; main()"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), *sys.path]), "COLUMNS": "200"}
        command = [sys.executable, "-c", code, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=place, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_help_lists_them(exitpoll):
    helped = {verb: exitpoll(verb, "--help") for verb in ("train", "sweep", "calibrate")}
    for verb, name in [
        *[("train", name) for name in ("doubtful", "mean_relevancy", "least_doubt", "toy_task")],
        *[("sweep", name) for name in ("least_doubt", "minus_errors")],
        *[("calibrate", name) for name in ("least_doubt", "minus_errors")],
    ]:
        assert name.replace("_", "-") in helped[verb].replace("_", "-"), (verb, name)


def test_they_are_trained_swept_and_calibrated(exitpoll, place):
    train = ("train", "--encoder", "encoder", "--data", "toy_task", "--method", "doubtful", "--out", "model")
    exitpoll(*train, "--epochs", 1, "--logs-per-epoch", 1, family=True)
    summary = json.loads((place / "model" / "training.json").read_text())
    assert summary["settings"]["objective"] == "mean_relevancy"
    assert summary["settings"]["strategy"] == "least_doubt"
    assert summary["metric"] == "minus_errors"
    exitpoll("record", "model", "--data", "toy_task", "--out", "trace", family=True)
    swept = exitpoll("sweep", "trace", "--out", "sweep")
    assert "least_doubt" in swept
    assert "minus_errors" in swept
    exitpoll("calibrate", "model", "--trace", "trace", "--strategy", "least_doubt", "--speedup", 1.2, family=True)
    policy = json.loads((place / "model" / "policy.json").read_text())
    assert policy["strategy"] == "least_doubt"
    assert policy["certificate"]["metric"] == "minus_errors"
