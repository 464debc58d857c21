"""The standard library's own Python versions of C functions, for Thunder to interpret.

`heapq.heappush(costs, cost)` changes a list behind the back of Thunder's interpreter, which follows
the elements of lists and dictionaries, and `operator.lt(a, b)` calls a method behind it. Python's
modules define such functions in Python, too, for interpreters without the C module.
"""

from __future__ import annotations

import bisect
import builtins
import heapq
import operator
from collections.abc import Callable, Mapping
from importlib.abc import InspectLoader
from types import BuiltinFunctionType, ModuleType
from typing import Any

_NAMES: Mapping[ModuleType, tuple[str, ...]] = {
    heapq: (
        *("heapify", "heappop", "heappush", "heappushpop", "heapreplace"),
        *("_heapify_max", "_heappop_max", "_heapreplace_max"),
    ),
    bisect: ("insort_left", "insort_right", "bisect_left", "bisect_right"),
    operator: tuple(
        name for name in operator.__all__ if isinstance(vars(operator)[name], BuiltinFunctionType)
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
