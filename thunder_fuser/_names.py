"""Public names of the package, each imported when it is first used.

`import thunder_fuser` then costs a millisecond instead of the seconds of torch and Thunder, and a
public name may be that of a submodule: `thunder_fuser.executor` is the executor, not the folder.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType


class _Name:
    """One public name, found in the module `home` under the same name.

    A data descriptor of the package's class wins over the package's own attributes.  That matters
    because importing a submodule stores it in the package, here over a public name.
    """

    def __init__(self, name: str, home: str) -> None:
        self._name = name
        self._home = home

    def __get__(self, package: ModuleType | None, owner: type) -> object:
        if package is None:
            return self
        return getattr(importlib.import_module(self._home), self._name)

    def __set__(self, package: ModuleType, value: object) -> None:
        if not isinstance(value, ModuleType):
            raise AttributeError(f"{package.__name__}.{self._name} cannot be replaced")


def export(package: str, homes: Mapping[str, str]) -> None:
    """Give `package` the names in `homes`, each from the module that it maps to."""
    module = sys.modules[package]
    names = {name: _Name(name, home) for name, home in homes.items()}
    everything = sorted({*vars(module), *homes})
    module.__class__ = type("Package", (ModuleType,), {**names, "__dir__": lambda _: everything})
    vars(module)["__all__"] = list(homes)
