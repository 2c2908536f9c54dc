"""`import exitpoll` and modules that need no model do not import torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import exitpoll


@pytest.mark.parametrize(
    "module",
    ["exitpoll", "exitpoll.data.splits", "exitpoll.training.methods", "exitpoll.decide.policy", "exitpoll.cli.run"],
)
def test_needs_neither_torch_nor_transformers(module):
    code = f"import sys, {module}; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_deciding_needs_numpy_alone():
    code = "import sys; from exitpoll import Policy, Trace; print('sklearn' in sys.modules or 'scipy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("name", exitpoll.__all__)
def test_every_public_name_loads(name):
    assert getattr(exitpoll, name) is not None


@pytest.mark.parametrize(
    "first", ["exitpoll.models.config", "exitpoll.models.model", "exitpoll.training.train", "exitpoll.cli.run"]
)
def test_may_be_imported_first(first):
    """Registering with transformers causes no import cycle, in a new process."""
    subprocess.run([sys.executable, "-c", f"import {first}; from exitpoll import ExitConfig, train"], check=True)


def test_public_names_are_listed():
    assert set(dir(exitpoll)) == set(exitpoll.__all__) == {*exitpoll._HOMES, "__version__"}


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        exitpoll.nonsense  # noqa: B018
