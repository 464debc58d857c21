"""Gradients of calls as torch's kernels compute them, where Thunder's rules lose something.

Thunder differentiates the parts of a call. Of a select the other side's gradient is multiplied with
0, so that an overflow there becomes NaN; of `expm1(x)` the gradient is its result plus 1, which
small results are lost in. And the parts of a call that is claimed whole are no longer the call.
A rule records the call itself, and writes what torch's backward kernel computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import thunder.torch as ltorch
from thunder.clang import maybe_convert_to_dtype
from thunder.core import prims
from thunder.core.prims import PrimIDs, get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import _pow_grad
from thunder.core.utils import get_computation_dtype

Rule = Callable[..., TensorProxy]


def _wide(x: TensorProxy) -> TensorProxy:
    """In the dtype that torch's kernels compute in: they round once, at the end."""
    return maybe_convert_to_dtype(x, get_computation_dtype(x.dtype))


def _put(x: TensorProxy, gradient: TensorProxy) -> None:
    put_grad(x, maybe_convert_to_dtype(gradient, x.dtype))


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
    put_grad(x, ltorch.where((x > low) & (x < high), g, 0.0))


def _clamp(
    x: TensorProxy,
    min: TensorProxy | float | None = None,
    max: TensorProxy | float | None = None,
) -> TensorProxy:
    """At a bound the gradient is the tensor's; of NaN, which is within no bounds, nobody's."""
    result = ltorch.clamp(x, min, max)
    g = get_grad(result)
    above = min is None or x >= min
    below = max is None or x <= max
    _put_to(x, ltorch.where(_both(above, below), g, 0.0))
    if isinstance(min, TensorProxy):
        below = x < min
        _put_to(min, ltorch.where(below if max is None else below & (min < max), g, 0.0))
    if isinstance(max, TensorProxy):
        above = x > max
        _put_to(max, ltorch.where(above if min is None else above | (max < min), g, 0.0))
    return result


def _both(a: TensorProxy | bool, b: TensorProxy | bool) -> TensorProxy | bool:
    if a is True or b is True:
        return b if a is True else a
    return a & b


def _put_to(x: TensorProxy, gradient: TensorProxy) -> None:
    """The gradient of an operand that may have been broadcast and converted."""
    missing = gradient.ndim - x.ndim
    shown = zip(gradient.shape, (1,) * missing + tuple(x.shape), strict=True)
    dims = tuple(k for k, (wide, own) in enumerate(shown) if wide != own or k < missing)
    if dims:
        gradient = ltorch.sum(_wide(gradient), dims, keepdim=True)
    _put(x, ltorch.reshape(gradient, x.shape) if missing else gradient)


def _sigmoid(x: TensorProxy) -> TensorProxy:
    result = ltorch.sigmoid(x)
    g, s = _wide(get_grad(result)), _wide(result)
    _put(x, g * (1 - s) * s)
    return result


def _logsigmoid(x: TensorProxy) -> TensorProxy:
    result = ltorch.logsigmoid(x)
    g, a = _wide(get_grad(result)), _wide(x)
    z = ltorch.exp(-ltorch.abs(a))
    share = z / (1 + z)
    _put(x, g * ltorch.where(a < 0, 1 - share, share))
    return result


def _exponential_unit(
    x: TensorProxy, result: TensorProxy, below: float, inner: float, above: float
) -> TensorProxy:
    """Of `above * x` where x > 0, else of a multiple of expm1(inner * x), whose slope at 0 is
    `below`.
    """
    g, a = _wide(get_grad(result)), _wide(x)
    _put(x, ltorch.where(a <= 0, g * below * ltorch.exp(a * inner), g * above))
    return result


def _elu(x: TensorProxy, alpha: float = 1.0, inplace: bool = False) -> TensorProxy:
    return _exponential_unit(x, ltorch.elu(x, alpha, inplace), alpha, 1.0, 1.0)


_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def _selu(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    below = _SELU_ALPHA * _SELU_SCALE
    return _exponential_unit(x, ltorch.selu(x, inplace), below, 1.0, _SELU_SCALE)


def _celu(x: TensorProxy, alpha: float = 1.0, inplace: bool = False) -> TensorProxy:
    return _exponential_unit(x, ltorch.celu(x, alpha, inplace), 1.0, 1.0 / alpha, 1.0)


def _mish(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    result = ltorch.mish(x, inplace)
    g, a = _wide(get_grad(result)), _wide(x)
    t = ltorch.tanh(ltorch.softplus(a))
    _put(x, g * (t + a * ltorch.sigmoid(a) * (1 - t * t)))
    return result


def _hardsigmoid(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    result = ltorch.hardsigmoid(x, inplace)
    g = _wide(get_grad(result))
    _put(x, ltorch.where((x > -3) & (x < 3), g * (1.0 / 6.0), 0.0))
    return result


def _hardswish(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    result = ltorch.hardswish(x, inplace)
    g, a = _wide(get_grad(result)), _wide(x)
    inside = ltorch.where(a <= 3, g * (a / 3 + 0.5), g)
    _put(x, ltorch.where(a < -3, 0.0, inside))
    return result


def _hardshrink(x: TensorProxy, lambd: float = 0.5) -> TensorProxy:
    result = ltorch.hardshrink(x, lambd)
    put_grad(x, ltorch.where((x < -lambd) | (x > lambd), get_grad(result), 0.0))
    return result


def _pow(base: TensorProxy | float, exponent: TensorProxy | float) -> TensorProxy:
    if isinstance(exponent, (int, float)) and exponent == 0:
        assert isinstance(base, TensorProxy)
        result = prims.pow(base, exponent)
        put_grad(base, ltorch.zeros_like(get_grad(result)))
        return result
    return _pow_grad(base, exponent)


def _nll_loss(
    x: TensorProxy,
    target: TensorProxy,
    weight: TensorProxy | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> TensorProxy:
    ignored = -1 if ignore_index is None else ignore_index
    total = None
    if reduction == "mean":
        # Both parts of the quotient are the forward's: the backward reads what it divides by.
        total = total_weight(target, weight, ignored)
        wide = weight if weight is None else _wide(weight)
        summed = ltorch.nll_loss(_wide(x), target, wide, ignored, "sum")
        result = maybe_convert_to_dtype(summed / total, x.dtype)
    else:
        result = ltorch.nll_loss(x, target, weight, ignored, reduction)
    g = get_grad(result)
    put_grad(x, ltorch.nll_loss_backward(g, x, target, weight, reduction, ignored, total))
    return result


def total_weight(target: TensorProxy, weight: TensorProxy | None, ignored: int) -> TensorProxy:
    """Of the classes that count: how many they are, if each has the weight 1."""
    counts = target != ignored
    if weight is None:
        return ltorch.sum(counts)
    classes = ltorch.flatten(ltorch.where(counts, target, 0))
    chosen = ltorch.index_select(_wide(weight), 0, classes)
    return ltorch.sum(ltorch.where(ltorch.flatten(counts), chosen, 0))


RULES: Mapping[PrimIDs | str, Rule] = {
    "torch.relu": _relu,
    "torch.relu6": _relu6,
    "torch.nn.functional.hardtanh": _hardtanh,
    "torch.clamp": _clamp,
    "torch.sigmoid": _sigmoid,
    "torch.nn.functional.logsigmoid": _logsigmoid,
    "torch.nn.functional.elu": _elu,
    "torch.selu": _selu,
    "torch.celu": _celu,
    "torch.nn.functional.mish": _mish,
    "torch.nn.functional.hardsigmoid": _hardsigmoid,
    "torch.hardswish": _hardswish,
    "torch.nn.functional.hardshrink": _hardshrink,
    "torch.nn.functional.nll_loss": _nll_loss,
    PrimIDs.POW: _pow,
}
"""By the id of a symbol: its gradient transform, which Thunder asks executors for."""
