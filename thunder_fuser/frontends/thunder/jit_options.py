"""Compile options of `thunder.jit` that the executor reads, validated.

Thunder passes keyword arguments that it does not know through as compile options:
`thunder.jit(fn, memory_budget=.5)`.
"""

from __future__ import annotations

import warnings

from thunder.core.compile_data import get_compile_data, get_compile_option

from thunder_fuser.errors import FuserValueError


def may_reorder() -> bool:
    """True unless `fusion_type="consecutive"` demands that symbols run in trace order."""
    asked = get_compile_option("fusion_type", "Which order symbols may be fused in")
    if asked not in (None, "consecutive", "dataflow"):
        raise FuserValueError(
            f'fusion_type of thunder.jit: expected "consecutive" or "dataflow", got {asked!r}'
        )
    return bool(asked != "consecutive")


def saves_like_torch() -> bool:
    """True if `save_like_torch` is set: arguments and results may be modified between forward and
    backward wherever eager code allows it, so they are saved only if autograd would save them.
    """
    asked = get_compile_option("save_like_torch", "Save arguments and results only if torch would")
    if asked not in (None, True, False):
        raise FuserValueError(f"save_like_torch of thunder.jit: expected a bool, got {asked!r}")
    return bool(asked)


def memory_budget() -> int | float | None:
    """Limit on what is saved for backward besides arguments and results: bytes (int), or a share of
    what is saved without a limit (float from 0 to 1); None if not set.
    """
    asked = get_compile_option(
        "memory_budget", "Bytes that are saved for backward (an int), or a share of them (a float)"
    )
    if asked is None:
        return None
    is_share = isinstance(asked, float) and 0 <= asked <= 1
    if not is_share and (isinstance(asked, bool) or not isinstance(asked, int) or asked < 0):
        raise FuserValueError(
            "memory_budget of thunder.jit: expected bytes, as an int that is not negative, or a "
            f"share of what is saved without one, as a float from 0 to 1, got {asked!r}"
        )
    found: int | float = asked
    return found


_told: set[str] = set()
"""nvFuser options that a warning was already given for."""


def warn_of_nvfusers(name: str) -> None:
    """Warn, once for each option, of `nv_...` options if nvFuser is not in the executors list."""
    data = get_compile_data()
    if data is None or any(e.name == "nvfuser" for e in data.executors_list):
        return
    given = {option for option in data.compile_options if option.startswith("nv_")} - _told
    if given:
        _told.update(given)
        warnings.warn(
            f"{', '.join(sorted(given))}: an option of Thunder's nvFuser executor, without effect "
            f"on {name}; thunder_fuser.fusions(fn) shows each fusion, its repro() and its refusals",
            UserWarning,
            stacklevel=2,
        )
