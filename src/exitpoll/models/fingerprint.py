"""The fingerprint of a model: a hash of its weights, which traces, policies and exports name."""

from __future__ import annotations

import hashlib

import torch

from exitpoll.models.model import EarlyExitModel


def fingerprint_of(model: EarlyExitModel) -> str:
    """Hash the weights of a model.

    Args:
        model: The model.

    Returns:
        16 hexadecimal digits, the same wherever the weights are kept.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def runtime_name(dtype: torch.dtype) -> str:
    """Return the name of the torch runtime for weights of a type, as traces and policies state it."""
    return f"torch {str(dtype).removeprefix('torch.')}"
