"""The error bounds of scans: of a reduction for each element, in whatever order it and those before
it are folded.
"""

from __future__ import annotations

import torch

from tests.support.oracle_reductions import FRACTION
from thunder_fuser.ir.dtypes import DataType


def bound(
    op: str,
    x: torch.Tensor,
    error: torch.Tensor,
    result: torch.Tensor,
    dim: int,
    accumulate: DataType,
) -> torch.Tensor:
    """How far from `result` a scan of `x`, uncertain by `error`, may be before it is stored.

    Infinity where integers may differ at all, or where intermediate results overflow.
    """
    if not x.is_floating_point() and not x.is_complex():
        return torch.where(error.cumsum(dim) > 0, torch.inf, 0.0)
    match op:
        case "cumsum":
            return _sums(x, error, dim, accumulate)
        case "cumprod":
            return _products(x, error, result, dim, accumulate)
        case _:
            return _extremes(op, x, error, result, dim)


def _sums(x: torch.Tensor, error: torch.Tensor, dim: int, accumulate: DataType) -> torch.Tensor:
    come = error.cumsum(dim)
    parts = torch.view_as_real(x) if x.is_complex() else x.unsqueeze(-1)
    is_finite = parts.isfinite().all(-1)
    total = torch.where(is_finite, x.abs(), 0.0).cumsum(dim)
    info = torch.finfo(accumulate.torch)
    scaled = torch.where(is_finite.unsqueeze(-1), parts, 0.0) / FRACTION
    coarse = ((scaled == scaled.round()).all(-1) & (error == 0)).double().cumprod(dim) > 0
    exact = coarse & (total / FRACTION < 1 / info.eps)
    own = torch.where(exact, 0.0, x.shape[dim] * info.eps * (total + come))
    return torch.where(total > info.max / 4, torch.inf, come + own)


def _products(
    x: torch.Tensor, error: torch.Tensor, result: torch.Tensor, dim: int, accumulate: DataType
) -> torch.Tensor:
    size = x.abs().double()
    info = torch.finfo(accumulate.torch)
    uncertain = error.cumsum(dim) > 0
    come = torch.where(uncertain, (size + error).cumprod(dim) - size.cumprod(dim), 0.0)
    moderate = torch.where(size.isfinite() & (size > 0), size, 1.0)
    lost = moderate.clamp(min=1).cumprod(dim) > info.max / 4
    lost |= moderate.clamp(max=1).cumprod(dim) < info.smallest_normal * 4
    if x.is_complex():
        lost |= ~result.isfinite()
    factor = 8 if x.is_complex() else 1
    own = factor * x.shape[dim] * info.eps * result.abs()
    found = torch.where(result.isfinite(), 2 * come + own, come.nan_to_num(nan=torch.inf))
    return torch.where(lost | (come.isnan() & result.isfinite()), torch.inf, found)


def _extremes(
    op: str, x: torch.Tensor, error: torch.Tensor, result: torch.Tensor, dim: int
) -> torch.Tensor:
    if not x.numel():
        return torch.zeros(x.shape, dtype=torch.float64)
    scan = torch.cummax if op == "cummax" else torch.cummin
    high, low = scan(x + error, dim)[0], scan(x - error, dim)[0]
    change = torch.maximum((high - result).abs(), (result - low).abs())
    change = torch.where((high == low) | result.isnan(), 0.0, change)
    unsure = error.isinf().double().cumsum(dim) > 0
    return torch.where(unsure | change.isnan(), torch.inf, change)
