"""Grad transforms of activations: the operations of torch's backward kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping

import thunder.torch as ltorch
from thunder.core.prims import PrimIDs, get_grad, put_grad
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.autograd.rules import Rule, put
from thunder_fuser.frontends.thunder.claims.activations import SELU_ALPHA, SELU_SCALE
from thunder_fuser.frontends.thunder.composites.arguments import wide


def _relu(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    result = ltorch.relu(x, inplace)
    put_grad(x, ltorch.where(result <= 0, 0.0, get_grad(result)))
    return result


def _relu6(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    result = ltorch.relu6(x, inplace)
    _put_inside(x, get_grad(result), 0.0, 6.0)
    return result


def _hardtanh(
    x: TensorProxy, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> TensorProxy:
    result = ltorch.hardtanh(x, min_val, max_val, inplace)
    _put_inside(x, get_grad(result), min_val, max_val)
    return result


def _put_inside(x: TensorProxy, g: TensorProxy, low: float, high: float) -> None:
    """Pass the gradient where low < x < high, and where x is NaN."""
    put_grad(x, ltorch.where((x <= low) | (x >= high), 0.0, g))


def _sigmoid(x: TensorProxy) -> TensorProxy:
    result = ltorch.sigmoid(x)
    g, s = wide(get_grad(result)), wide(result)
    put(x, g * (1 - s) * s)
    return result


def _silu(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    result = ltorch.silu(x, inplace)
    g, a = wide(get_grad(result)), wide(x)
    # The operations of the call's own decomposition, which the backward recomputes.
    s = ltorch.reciprocal(1 + ltorch.exp(-a))
    put(x, g * s * (1 + a * (1 - s)))
    return result


def _logsigmoid(x: TensorProxy) -> TensorProxy:
    result = ltorch.logsigmoid(x)
    g, a = wide(get_grad(result)), wide(x)
    z = ltorch.exp(-ltorch.abs(a))
    share = z / (1 + z)
    put(x, g * ltorch.where(a < 0, 1 - share, share))
    return result


def _exponential_unit(
    x: TensorProxy, result: TensorProxy, below: float, inner: float, above: float
) -> TensorProxy:
    """Put the gradient of `above * x` where x > 0, else of a multiple of expm1(inner * x) whose
    slope at 0 is `below`.
    """
    g, a = wide(get_grad(result)), wide(x)
    put(x, ltorch.where(a <= 0, g * below * ltorch.exp(a * inner), g * above))
    return result


def _elu(x: TensorProxy, alpha: float = 1.0, inplace: bool = False) -> TensorProxy:
    return _exponential_unit(x, ltorch.elu(x, alpha, inplace), alpha, 1.0, 1.0)


def _selu(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    below = SELU_ALPHA * SELU_SCALE
    return _exponential_unit(x, ltorch.selu(x, inplace), below, 1.0, SELU_SCALE)


def _celu(x: TensorProxy, alpha: float = 1.0, inplace: bool = False) -> TensorProxy:
    return _exponential_unit(x, ltorch.celu(x, alpha, inplace), 1.0, 1.0 / alpha, 1.0)


def _mish(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    result = ltorch.mish(x, inplace)
    g, a = wide(get_grad(result)), wide(x)
    t = ltorch.tanh(ltorch.softplus(a))
    put(x, g * (t + a * ltorch.sigmoid(a) * (1 - t * t)))
    return result


def _hardsigmoid(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    result = ltorch.hardsigmoid(x, inplace)
    g = wide(get_grad(result))
    put(x, ltorch.where((x > -3) & (x < 3), g * (1.0 / 6.0), 0.0))
    return result


def _hardswish(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    result = ltorch.hardswish(x, inplace)
    g, a = wide(get_grad(result)), wide(x)
    inside = ltorch.where(a < 3, g * (a / 3 + 0.5), g)
    put(x, ltorch.where(a <= -3, 0.0, inside))
    return result


def _hardshrink(x: TensorProxy, lambd: float = 0.5) -> TensorProxy:
    """Pass the gradient where |x| > lambd, and where x is NaN."""
    result = ltorch.hardshrink(x, lambd)
    put_grad(x, ltorch.where((x >= -lambd) & (x <= lambd), 0.0, get_grad(result)))
    return result


def _softshrink(x: TensorProxy, lambd: float = 0.5) -> TensorProxy:
    result = ltorch.softshrink(x, lambd)
    put_grad(x, ltorch.where((x >= -lambd) & (x <= lambd), 0.0, get_grad(result)))
    return result


def _softplus(x: TensorProxy, beta: float = 1.0, threshold: float = 20.0) -> TensorProxy:
    result = ltorch.softplus(x, beta, threshold)
    g, scaled = wide(get_grad(result)), wide(x) * beta
    z = ltorch.exp(scaled)
    put(x, ltorch.where(scaled > threshold, g, g * z / (z + 1)))
    return result


def _gelu(x: TensorProxy, *, approximate: str = "none") -> TensorProxy:
    result = ltorch.gelu(x, approximate=approximate)
    g, a = wide(get_grad(result)), wide(x)
    if approximate == "tanh":
        scale = math.sqrt(2 / math.pi)
        t = ltorch.tanh(scale * (a + 0.044715 * (a * a * a)))
        inner = scale * (1 + 3 * 0.044715 * (a * a))
        slope = 0.5 * (1 + t) + 0.5 * a * (1 - t * t) * inner
    else:
        density = ltorch.exp(a * a * -0.5) * (1 / math.sqrt(2 * math.pi))
        slope = 0.5 * (1 + ltorch.erf(a * math.sqrt(0.5))) + a * density
    put(x, g * slope)
    return result


def _glu(x: TensorProxy, dim: int = -1) -> TensorProxy:
    result = ltorch.glu(x, dim)
    g = wide(get_grad(result))
    a, b = ltorch.chunk(wide(x), 2, dim)
    s = ltorch.sigmoid(b)
    put(x, ltorch.cat([s * g, (1 - s) * s * g * a], dim))
    return result


RULES: Mapping[PrimIDs | str, Rule] = {
    "torch.relu": _relu,
    "torch.relu6": _relu6,
    "torch.nn.functional.hardtanh": _hardtanh,
    "torch.sigmoid": _sigmoid,
    "torch.nn.functional.silu": _silu,
    "torch.nn.functional.logsigmoid": _logsigmoid,
    "torch.nn.functional.elu": _elu,
    "torch.selu": _selu,
    "torch.celu": _celu,
    "torch.nn.functional.mish": _mish,
    "torch.nn.functional.hardsigmoid": _hardsigmoid,
    "torch.hardswish": _hardswish,
    "torch.hardshrink": _hardshrink,
    "torch.nn.functional.softshrink": _softshrink,
    "torch.nn.functional.softplus": _softplus,
    "torch.nn.functional.gelu": _gelu,
    "torch.nn.functional.glu": _glu,
}
