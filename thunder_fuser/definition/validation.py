"""Comparing a definition's outputs with what torch computes one operation at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_fuser.errors import FuserError, FuserValueError
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.rebuild import specialise
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.runtime.bind import bind

_SLACK = 4
"""How much further from the truth than torch, or units in the last place, an output may be."""


@dataclass(frozen=True, slots=True)
class Expected:
    """An output's value, and how far from it another computation of it may be."""

    value: torch.Tensor
    tolerance: torch.Tensor


def expected_outputs(
    fusion: Fusion,
    inputs: Sequence[Any],
    given: Sequence[torch.Tensor] | None,
    device: torch.device | None,
) -> list[Expected]:
    """What the outputs should be: `given`, or evaluated. Call before inputs are updated in place.

    Floats are evaluated in float64, and may be as far from it, times a small factor, as torch is.
    Integers and bools must equal what torch computes in the dtypes of the fusion.
    """
    if given is not None:
        return [_close_to(value) for value in given]
    binding = bind(fusion, inputs, device)
    static = specialise(fusion, binding.sizes)
    rounded = evaluate(static, inputs, device=binding.device).outputs
    exact = evaluate(static, inputs, double=True, device=binding.device).outputs
    return [_between(*pair) for pair in zip(rounded, exact, strict=True)]


def _close_to(value: torch.Tensor) -> Expected:
    if not _is_inexact(value):
        return Expected(value, torch.zeros((), device=value.device))
    precise = value.to(_precise(value.dtype))
    return Expected(precise, 16 * torch.finfo(value.dtype).eps * (1 + precise.abs()))


def _between(rounded: torch.Tensor, exact: torch.Tensor) -> Expected:
    if not _is_inexact(rounded):
        return Expected(rounded, torch.zeros((), device=rounded.device))
    info = torch.finfo(rounded.dtype)
    error = torch.nan_to_num((rounded.to(exact.dtype) - exact).abs(), 0.0, 0.0, 0.0)
    worst = error.max() if error.numel() else torch.zeros((), device=error.device)
    rounding = info.eps * torch.nan_to_num(exact.abs(), 0.0, info.max, info.max) + info.tiny
    # Where torch overflows, so may we.
    value = torch.where(rounded.isfinite(), exact, rounded.to(exact.dtype))
    return Expected(value, _SLACK * (worst + rounding))


def check_outputs(outputs: Sequence[torch.Tensor], expected: Sequence[Expected]) -> None:
    """FuserError at the first output that is not what it should be."""
    if len(outputs) != len(expected):
        raise FuserValueError(
            f"validate: {len(expected)} reference outputs for {len(outputs)} outputs"
        )
    for k, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
        value = wanted.value
        if output.shape != value.shape:
            raise FuserError(
                f"validate: output {k} has sizes {list(output.shape)}, expected {list(value.shape)}"
            )
        found = output.to(value.dtype)
        wrong = (found != value) & ~(found.isnan() & value.isnan())
        wrong &= ~((found - value).abs() <= wanted.tolerance) if _is_inexact(value) else True
        if wrong.any():
            place = tuple(wrong.nonzero()[0].tolist())
            raise FuserError(
                f"validate: {int(wrong.sum())} of {wrong.numel()} elements of output {k} differ; "
                f"at {place}: got {found[place].item()}, expected {value[place].item()}"
            )


def _is_inexact(value: torch.Tensor) -> bool:
    return bool(value.dtype.is_floating_point or value.dtype.is_complex)


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64
