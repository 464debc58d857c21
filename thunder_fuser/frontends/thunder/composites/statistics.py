"""Composites: covariances and correlations, as one matrix product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import thunder.torch as ltorch
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.composites.arguments import Unusual, floats, rounded


def _cov(
    input: TensorProxy, *, correction: int = 1, fweights: Any = None, aweights: Any = None
) -> TensorProxy:
    """Covariances of rows, [rows, rows]; the variance of a vector, or of one row.

    fweights  how often each column counts, integers; torch's check that none is negative is left
              out, as all checks of numbers
    aweights  how much each column counts
    """
    floats(input)
    if input.ndim > 2:
        raise Unusual  # torch raises the error
    rows = ltorch.reshape(input, (1, -1)) if input.ndim < 2 else input
    weights = [rounded(w, input) for w in (fweights, aweights) if w is not None]
    if not weights:
        centred = rows - ltorch.mean(rows, 1, keepdim=True)
        weighted, norm = centred, max(rows.shape[1] - correction, 0)
    else:
        weight = reduce(ltorch.mul, weights)
        total = ltorch.sum(weight)
        centred = rows - ltorch.sum(rows * weight, 1, keepdim=True) / total
        weighted, lost = centred * weight, correction
        if aweights is not None and correction:
            lost = correction * ltorch.sum(weight * rounded(aweights, input)) / total
        norm = ltorch.clamp(total - lost, 0, None)
    products = ltorch.matmul(centred, ltorch.transpose(weighted, 0, 1))
    found: TensorProxy = ltorch.true_divide(products, norm)
    return ltorch.reshape(found, ()) if rows.shape[0] == 1 else found


def _corrcoef(input: TensorProxy) -> TensorProxy:
    found = _cov(input)
    if not found.ndim:
        return found / found
    deviations = ltorch.sqrt(ltorch.diagonal(found))
    scaled = found / ltorch.unsqueeze(deviations, 1) / ltorch.unsqueeze(deviations, 0)
    return ltorch.clamp(scaled, -1, 1)


PARTS: Mapping[str, Callable[..., Any]] = {"cov": _cov, "corrcoef": _corrcoef}
