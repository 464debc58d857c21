"""The error bounds of reductions, which may fold their elements in any order.

Everything here is about one reduction whose elements lie along the last dimension of a tensor.
"""

from __future__ import annotations

import torch

from thunder_fuser.ir.dtypes import DataType

FRACTION = 2.0**-10
"""Sums of multiples of this are exact as long as they are not too large."""


def rows(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """The folded dimensions as one, the last."""
    kept = [k for k in range(x.dim()) if k not in dims]
    count = 1
    for k in dims:
        count *= x.shape[k]
    return x.permute([*kept, *dims]).reshape([*(x.shape[k] for k in kept), count])


def bound(
    op: str, x: torch.Tensor, error: torch.Tensor, result: torch.Tensor, accumulate: DataType
) -> torch.Tensor:
    """How far from `result` a reduction of `x`, uncertain by `error`, may be before it is stored.

    Infinity where integers or bools may differ at all, or where intermediate results overflow.
    """
    if accumulate is DataType.Bool and op in ("any", "all", "max", "min", "sum", "prod"):
        return _bools(x, error, decisive=op in ("any", "max", "sum"))
    if not x.is_floating_point() and not x.is_complex():
        return torch.where((error > 0).any(-1), torch.inf, 0.0)
    match op:
        case "sum":
            return _sum(x, error, accumulate)
        case "prod":
            return _product(x, error, result, accumulate)
        case "argmax" | "argmin":
            return _position(x if op == "argmax" else -x, error, result)
        case _:
            return _extreme(op, x, error, result)


def _bools(x: torch.Tensor, error: torch.Tensor, decisive: bool) -> torch.Tensor:
    """One certain element with the decisive value settles it."""
    uncertain = error > 0
    settled = ((x == decisive) & ~uncertain).any(-1)
    return torch.where(uncertain.any(-1) & ~settled, torch.inf, 0.0)


def _sum(x: torch.Tensor, error: torch.Tensor, accumulate: DataType) -> torch.Tensor:
    parts = torch.view_as_real(x).sum(-1) * 0 if x.is_complex() else x * 0
    finite = torch.where(parts == 0, x, 0)
    total = finite.abs().sum(-1)
    info = torch.finfo(accumulate.torch)
    exact = (error == 0).all(-1)
    if bool(exact.any()):
        scaled = torch.view_as_real(finite) if x.is_complex() else finite.unsqueeze(-1)
        scaled = scaled / FRACTION
        exact &= (scaled == scaled.round()).all(-1).all(-1)
        exact &= total / FRACTION < 1 / info.eps
    own = torch.where(exact, 0.0, x.shape[-1] * info.eps * (total + error.sum(-1)))
    return torch.where(total > info.max / 4, torch.inf, error.sum(-1) + own)


def _product(
    x: torch.Tensor, error: torch.Tensor, result: torch.Tensor, accumulate: DataType
) -> torch.Tensor:
    size = x.abs().double()
    info = torch.finfo(accumulate.torch)
    come = torch.where((error > 0).any(-1), (size + error).prod(-1) - size.prod(-1), 0.0)
    moderate = torch.where(size.isfinite() & (size > 0), size, 1.0)
    lost = moderate.clamp(min=1).prod(-1) > info.max / 4
    lost |= moderate.clamp(max=1).prod(-1) < info.smallest_normal * 4
    plain = ((size == 0) | (size == 1)).all(-1) & (not x.is_complex())
    factor = 8 if x.is_complex() else 1
    own = torch.where(plain, 0.0, factor * x.shape[-1] * info.eps * result.abs())
    if x.is_complex():
        lost |= ~result.isfinite()
    found = torch.where(result.isfinite(), 2 * come + own, come.nan_to_num(nan=torch.inf))
    return torch.where(lost | (come.isnan() & result.isfinite()), torch.inf, found)


def _position(x: torch.Tensor, error: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Certain if every other element is less for certain, or like the largest known exactly."""
    at = result.unsqueeze(-1)
    largest, known = x.gather(-1, at), error.gather(-1, at)
    less = x + error < largest - known
    exact = (error == 0) & (known == 0)
    settled = less | exact | (largest.isnan() & error.isfinite())
    return torch.where(settled.all(-1), 0.0, torch.inf)


def _extreme(op: str, x: torch.Tensor, error: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    fold = torch.amax if op == "max" else torch.amin
    high, low = fold(x + error, -1), fold(x - error, -1)
    change = torch.maximum((high - result).abs(), (result - low).abs())
    change = torch.where((high == low) | result.isnan(), 0.0, change)
    return torch.where(error.isinf().any(-1) | change.isnan(), torch.inf, change)
