"""Distance of results from exact ones, in units of the last place."""

from __future__ import annotations

import torch


def ulps(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """|got - wanted| in ulp of `wanted` in got's type; `wanted` is float64.

    0 where both are NaN or `got` is `wanted` rounded, infinite where only one is finite.
    """
    limits = torch.finfo(got.dtype)
    rounded = wanted.to(got.dtype)
    same = (got == rounded) | (got.isnan() & wanted.isnan())
    size = wanted.abs().clamp(limits.tiny, limits.max)
    exponent = torch.frexp(size).exponent - 1
    unit = torch.ldexp(torch.full_like(size, limits.eps), exponent)
    error = (got.double() - wanted).abs() / unit
    return torch.where(same, 0.0, torch.where(error.isnan(), torch.inf, error))
