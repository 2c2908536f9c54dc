from __future__ import annotations

import functools
import os
import signal
import sys
from types import SimpleNamespace

# Tests never use the network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # in processes that tests start too: threads only slow tiny tensors down
os.environ.pop("COLUMNS", None)  # the width of the terminal is for tests to set

import hypothesis
import pytest
import torch
from torch.onnx._internal.exporter._registration import ONNXRegistry

from exitpoll import EarlyExitModel, TrainingSettings, train
from exitpoll.cli.main import main
from exitpoll.export import graphs
from exitpoll.export.join import join_parts
from exitpoll.models.tokenizer import load_tokenizer
from tests.exports import TinyModel
from tests.tiny import save_tiny, tiny_tokenizer, toy_splits, toy_texts

# No deadlines, so that a busy machine fails no test; derandomized, so that a test fails always or never.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("steady")
torch.set_num_threads(1)
# The exporter lists all its operators again for every graph, which takes longer than translating a tiny graph.
ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))


# What takes long as a whole: `make test-fast` leaves it out. Single tests elsewhere are marked one by one.
SLOW = (
    *(
        "tests/benchmark",
        "tests/cli",
        "tests/cluster",
        "tests/docs",
        "tests/examples",
        "tests/export",
        "tests/laws",
        "tests/report",
    ),
    *("tests/study", "tests/training/test_train.py", "tests/test_estimator.py", "tests/test_extension.py", "tests/web"),
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)


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
def trained_export(tmp_path_factory, model_folder):
    """The export of that model: its folder, the files that were translated for it, and the progress reported."""
    folder = tmp_path_factory.mktemp("graphs") / "onnx"
    folder.mkdir()
    translate, translated, progress = graphs._translate, [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "_translate", lambda spec: translated.append(spec.file) or translate(spec))
        model, tokenizer = EarlyExitModel.from_pretrained(model_folder), load_tokenizer(model_folder)
        graphs.export_graphs(model, tokenizer, folder, on_progress=progress.append)
    return SimpleNamespace(folder=folder, translated=translated, progress=progress)


@pytest.fixture(scope="session")
def graphs_folder(trained_export):
    """That model, exported in float32, its layers in separate files."""
    return trained_export.folder


@pytest.fixture(scope="session")
def exported_folder(tmp_path_factory, graphs_folder):
    """That model, exported in float32."""
    folder = tmp_path_factory.mktemp("exported") / "onnx"
    folder.mkdir()
    join_parts(graphs_folder, folder, None, toy_texts(8, 1))
    return folder


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory):
    """A function that makes a tiny model of a family, and its export on request, once in a session.

    With options, or where another model is named that its encoder is `like`, only the heads are translated.
    """

    @functools.cache
    def make(name, like=None, **options):
        base = make(like or name) if like or options else None
        return TinyModel(tmp_path_factory.mktemp("tiny"), name, base=base, **options)

    return make


@pytest.fixture
def run(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["exitpoll", *map(str, arguments)])
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        code: str | int | None = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def inert_package(tmp_path, monkeypatch):
    """A function that makes a package whose code must not run, and returns its folder."""

    def make(name):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text("raise SystemExit('this must not run')")
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(tmp_path)
        return folder

    return make


@pytest.fixture
def refused(run):
    """Check that a command is refused with one line on stderr, exit code 2 and nothing on stdout."""

    def check(message, *arguments):
        code, printed, err = run(*arguments)
        assert code == 2
        assert printed == ""
        assert message in err
        assert "unexpected" not in err  # as a crash is named
        assert err.startswith("exitpoll: ")
        assert err.count("\n") == 1

    return check
