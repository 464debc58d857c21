"""Whether patches of Thunder apply: to functions compiled with this executor, and to no others."""

from __future__ import annotations

from thunder.core.compile_data import get_compile_data


def is_patched() -> bool:
    """True while Thunder compiles a function with an executor that has `patches_thunder`."""
    data = get_compile_data()
    executors = data.executors_list if data is not None else ()
    return any(getattr(executor, "patches_thunder", False) for executor in executors)
