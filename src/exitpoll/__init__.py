"""exitpoll: text classifiers that stop reading as soon as the poll of their layers is clear.

Public names load on first use, so that `import exitpoll` and the decision half never import torch. Importing exitpoll
also makes transformers' Auto classes and pipelines know our folders, as soon as transformers itself is imported.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exitpoll.decide.calibrate import calibrate
    from exitpoll.models.config import ExitConfig
    from exitpoll.decide.sweep import Curve, sweep
    from exitpoll.data.splits import Splits, Texts, load_splits
    from exitpoll.decide.decisions import Decisions
    from exitpoll.engine.engine import Engine, Prediction
    from exitpoll.errors import InputError
    from exitpoll.decide.evaluate import Evaluation, evaluate
    from exitpoll.training.methods import METHODS, TrainingSettings
    from exitpoll.models.model import EarlyExitModel, EarlyExitOutput
    from exitpoll.engine.loading import open_model
    from exitpoll.decide.policy import Policy
    from exitpoll.engine.record import record
    from exitpoll.decide.trace import Trace
    from exitpoll.training.train import Trained, train

__version__ = version("exitpoll")

_HOMES = {
    "METHODS": "methods",
    "Curve": "curves",
    "Decisions": "decisions",
    "EarlyExitModel": "model",
    "EarlyExitOutput": "model",
    "Engine": "engine",
    "Evaluation": "evaluation",
    "ExitConfig": "config",
    "InputError": "errors",
    "Policy": "policy",
    "Prediction": "engine",
    "Splits": "data",
    "Texts": "data",
    "Trace": "trace",
    "Trained": "training",
    "TrainingSettings": "methods",
    "calibrate": "calibration",
    "evaluate": "evaluation",
    "load_splits": "data",
    "open_model": "opening",
    "record": "recording",
    "sweep": "curves",
    "train": "training",
}

__all__ = [
    "METHODS",
    "Curve",
    "Decisions",
    "EarlyExitModel",
    "EarlyExitOutput",
    "Engine",
    "Evaluation",
    "ExitConfig",
    "InputError",
    "Policy",
    "Prediction",
    "Splits",
    "Texts",
    "Trace",
    "Trained",
    "TrainingSettings",
    "__version__",
    "calibrate",
    "evaluate",
    "load_splits",
    "open_model",
    "record",
    "sweep",
    "train",
]


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'exitpoll' has no attribute '{name}'")
    value = getattr(import_module(f"exitpoll.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return __all__


def _register_with_transformers() -> None:
    """Let transformers' Auto classes, and with them pipelines, load our folders, as soon as it is imported."""
    from wrapt import when_imported

    when_imported("transformers.models.auto.configuration_auto")(lambda _: import_module("exitpoll.models.config"))
    when_imported("transformers.models.auto.modeling_auto")(lambda _: import_module("exitpoll.models.model"))


if find_spec("transformers") is not None:  # an exported model runs without
    _register_with_transformers()
