"""The same verbs on Ray: prediction in shards, searches and reproductions, and serving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exitpoll.cluster.pipeline import Predictor as Predictor
    from exitpoll.cluster.serving import deployment as deployment

__all__ = ["Predictor", "deployment"]
_HOMES = {"Predictor": "pipeline", "deployment": "serving"}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
