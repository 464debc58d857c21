"""The standard library's own Python versions of C functions that change what they are given.

`heapq.heappush(costs, cost)` changes a list behind the back of Thunder's interpreter, which follows
the elements of lists and dictionaries. Python's modules define such functions in Python, too, for
interpreters without the C module: these are interpreted.
"""

from __future__ import annotations

import bisect
import builtins
import heapq
import operator
from collections.abc import Callable, Mapping
from importlib.abc import InspectLoader
from types import ModuleType
from typing import Any

_NAMES: Mapping[ModuleType, tuple[str, ...]] = {
    heapq: (
        *("heapify", "heappop", "heappush", "heappushpop", "heapreplace"),
        *("_heapify_max", "_heappop_max", "_heapreplace_max"),
    ),
    bisect: ("insort_left", "insort_right"),
    operator: (
        *("setitem", "delitem", "iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imatmul"),
        *("imod", "imul", "ior", "ipow", "irshift", "isub", "itruediv", "ixor"),
    ),
}


def python_versions() -> dict[Any, Callable[..., Any]]:
    """Return the C functions, and of each the Python version."""
    found: dict[Any, Callable[..., Any]] = {}
    for module, names in _NAMES.items():
        defined = _without_c(module)
        # Later Pythons have other private names.
        found |= {getattr(module, n): defined[n] for n in names if hasattr(module, n)}
    return found


def _without_c(module: ModuleType) -> dict[str, Any]:
    """Return the names in a module that finds no C module of its name; those of the module itself
    where its code is not at hand.
    """

    def imported(name: str, *args: Any) -> ModuleType:
        if name == f"_{module.__name__}":
            raise ImportError(name)
        return builtins.__import__(name, *args)

    loader = module.__spec__ and module.__spec__.loader
    code = loader.get_code(module.__name__) if isinstance(loader, InspectLoader) else None
    space = {**vars(module), "__builtins__": {**vars(builtins), "__import__": imported}}
    if code is not None:
        exec(code, space)
    space["__builtins__"] = builtins
    return space
