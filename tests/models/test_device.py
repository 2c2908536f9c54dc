"""The device is the one that was asked for, a GPU where there is one, or an error that says what to do."""

from __future__ import annotations

import pytest
import torch

from exitpoll import Engine, InputError, load_model
from exitpoll.models.device import choose_device


def test_auto_is_a_gpu_where_there_is_one(monkeypatch):
    for is_available, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_available=is_available: is_available)
        assert choose_device("auto") == torch.device(expected)


def test_the_device_is_passed_through(model_folder, exported_folder, monkeypatch):
    moved = []
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, device: moved.append(str(device)) or self)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for device in ("auto", "cpu"):
        load_model(model_folder, device=device)
    assert moved == ["cuda", "cpu"]
    assert load_model(exported_folder, device="auto").runtime.device == "cpu"


def test_devices_that_cannot_be_used(model_folder, exported_folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", "cuda:1"):
        with pytest.raises(InputError, match=f"device '{device}': torch .* finds no GPU of CUDA here; use 'auto' or"):
            Engine.load(model_folder, device=device)
    for device in ("gpu", "", "meta", "cpu:x"):
        with pytest.raises(InputError, match=f"device '{device}' cannot be used: "):
            Engine.load(model_folder, device=device)
    with pytest.raises(InputError, match="device 3 must be a string, such as 'cpu' or 'cuda'"):
        Engine.load(model_folder, device=3)
    with pytest.raises(InputError, match="is for ONNX Runtime on the CPU; device 'cuda' needs a trained folder"):
        Engine.load(exported_folder, device="cuda")
