from __future__ import annotations

import functools
import os
import shutil
import sys

# Tests never use the network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

import hypothesis
import pytest
import torch
from torch.onnx._internal.exporter._registration import ONNXRegistry

from exitpoll import EarlyExitModel, TrainingSettings, train
from exitpoll.cli.main import main
from exitpoll.export.graphs import export
from exitpoll.export.merge import assemble
from exitpoll.models.tokenizer import load_tokenizer
from tests.tiny import save_tiny, tiny_tokenizer, toy_splits

# No deadlines, so that a busy machine fails no test; derandomized, so that a test fails always or never.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("steady")
torch.set_num_threads(1)  # threads slow tiny tensors down
# The exporter lists all its operators again for every graph, which takes longer than exporting a tiny graph.
ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))


@pytest.fixture(autouse=True)
def denormals():
    """Undo the flushing of denormal numbers, which training turns on for the whole process."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(scope="session")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory):
    return save_tiny("bert", tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="session")
def classifier_folder(tmp_path_factory):
    return save_tiny("bert", tmp_path_factory.mktemp("classifier"), classifier=True)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory, encoder_folder):
    """A tiny trained model."""
    folder = tmp_path_factory.mktemp("trained") / "model"
    splits = toy_splits(train=400)
    torch.manual_seed(0)
    model = EarlyExitModel.from_encoder(encoder_folder, labels=splits.label_names)
    train(model, tiny_tokenizer(), splits, folder, TrainingSettings(epochs=2, logs_per_epoch=1))
    torch.set_flush_denormal(False)
    return folder


@pytest.fixture(scope="session")
def stages_folder(tmp_path_factory, model_folder):
    """The trained model, exported in float32 with one ONNX graph for every layer."""
    folder = tmp_path_factory.mktemp("stages") / "onnx"
    folder.mkdir()
    export(EarlyExitModel.from_pretrained(model_folder), load_tokenizer(model_folder), folder)
    return folder


@pytest.fixture(scope="session")
def exported_folder(tmp_path_factory, stages_folder):
    """The trained model, exported in float32."""
    folder = shutil.copytree(stages_folder, tmp_path_factory.mktemp("exported") / "onnx")
    assemble(folder)
    return folder


@pytest.fixture
def run(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["exitpoll", *map(str, arguments)])
        code: str | int | None = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
