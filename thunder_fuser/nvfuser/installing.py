"""One line that makes `import nvfuser` and `import nvfuser_direct` mean this compiler."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from thunder_fuser.errors import FuserError

_ALIASES = {"nvfuser": "nvfuser_version", "nvfuser_direct": "nvfuser_direct_version"}
"""The modules, and the submodule of each that has its version."""


def install_as_nvfuser(*, shadow: bool = False) -> None:
    """From now on, in this process, `nvfuser` and `nvfuser_direct` are `thunder_fuser.nvfuser`.

    An nvFuser that is installed is never hidden, unless `shadow` asks for it: FuserError. Call it
    before the script's own imports. Thunder is imported first: it looks for nvFuser at that moment,
    and would take this compiler for it.
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
    """FuserError if another module has the name, imported or not."""
    found = sys.modules.get(name)
    if found is package:
        return
    if found is None and importlib.util.find_spec(name) is None:
        return
    raise FuserError(
        f"install_as_nvfuser: {name} is installed here and stays what it is; pass shadow=True to "
        "hide it in this process, or import from thunder_fuser.nvfuser"
    )
