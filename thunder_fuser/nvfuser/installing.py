"""`install_as_nvfuser`: make `import nvfuser` and `import nvfuser_direct` import this compiler."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from thunder_fuser.errors import FuserError

_ALIASES = {"nvfuser": "nvfuser_version", "nvfuser_direct": "nvfuser_direct_version"}
"""nvFuser's modules, and the version submodule of each."""


def install_as_nvfuser(*, shadow: bool = False) -> None:
    """Alias `nvfuser` and `nvfuser_direct` to `thunder_fuser.nvfuser` in this process.

    shadow  also replace an installed nvFuser; without it, FuserError is raised if there is one

    Call it before importing nvFuser. Thunder is imported first: it looks for nvFuser at import, and
    would take this compiler for it.
    """
    package = importlib.import_module("thunder_fuser.nvfuser")
    importlib.import_module("thunder.executors.nvfuserex")
    if not shadow:
        for name in _ALIASES:
            _check_is_free(name, package)
    for name, versions in _ALIASES.items():
        sys.modules[name] = package
        sys.modules[f"{name}.pytorch_utils"] = package.pytorch_utils
        sys.modules[f"{name}.multidevice"] = package.multidevice
        sys.modules[f"{name}.{versions}"] = package.versions
        setattr(package, versions, package.versions)


def _check_is_free(name: str, package: ModuleType) -> None:
    """Raise FuserError if another module of this name exists, imported or not."""
    found = sys.modules.get(name)
    if found is package:
        return
    if found is None and importlib.util.find_spec(name) is None:
        return
    raise FuserError(
        f"install_as_nvfuser: {name} is installed here and stays what it is; pass shadow=True to "
        "hide it in this process, or import from thunder_fuser.nvfuser"
    )
