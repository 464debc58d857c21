"""Gradients of complex numbers in torch's convention, as conjugates of derivatives.

For a holomorphic `y = f(x)`, torch has `x.grad = y.grad * conj(f'(x))`. Grad transforms, Thunder's
and ours, are written for real numbers and omit the conjugate. Operations that are linear with real
coefficients (sums, views, additions, casts) are the same either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes, prims
from thunder.core.prims import PrimIDs, get_grad, put_grad
from thunder.core.proxies import TensorProxy, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import get_tracectx

from thunder_fuser.frontends.thunder.autograd import torch_calls
from thunder_fuser.frontends.thunder.autograd.rules import Rule

_HOLOMORPHIC: frozenset[PrimIDs | str] = frozenset(
    {
        *(PrimIDs.ACOS, PrimIDs.ACOSH, PrimIDs.ASIN, PrimIDs.ASINH, PrimIDs.ATAN, PrimIDs.ATANH),
        *(PrimIDs.COS, PrimIDs.COSH, PrimIDs.SIN, PrimIDs.SINH, PrimIDs.TAN, PrimIDs.TANH),
        *(PrimIDs.EXP, PrimIDs.EXP2, PrimIDs.EXPM1, PrimIDs.SQRT, PrimIDs.RSQRT),
        *(PrimIDs.LOG, PrimIDs.LOG10, PrimIDs.LOG1P, PrimIDs.LOG2),
        *(PrimIDs.DIV, PrimIDs.LERP, PrimIDs.POW, PrimIDs.PROD, PrimIDs.RECIPROCAL),
        *(PrimIDs.CONVOLUTION, PrimIDs.LINEAR, PrimIDs.MATMUL),
        *(ltorch.rms_norm.id, ltorch.sigmoid.id, ltorch.silu.id),
    }
)
"""Symbols whose derivative depends on an operand, and whose rule has it without the conjugate."""


def rule_of(bsym: BoundSymbol, rule: Rule | None) -> Rule | None:
    """Return the grad transform of a call: `rule`, or one that has the conjugates it lacks. None
    where Thunder differentiates the call without one, or its parts.
    """
    if not any(_is_complex(x) for x in bsym.flat_proxy_outs):
        return rule
    if bsym.sym.id is PrimIDs.MUL:
        return _mul
    if bsym.sym.id not in _HOLOMORPHIC:
        return rule
    rule = _OF_COMPLEX.get(bsym.sym.id) or rule or torch_calls.in_one(bsym)
    return rule and partial(_conjugated, rule)


def _is_complex(x: Any) -> bool:
    return isinstance(x, TensorProxy) and dtypes.is_complex_dtype(x.dtype)


def _mul(x: Any, y: Any) -> TensorProxy:
    result: TensorProxy = prims.mul(x, y)
    g = get_grad(result)
    for own, other in ((x, y), (y, x)):
        if isinstance(own, TensorProxy):
            put_grad(own, ltorch.mul(g, _conjugate(other)))
    return result


def _conjugated(rule: Rule, *args: Any, **kwargs: Any) -> Any:
    """Record the rule, with the conjugates of the gradients that it reads and puts: of a rule that
    multiplies by the derivative it makes one that multiplies by the derivative's conjugate.
    """
    trace = get_tracectx()
    trace.push_scope([])
    result = rule(*args, **kwargs)
    conjugates: dict[Any, TensorProxy] = {}
    for bsym in trace.pop_scope():
        if bsym.sym is prims.put_grad:
            x, gradient = bsym.args
            put_grad(x, _conjugate(conjugates.get(variableify(gradient), gradient)))
            continue
        trace.peek_scope().append(bsym.from_bsym_swap_proxies(conjugates, skip_output=True))
        if bsym.sym is prims.get_grad:
            conjugates[variableify(bsym.output)] = _conjugate(bsym.output)
    return result


def _conjugate(x: Any) -> Any:
    """A copy: torch's lazy conjugate is a view, which fusions do not take."""
    if isinstance(x, TensorProxy):
        return ltorch.conj_physical(x) if _is_complex(x) else x
    return x.conjugate()


def _acosh(x: TensorProxy) -> TensorProxy:
    """Two roots, of which each has its branch; that of their product is another one."""
    result: TensorProxy = prims.acosh(x)
    put_grad(x, get_grad(result) * ltorch.rsqrt(x - 1) * ltorch.rsqrt(x + 1))
    return result


_OF_COMPLEX: Mapping[PrimIDs | str, Rule] = {PrimIDs.ACOSH: _acosh}
"""Rules in the place of those for real numbers, without conjugates."""


def _real(x: TensorProxy) -> TensorProxy:
    result: TensorProxy = prims.real(x)
    put_grad(x, ltorch.to(get_grad(result), x.dtype))
    return result


def _imag(x: TensorProxy) -> TensorProxy:
    result: TensorProxy = prims.imag(x)
    g = get_grad(result)
    put_grad(x, ltorch._torch_to_thunder_function_map[torch.complex](ltorch.zeros_like(g), g))
    return result


RULES: Mapping[PrimIDs | str, Rule] = {PrimIDs.REAL: _real, PrimIDs.IMAG: _imag}
