"""exitpoll: early exits for text classifiers, with a guarantee.

Public names load on first use, so that `import exitpoll` and the decision half never import torch. Importing exitpoll
also lets transformers' Auto classes and pipelines load exitpoll's model folders.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exitpoll.adoption.adopt import adopt
    from exitpoll.data.splits import Splits, Texts, load_splits
    from exitpoll.decide.calibrate import calibrate
    from exitpoll.decide.certificate import Certificate, Guarantee
    from exitpoll.decide.decisions import Decisions
    from exitpoll.decide.evaluate import Evaluation, evaluate
    from exitpoll.decide.monitor import Monitor
    from exitpoll.decide.policy import Policy
    from exitpoll.decide.sweep import Curve, sweep
    from exitpoll.decide.trace import Trace
    from exitpoll.engine.engine import Engine, Prediction
    from exitpoll.engine.explain import Explanation
    from exitpoll.engine.loading import load_model
    from exitpoll.engine.loading import load_model as open_model
    from exitpoll.engine.pipeline import pipeline
    from exitpoll.engine.record import record
    from exitpoll.errors import InputError
    from exitpoll.estimator import ExitClassifier
    from exitpoll.models.config import ExitConfig
    from exitpoll.models.model import EarlyExitModel, EarlyExitOutput
    from exitpoll.training.methods import METHODS
    from exitpoll.training.settings import TrainingSettings
    from exitpoll.training.train import Trained, train

    __version__: str

_HOMES = {  # public name -> the module that defines it, and its name there if that is another
    "METHODS": "training.methods",
    "Certificate": "decide.certificate",
    "Curve": "decide.sweep",
    "Decisions": "decide.decisions",
    "EarlyExitModel": "models.model",
    "EarlyExitOutput": "models.model",
    "Engine": "engine.engine",
    "Evaluation": "decide.evaluate",
    "ExitClassifier": "estimator",
    "ExitConfig": "models.config",
    "Explanation": "engine.explain",
    "Guarantee": "decide.certificate",
    "InputError": "errors",
    "Monitor": "decide.monitor",
    "Policy": "decide.policy",
    "Prediction": "engine.engine",
    "Splits": "data.splits",
    "Texts": "data.splits",
    "Trace": "decide.trace",
    "Trained": "training.train",
    "TrainingSettings": "training.settings",
    "adopt": "adoption.adopt",
    "calibrate": "decide.calibrate",
    "evaluate": "decide.evaluate",
    "load_model": "engine.loading",
    "load_splits": "data.splits",
    "open_model": "engine.loading:load_model",
    "pipeline": "engine.pipeline",
    "record": "engine.record",
    "sweep": "decide.sweep",
    "train": "training.train",
}

__all__ = [
    "METHODS",
    "Certificate",
    "Curve",
    "Decisions",
    "EarlyExitModel",
    "EarlyExitOutput",
    "Engine",
    "Evaluation",
    "ExitClassifier",
    "ExitConfig",
    "Explanation",
    "Guarantee",
    "InputError",
    "Monitor",
    "Policy",
    "Prediction",
    "Splits",
    "Texts",
    "Trace",
    "Trained",
    "TrainingSettings",
    "__version__",
    "adopt",
    "calibrate",
    "evaluate",
    "load_model",
    "load_splits",
    "open_model",
    "pipeline",
    "record",
    "sweep",
    "train",
]


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use, and the version, which takes as long as all else here."""
    if name == "__version__":
        from importlib.metadata import version

        return version("exitpoll")
    if name not in _HOMES:
        raise AttributeError(f"module 'exitpoll' has no attribute '{name}'")
    module, _, original = _HOMES[name].partition(":")
    value = getattr(import_module(f"exitpoll.{module}"), original or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return __all__


if find_spec("transformers") is not None:  # an exported model runs without it
    from exitpoll.models.auto_classes import register_when_imported

    register_when_imported()
