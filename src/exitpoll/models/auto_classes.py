"""Let transformers' Auto classes, and with them pipelines, load exitpoll's folders, without importing transformers.

Our configuration and model register themselves when their modules are imported. That import must wait until
transformers' own tables exist, and must not be forgotten by whoever only writes `import exitpoll`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

_OURS = {  # module of transformers -> the module of ours to import behind it
    "transformers.models.auto.configuration_auto": "exitpoll.models.config",
    "transformers.models.auto.modeling_auto": "exitpoll.models.model",
}


class _AfterImport(MetaPathFinder):
    """Imports a module of ours right after the module of transformers that it registers with."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as Python would without us, and add to its loader."""
        if name not in _OURS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_both(module: ModuleType) -> None:
                execute(module)
                import_module(_OURS[name])

            spec.loader.exec_module = execute_both  # type: ignore[method-assign]
        return spec


def register_when_imported() -> None:
    """Register with transformers now where it is imported already, and as soon as it is imported otherwise."""
    for theirs, ours in _OURS.items():
        if theirs in sys.modules:
            import_module(ours)
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
