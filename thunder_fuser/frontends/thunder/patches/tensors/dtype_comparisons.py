"""Comparisons of a tensor's dtype with torch's, as code of models makes them to choose a branch.

While a function is traced the dtype of its tensors is Thunder's, which equals no dtype of torch's:
`x.dtype == torch.bfloat16` is False whatever `x` is, and the other branch is compiled, without a
word. The comparison is patched where it is made, for functions compiled with this executor.
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
