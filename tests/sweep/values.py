"""Special values of each dtype: NaN, infinities, both zeros, subnormals, extremes, some others."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

_FLOATS = (
    *(0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.0, -2.5, 3.0),
    *(-3.0, 0.25, 6.0, 7.5, -4.0, 20.5, -20.5, 100.0, -100.0, 1e-3, -1e-3),
)
_FEW_FLOATS = (0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, -1.0, 0.5, -2.5, 3.0)
_INTEGERS = (0, 1, -1, 2, -2, 3, 7, -8, 20, 100, -100)
_PARTS = (0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, -1.0, 0.5, -2.5, 20.5, -1e-3)


def extremes(dtype: torch.dtype) -> list[float]:
    """The largest and the smallest, of either sign, normal and subnormal."""
    info = torch.finfo(dtype)
    found = [info.max, info.tiny, info.smallest_normal * 2**-2, info.max / 4, info.eps]
    return [sign * value for value in found for sign in (1.0, -1.0)]


def special(dtype: torch.dtype) -> Tensor:
    """All of them in one dimension, and as many again that torch does not take for a vector's."""
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if dtype.is_complex:
        part = torch.float32 if dtype is torch.complex64 else torch.float64
        ends = [torch.finfo(part).max, torch.finfo(part).tiny, -torch.finfo(part).max]
        both = list(itertools.product((*_PARTS, *ends), repeat=2))
        return torch.complex(*(torch.tensor([p[k] for p in both], dtype=part) for k in (0, 1)))
    if dtype.is_floating_point:
        return torch.tensor([*_FLOATS, *extremes(dtype)], dtype=torch.float64).to(dtype)
    info = torch.iinfo(dtype)
    found = [x for x in (*_INTEGERS, info.max, info.min) if info.min <= x <= info.max]
    return torch.tensor(found, dtype=dtype)


def few(dtype: torch.dtype) -> Tensor:
    """Enough for every pair or triple of them."""
    if dtype.is_complex:
        part = torch.float32 if dtype is torch.complex64 else torch.float64
        parts = (0.0, -0.0, math.nan, math.inf, 1.0, -2.5)
        both = list(itertools.product(parts, repeat=2))
        return torch.complex(*(torch.tensor([p[k] for p in both], dtype=part) for k in (0, 1)))
    if dtype.is_floating_point:
        ends = [torch.finfo(dtype).max, torch.finfo(dtype).tiny]
        return torch.tensor([*_FEW_FLOATS, *ends], dtype=torch.float64).to(dtype)
    return special(dtype)


def operands(dtype: torch.dtype, count: int) -> tuple[Tensor, ...]:
    """Every combination of special values for that many operands, in one dimension."""
    if count == 1:
        return (special(dtype),)
    values = special(dtype) if count == 2 and not dtype.is_complex else few(dtype)
    grid = torch.meshgrid(*[torch.arange(len(values))] * count, indexing="ij")
    return tuple(values[g.reshape(-1)] for g in grid)


def rows(dtype: torch.dtype) -> Tensor:
    """Rows to be reduced: each special value among ordinary ones, some of them together, alone."""
    values = few(dtype)
    if dtype is torch.bool:
        return torch.tensor([[True, True], [False, True], [False, False]]).repeat(1, 3)
    ordinary = torch.tensor([1, 2, 0, 3, 1], dtype=torch.int64).to(dtype)
    found = [torch.cat([ordinary[:k], v.view(1), ordinary[k:]]) for k in (0, 3) for v in values]
    found += [v.repeat(6) for v in values]
    found += [torch.stack([a, b, *ordinary[:4]]) for a, b in itertools.combinations(values, 2)]
    return torch.stack(found)
