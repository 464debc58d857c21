"""Guards of numbers that tell 0.0 from -0.0.

Thunder compiles numbers into the program and compares those of a later call by `==`, which takes
the two zeros for equal: `x / -0.0` had the sign of the first call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from thunder import clang
from thunder.core import utils
from thunder.core.prims import OpTags
from thunder.executors.pythonex import ex

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_original: Callable[[Any, Any], Any] = clang.check_number_type_and_value

Signs = tuple[float, ...]


def _parts(number: float | complex) -> tuple[float, ...]:
    return (number.real, number.imag) if isinstance(number, complex) else (number,)


def _signs(number: float | complex) -> Signs:
    return tuple(math.copysign(1.0, part) for part in _parts(number))


def _check_signs(number: Any, expected: Signs, /) -> None:
    utils.check(
        _signs(number) == expected,
        lambda: f"Expected {number} to have the signs {expected}, of the number compiled for",
    )


_check_signs_symbol = ex.register_operator(
    "check_signs", meta=lambda number, expected, /: None, fn=_check_signs, tags=[OpTags.DONT_DCE]
)


def _check_number(number: Any, value: Any, /) -> Any:
    """Record the guard of a number: its type and value, and the sign of a zero."""
    found = _original(number, value)
    if isinstance(value, float | complex) and 0.0 in _parts(value) and is_patched():
        _check_signs_symbol(number, _signs(value))
    return found


def register() -> None:
    """Patch Thunder's guards to use `_check_number`."""
    clang.check_number_type_and_value = _check_number
