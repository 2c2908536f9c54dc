"""Register exitpoll with the Auto classes of transformers, so that they and pipelines load exitpoll model folders.

ExitConfig and EarlyExitModel register themselves when their modules are imported. `import exitpoll` does not import
transformers: it installs an import hook, which imports these modules right after those they register with.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

_MODULES = {  # module of transformers -> the module of exitpoll to import after it
    "transformers.models.auto.configuration_auto": "exitpoll.models.config",
    "transformers.models.auto.modeling_auto": "exitpoll.models.model",
}


class _AfterImport:  # a MetaPathFinder, whose module takes long to import
    """Imports a module of exitpoll right after the module of transformers that it registers with."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as Python would without this hook, and extend its loader."""
        if name not in _MODULES:
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
                import_module(_MODULES[name])

            spec.loader.exec_module = execute_both  # type: ignore[method-assign]
        return spec


def register_when_imported() -> None:
    """Register with transformers: now if it is imported already, otherwise as soon as it is."""
    for imported, registering in _MODULES.items():
        if imported in sys.modules:
            import_module(registering)
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
