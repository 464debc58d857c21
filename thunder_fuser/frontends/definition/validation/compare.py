"""Comparison of a definition's outputs with torch's, one operation at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_fuser.errors import FuserError, FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition.validation.rounding import ErrorAnalysis
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.rebuild import specialise
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.runtime.binding.bind import bind

_SLACK = 2
"""Factor on the error analysis' bound within which an output is accepted."""

_TORCHS_SLACK = 4
"""Factor on torch's own deviation from float64, per element, within which an output is accepted."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Reference value of an output, and the absolute tolerance of each element."""

    value: torch.Tensor
    tolerance: torch.Tensor


def expected_outputs(
    fusion: Fusion,
    inputs: Sequence[Any],
    given: Sequence[torch.Tensor] | None,
    device: torch.device | None,
) -> list[Expected]:
    """Reference outputs: `given`, or evaluated. Call before inputs are updated in place.

    Outputs are evaluated in float64; the tolerance is what the operations that lead to them and the
    lengths of their reductions allow (`rounding.py`), or torch's own deviation if larger. A given
    reference may have been rounded to the narrowest of the dtypes after every operation.
    """
    if given is not None and not isinstance(given, (list, tuple)):
        raise FuserTypeError(
            f"validate: expected a list of reference outputs, got {type(given).__name__}; pass [y]"
        )
    binding = bind(fusion, inputs, device)
    static = specialise(fusion, binding.sizes)
    analysis = ErrorAnalysis(binding.device, 0.0 if given is None else _narrowest(static))
    analysis.run_all(static, inputs)
    bounds = [
        _SLACK * analysis.errors.get(t, torch.zeros((), device=binding.device)).double()
        for t in static.outputs
    ]
    if given is not None:
        _check_count(len(static.outputs), given)
        return [_close_to(*pair) for pair in zip(given, bounds, strict=True)]
    exact = [analysis.result(t) for t in static.outputs]
    del analysis
    rounded = evaluate(static, inputs, device=binding.device).outputs
    return [_between(*found) for found in zip(rounded, exact, bounds, strict=True)]


def _narrowest(fusion: Fusion) -> float:
    """eps of the narrowest float among inputs and outputs, 8-bit floats aside; 0.0 for none."""
    dtypes = {v.dtype for v in (*fusion.tensor_inputs, *fusion.outputs)}
    inexact = [torch.finfo(d.torch).eps for d in dtypes if d.is_floating or d.is_complex]
    return max((eps for eps in inexact if eps <= _WIDEST_STEP), default=0.0)


_WIDEST_STEP = 2.0**-7
"""eps of bfloat16. Narrower floats are not considered: 8-bit floats are not computed with."""


def _close_to(value: torch.Tensor, bound: torch.Tensor) -> Expected:
    if not _is_inexact(value):
        return Expected(value, bound)
    if bound.dim() and bound.shape != value.shape:
        return Expected(value, bound)  # rejected by the comparison
    precise = value.to(_precise(value.dtype))
    size = torch.nan_to_num(precise.abs(), 0.0, 0.0, 0.0)
    return Expected(precise, bound + 4 * torch.finfo(value.dtype).eps * size)


def _between(rounded: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> Expected:
    if not _is_inexact(rounded):
        return Expected(rounded, bound)
    torchs = rounded.to(exact.dtype)
    error = torch.nan_to_num((torchs - exact).abs(), 0.0, 0.0, 0.0)
    # An output may overflow where torch's does.
    value = torch.where(torchs.isfinite(), exact, torchs)
    return Expected(value, torch.maximum(bound, _TORCHS_SLACK * error))


def _check_count(outputs: int, expected: Sequence[object]) -> None:
    if outputs != len(expected):
        raise FuserValueError(f"validate: {len(expected)} reference outputs for {outputs} outputs")


def check_outputs(outputs: Sequence[torch.Tensor], expected: Sequence[Expected]) -> None:
    """FuserError at the first output that differs from its reference by more than the tolerance."""
    _check_count(len(outputs), expected)
    for k, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
        value = wanted.value
        if output.shape != value.shape:
            raise FuserError(
                f"validate: output {k} has sizes {list(output.shape)}, expected {list(value.shape)}"
            )
        found = output.to(value.dtype)
        wrong = (found != value) & ~(found.isnan() & value.isnan())
        wrong &= ~(_difference(found, value) <= wanted.tolerance)
        if wrong.any():
            place = tuple(wrong.nonzero()[0].tolist())
            allowed = wanted.tolerance.expand(value.shape)[place].item()
            raise FuserError(
                f"validate: {int(wrong.sum())} of {wrong.numel()} elements of output {k} differ; "
                f"at {place}: got {found[place].item()}, expected {value[place].item()} within "
                f"{allowed:.3g}"
            )


def _difference(found: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if _is_inexact(value):
        return (found - value).abs()
    return (found.double() - value.double()).abs()


def _is_inexact(value: torch.Tensor) -> bool:
    return bool(value.dtype.is_floating_point or value.dtype.is_complex)


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64
