"""Composites: covariances and correlations, as one matrix product. Those of integers are floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.composites.arguments import Unusual, known, rounded


def _cov(
    input: TensorProxy, *, correction: int = 1, fweights: Any = None, aweights: Any = None
) -> TensorProxy:
    """Covariances of rows, [rows, rows]; the variance of a vector, or of one row.

    fweights  how often each column counts, integers; torch's check that none is negative is left
              out, as all checks of numbers
    aweights  how much each column counts
    """
    known(input)
    if input.ndim > 2 or dtypes.is_boolean_dtype(input.dtype):
        raise Unusual  # torch raises the error
    if dtypes.is_exact_dtype(input.dtype):
        input = ltorch.to(input, torch.get_default_dtype())
    rows = ltorch.reshape(input, (1, -1)) if input.ndim < 2 else input
    for name, weight in (("fweights", fweights), ("aweights", aweights)):
        if weight is not None and tuple(weight.shape) != (rows.shape[1],):
            raise RuntimeError(
                f"cov(): {name} of {list(weight.shape)} for {rows.shape[1]} observations: expected "
                "one number for each"
            )
    if fweights is not None and not dtypes.is_exact_dtype(fweights.dtype):
        raise RuntimeError(f"cov(): fweights of {fweights.dtype}: expected integers")
    weights = [_weight(w, input) for w in (fweights, aweights) if w is not None]
    if not weights:
        centred = rows - ltorch.mean(rows, 1, keepdim=True)
        weighted, norm = centred, max(rows.shape[1] - correction, 0)
    else:
        weight = reduce(ltorch.mul, weights)
        total = ltorch.sum(weight)
        centred = rows - ltorch.sum(rows * weight, 1, keepdim=True) / total
        weighted, lost = centred * weight, correction
        if aweights is not None and correction:
            lost = correction * ltorch.sum(weight * _weight(aweights, input)) / total
        norm = ltorch.clamp(total - lost, 0, None)
    if dtypes.is_complex_dtype(input.dtype):
        weighted = ltorch.conj_physical(weighted)
    products = ltorch.matmul(centred, ltorch.transpose(weighted, 0, 1))
    found: TensorProxy = ltorch.true_divide(products, norm)
    return ltorch.reshape(found, ()) if rows.shape[0] == 1 else found


def _weight(weight: TensorProxy, input: TensorProxy) -> TensorProxy:
    """Convert to the dtype of the input, or of its real part."""
    is_complex = dtypes.is_complex_dtype(input.dtype)
    return rounded(weight, ltorch.real(input) if is_complex else input)


def _corrcoef(input: TensorProxy) -> TensorProxy:
    found = _cov(input)
    if not found.ndim:
        return found / found
    is_complex = dtypes.is_complex_dtype(found.dtype)
    variances = ltorch.diagonal(found)
    deviations = ltorch.sqrt(ltorch.real(variances) if is_complex else variances)
    scaled = found / ltorch.unsqueeze(deviations, 1) / ltorch.unsqueeze(deviations, 0)
    if is_complex:
        parts = (ltorch.clamp(part(scaled), -1, 1) for part in (ltorch.real, ltorch.imag))
        return ltorch._torch_to_thunder_function_map[torch.complex](*parts)
    return ltorch.clamp(scaled, -1, 1)


PARTS: Mapping[str, Callable[..., Any]] = {"cov": _cov, "corrcoef": _corrcoef}
