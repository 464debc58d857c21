"""Comparisons of a tensor's dtype with torch's, by which models choose a branch.

While a function is traced, its tensors have Thunder's dtypes, which equal none of torch's:
`x.dtype == torch.bfloat16` was False for every `x`, and the other branch was compiled silently.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from thunder.core import dtypes

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_original: Callable[[dtypes.dtype, object], bool] = dtypes.dtype.__eq__


def _equal(self: dtypes.dtype, other: object) -> bool:
    """True if both are the same dtype, of Thunder's or of torch's."""
    if isinstance(other, torch.dtype) and is_patched():
        return dtypes.to_torch_dtype(self) is other
    return _original(self, other)


def register() -> None:
    """Patch Thunder's dtypes to use `_equal`."""
    dtypes.dtype.__eq__ = _equal
