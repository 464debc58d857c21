"""The error bound of scans: of a sum for each element, in whatever order it and those before it are
added.
"""

from __future__ import annotations

import torch

from tests.support.oracle_reductions import FRACTION
from thunder_fuser.ir.dtypes import DataType


def bound(x: torch.Tensor, error: torch.Tensor, dim: int, accumulate: DataType) -> torch.Tensor:
    """How far the running sums of `x`, uncertain by `error`, may be off before they are stored.

    Infinity where integers may differ at all, or where intermediate results overflow.
    """
    come = error.cumsum(dim)
    if not x.is_floating_point() and not x.is_complex():
        return torch.where(come > 0, torch.inf, 0.0)
    parts = torch.view_as_real(x) if x.is_complex() else x.unsqueeze(-1)
    is_finite = parts.isfinite().all(-1)
    total = torch.where(is_finite, x.abs(), 0.0).cumsum(dim)
    info = torch.finfo(accumulate.torch)
    scaled = torch.where(is_finite.unsqueeze(-1), parts, 0.0) / FRACTION
    coarse = ((scaled == scaled.round()).all(-1) & (error == 0)).double().cumprod(dim) > 0
    exact = coarse & (total / FRACTION < 1 / info.eps)
    own = torch.where(exact, 0.0, x.shape[dim] * info.eps * (total + come))
    return torch.where(total > info.max / 4, torch.inf, come + own)
