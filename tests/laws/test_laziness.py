"""`import exitpoll` and whatever needs no model must not import torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import exitpoll


@pytest.mark.parametrize("module", ["exitpoll", "exitpoll.data", "exitpoll.methods", "exitpoll.tasks", "exitpoll.cli"])
def test_needs_neither_torch_nor_transformers(module):
    code = f"import sys, {module}; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("name", exitpoll.__all__)
def test_every_public_name_loads(name):
    assert getattr(exitpoll, name) is not None


MODULES = sorted(path.stem for path in Path(exitpoll.__file__).parent.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("code", [f"import exitpoll.{name}" for name in MODULES])
def test_every_module_may_be_imported_first(code):
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_are_listed():
    assert set(dir(exitpoll)) == set(exitpoll.__all__)


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        exitpoll.nonsense  # noqa: B018
