"""Gradients of matrix products of which an operand has no elements: all are zeros.

Thunder's rules make matrices by `reshape(-1, 0)`, whose rows cannot be found out, and raise.
"""

from __future__ import annotations

from collections.abc import Mapping

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.prims import PrimIDs, get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.frontends.thunder.autograd.rules import Rule, put_to


def rule_of(bsym: BoundSymbol) -> Rule | None:
    """Return the grad transform of a product of operands without elements; None for all others."""
    rule = _RULES.get(bsym.sym.id)
    return rule if rule and any(0 in x.shape for x in bsym.args[:2]) else None


def _matmul(x: TensorProxy, other: TensorProxy) -> TensorProxy:
    result: TensorProxy = prims.matmul(x, other)
    _put_zeros(result, x, other)
    return result


def _linear(x: TensorProxy, weight: TensorProxy, bias: TensorProxy | None) -> TensorProxy:
    result: TensorProxy = prims.linear(x, weight, bias)
    gradient = _put_zeros(result, x, weight)
    if bias is not None:
        put_to(bias, gradient)
    return result


def _put_zeros(result: TensorProxy, *operands: TensorProxy) -> TensorProxy:
    """Put gradients of zeros, and return that of the result."""
    gradient: TensorProxy = get_grad(result)
    for x in operands:
        put_grad(x, ltorch.zeros_like(x))
    return gradient


_RULES: Mapping[PrimIDs, Rule] = {PrimIDs.MATMUL: _matmul, PrimIDs.LINEAR: _linear}
