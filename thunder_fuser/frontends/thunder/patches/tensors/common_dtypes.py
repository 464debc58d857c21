"""The common dtype of two operands, as torch promotes them, while a function is traced.

Thunder states int8 for `mask * 2`, int16 for bytes with an int64 tensor without dimensions, and
complex64 for float64 and complex64 where neither has dimensions. The retyping of a trace corrects
what its calls return, but the program may read the dtype of such a tensor before:
`y.to((mask * 2).dtype)`, `torch.full_like(mask * 2, 300)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from thunder.core import dtypes, utils

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_original: Callable[[Any, Any], Any] = utils._elementwise_type_promotion


def _promoted(a: Any, b: Any) -> Any:
    return _as_in_torch(a, b) if is_patched() else _original(a, b)


@cache
def _as_in_torch(a: Any, b: Any) -> Any:
    """Return the common dtype of two. Each is a strong dtype, of a tensor with dimensions; a weak
    one, of a tensor without; or the type of a number.
    """
    found = _original(a, b)
    numbers = [x for x in (a, b) if dtypes.is_numbertype(x)]
    if numbers:
        # Of bools and an integer.
        is_raised = numbers == [int] and any(map(dtypes.is_boolean_dtype, (a, b)))
        return dtypes.int64_ if is_raised else found
    if dtypes.is_weak_dtype(a) == dtypes.is_weak_dtype(b):
        common = torch.promote_types(*map(dtypes.to_torch_dtype, (a, b)))
        strong = dtypes.to_dtype(common)
        return dtypes.to_weak_dtype(strong) if dtypes.is_weak_dtype(a) else strong
    strong, weak = (b, a) if dtypes.is_weak_dtype(a) else (a, b)
    if dtypes.is_nonboolean_integer_dtype(strong) and dtypes.is_exact_dtype(weak):
        return strong
    return found


def register() -> None:
    """Patch how Thunder promotes the dtypes of two operands."""
    utils._elementwise_type_promotion = _promoted
