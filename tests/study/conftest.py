"""Toy data of three tasks, a cache of runs and a plan; a cache is shared by the tests of a file."""

from __future__ import annotations

import pytest

from exitpoll import TrainingSettings
from exitpoll.study.plan import Plan
from tests.tiny import write_toy_folder

FAST = TrainingSettings(epochs=1, logs_per_epoch=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name in ("trec", "rte", "snli"):
        write_toy_folder(folder / name, train=96, others=48)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("out") / "runs"


@pytest.fixture
def plan(data, encoder_folder):
    return Plan(str(encoder_folder), layers=3, data=str(data), tasks=["trec"], settings=FAST)


def hide_labels(folder):
    """Remove the labels of a task's test split, as GLUE does."""
    lines = (folder / "test.tsv").read_text().splitlines()
    (folder / "test.tsv").write_text("\n".join(line.rsplit("\t", 1)[0] for line in lines) + "\n")
    return len(lines) - 1
