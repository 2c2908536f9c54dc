"""`import exitpoll` and modules that need no model do not import torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import exitpoll

TRAINING_ONLY = ["exitpoll.training", "pandas", "sklearn", "torchvision", "transformers.trainer"]


def imported_with(code: str) -> set[str]:
    """Return the modules that some code imports, in a new process."""
    listing = f"import sys; before = set(sys.modules); {code}; print(*set(sys.modules) - before)"
    result = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_importing_exitpoll_imports_the_standard_library_alone():
    packages = {name.partition(".")[0] for name in imported_with("import exitpoll")}
    assert packages <= {*sys.stdlib_module_names, "exitpoll"}


@pytest.mark.parametrize(
    "module", ["exitpoll.data.splits", "exitpoll.training.methods", "exitpoll.decide.policy", "exitpoll.cli.run"]
)
def test_needs_neither_torch_nor_transformers(module):
    assert not {"torch", "transformers"} & imported_with(f"import {module}")


def test_deciding_needs_numpy_alone():
    assert not {"scipy", "sklearn"} & imported_with("from exitpoll import Policy, Trace")


@pytest.mark.parametrize("name", exitpoll.__all__)
def test_every_public_name_loads(name):
    assert getattr(exitpoll, name) is not None


@pytest.mark.parametrize(
    ("first", "unwanted"),
    [
        ("exitpoll.models.config", []),
        ("exitpoll.engine.torch_runtime", TRAINING_ONLY),
        ("exitpoll.training.train", []),
    ],
)
def test_may_be_imported_first(first, unwanted):
    """Registering with transformers causes no import cycle; what only training needs is left to training."""
    assert not set(unwanted) & imported_with(f"import {first}")


def test_public_names_are_listed():
    assert set(dir(exitpoll)) == set(exitpoll.__all__) == {*exitpoll._HOMES, "__version__"}


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        exitpoll.nonsense  # noqa: B018
