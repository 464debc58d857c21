"""Options of `thunder.jit` that the executor reads, checked.

Thunder passes on what its own functions do not take: `thunder.jit(fn, memory_budget=.5)`.
"""

from __future__ import annotations

import warnings

from thunder.core.compile_data import get_compile_data, get_compile_option

from thunder_fuser.errors import FuserValueError


def may_reorder() -> bool:
    """Whether symbols may run in another order than the trace's: unless the user of `thunder.jit`
    asks for the trace's own.
    """
    asked = get_compile_option("fusion_type", "Which order symbols may be fused in")
    if asked not in (None, "consecutive", "dataflow"):
        raise FuserValueError(
            f'fusion_type of thunder.jit: expected "consecutive" or "dataflow", got {asked!r}'
        )
    return bool(asked != "consecutive")


def saves_like_torch() -> bool:
    """Whether arguments and results may change between forward and backward wherever they may in
    eager code.
    """
    asked = get_compile_option("save_like_torch", "Save arguments and results only if torch would")
    if asked not in (None, True, False):
        raise FuserValueError(f"save_like_torch of thunder.jit: expected a bool, got {asked!r}")
    return bool(asked)


def memory_budget() -> int | float | None:
    """What the forward may keep for the backward, beside arguments and results: bytes, or, as a
    float, a share of what it would keep.
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
"""Options of nvFuser's executor that users were told of."""


def warn_of_nvfusers(name: str) -> None:
    """Warn, once each, of options that only another executor reads."""
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
