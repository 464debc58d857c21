"""Composites: covariances and correlations, as one matrix product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import thunder.torch as ltorch
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.composites.arguments import Unusual, floats


def _cov(
    input: TensorProxy, *, correction: int = 1, fweights: Any = None, aweights: Any = None
) -> TensorProxy:
    """Covariances of rows, [rows, rows]; the variance of a vector, or of one row."""
    floats(input)
    if fweights is not None or aweights is not None:
        raise NotImplementedError(
            "cov(.., fweights=.., aweights=..): leave out the weights, and scale the rows first"
        )
    if input.ndim > 2:
        raise Unusual  # torch raises the error
    rows = ltorch.reshape(input, (1, -1)) if input.ndim < 2 else input
    centred = rows - ltorch.mean(rows, 1, keepdim=True)
    products = ltorch.matmul(centred, ltorch.transpose(centred, 0, 1))
    found: TensorProxy = ltorch.true_divide(products, max(rows.shape[1] - correction, 0))
    return ltorch.reshape(found, ()) if rows.shape[0] == 1 else found


def _corrcoef(input: TensorProxy) -> TensorProxy:
    found = _cov(input)
    if not found.ndim:
        return found / found
    deviations = ltorch.sqrt(ltorch.diagonal(found))
    scaled = found / ltorch.unsqueeze(deviations, 1) / ltorch.unsqueeze(deviations, 0)
    return ltorch.clamp(scaled, -1, 1)


PARTS: Mapping[str, Callable[..., Any]] = {"cov": _cov, "corrcoef": _corrcoef}
