"""Registration with Thunder as soon as both packages are imported, in either order.

It provides `thunder.jit(f, executors=["thunder_fuser"])`, and the plugin and recipe of this name.
Importing this package does not import Thunder, which takes seconds: if this package is imported
first, an import hook (meta path finder) registers it when Thunder is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_HOST = "thunder"
_REGISTERS = "thunder_fuser.frontends.thunder"
"""Module whose import registers the executor. It imports Thunder if nothing did before."""


def register_with_thunder() -> None:
    """Register now, or when Thunder is imported."""
    host = sys.modules.get(_HOST)
    spec = getattr(host, "__spec__", None)
    if host is not None and not getattr(spec, "_initializing", False):
        _register()
    elif host is None:
        sys.meta_path.insert(0, _Finder())


def _register() -> None:
    try:
        importlib.import_module(_REGISTERS)
    except Exception as error:
        warnings.warn(
            f"thunder_fuser is not registered with Thunder: {type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=3,
        )


class _Finder(MetaPathFinder):
    """One-shot meta path finder for Thunder that wraps its loader in `_ThenRegister`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _HOST:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader)
        return spec


class _ThenRegister(Loader):
    """Loader that delegates to the module's own loader and then registers the executor."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _register()
