"""Exporting and quantizing keep the exporter and the quantizer quiet, and nothing else in the process."""

from __future__ import annotations

import logging
import threading
import warnings

import pytest
import torch
from torch import nn

from exitpoll.export import graphs
from exitpoll.export.graphs import EXPORTER_LOGGERS, GraphSpec
from exitpoll.export.parts import Part
from exitpoll.export.quantize import with_int8_weights

EXPORTER = "torch.onnx.some.module"


class Noisy(Part):
    """A module during whose translation the exporter and other code log and warn."""

    def __init__(self):
        nn.Module.__init__(self)
        self.eval()

    def forward(self, hidden):
        logging.getLogger(EXPORTER).warning("logged by the exporter")
        logging.getLogger("another").info("logged by other code")
        thread = threading.Thread(target=logging.getLogger("another").warning, args=["logged by another thread"])
        thread.start()
        thread.join()
        warnings.warn_explicit("a warning of the exporter", UserWarning, "x.py", 1, module=EXPORTER)
        warnings.warn_explicit("a warning of other code", UserWarning, "x.py", 1, module="another")
        return 2 * hidden


@pytest.fixture
def messages(caplog):
    """What is logged from INFO on, by torch too, whose messages do not reach the root logger."""
    caplog.set_level(logging.INFO)
    logging.getLogger("torch.onnx").addHandler(caplog.handler)
    yield lambda: set(caplog.messages)
    logging.getLogger("torch.onnx").removeHandler(caplog.handler)


def test_only_the_exporter_is_silenced(messages):
    spec = GraphSpec("x.onnx", Noisy(), {"hidden": (torch.ones(3, 7), torch.ones(5, 11))}, ["doubled"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graphs._translate(spec)
    assert {str(warning.message) for warning in caught} == {"a warning of other code"}
    assert messages() == {"logged by other code", "logged by another thread"}


def test_it_is_silenced_only_while_it_runs(messages):
    logging.getLogger(EXPORTER).warning("before")
    with graphs._quiet_exporter():
        logging.getLogger(EXPORTER).warning("meanwhile")
        logging.getLogger(EXPORTER).error("an error")
    logging.getLogger(EXPORTER).warning("after")
    assert messages() == {"before", "an error", "after"}


def test_levels_are_restored_and_never_lowered(monkeypatch):
    loggers = [logging.getLogger(name) for name in EXPORTER_LOGGERS]
    levels = [logging.CRITICAL, *(logger.level for logger in loggers[1:])]
    monkeypatch.setattr(loggers[0], "level", logging.CRITICAL)
    quiet = graphs._quiet_exporter()
    quiet.__enter__()
    assert [logger.level for logger in loggers] == [logging.CRITICAL, *[logging.ERROR] * (len(loggers) - 1)]
    assert not quiet.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert [logger.level for logger in loggers] == levels


def test_the_quantizer_does_not_warn(graphs_folder, caplog, monkeypatch):
    from onnxruntime import quantization

    original = quantization.quantize_dynamic

    def quantize_dynamic(*arguments, **options):
        logging.getLogger().warning("logged by other code")
        original(*arguments, **options)

    monkeypatch.setattr(quantization, "quantize_dynamic", quantize_dynamic)
    with_int8_weights(graphs_folder / "layer-01.onnx")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "logged by other code"
    ]
