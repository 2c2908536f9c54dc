"""The device that a model runs on."""

from __future__ import annotations

import torch

from exitpoll.errors import InputError

AUTO = "auto"


def choose_device(name: str) -> torch.device:
    """Return a device by its name, if it can be used.

    Args:
        name: As torch names devices: "cpu", "cuda", "cuda:1", "mps", …; "auto" is a GPU of CUDA where there is one,
            else the CPU.

    Returns:
        The device.
    """
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device '{name}': torch {torch.__version__} finds no GPU of CUDA here; use 'auto' or 'cpu'")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device '{name}' cannot be used: {error}") from error
    return device
