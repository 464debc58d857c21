"""Grad transforms of norms that compute as torch's kernels: 16-bit in fp32, rounded once.

Thunder differentiates the decomposition of a norm, and rounds in between: each row's contribution
to a weight's gradient, before the sum over rows, and each term of the input's. Factors that are
constant over a reduction are multiplied after it, not before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import thunder.torch as ltorch
from thunder.core.prims import get_grad
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.autograd.rules import Rule, put
from thunder_fuser.frontends.thunder.composites import norms
from thunder_fuser.frontends.thunder.composites.arguments import wide
from thunder_fuser.frontends.thunder.composites.norms import grouped, of_channels


class _Norm(NamedTuple):
    """Operands and statistics of a norm.

    mean, scale   of x's rank, with size 1 in reduced dimensions; no mean for rms_norm
    weight, bias  broadcastable to x; possibly only its last dimensions
    """

    x: TensorProxy
    mean: TensorProxy | None
    scale: TensorProxy
    weight: TensorProxy | None
    bias: TensorProxy | None

    @property
    def _apart(self) -> TensorProxy:
        return wide(self.x) if self.mean is None else wide(self.x) - self.mean

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of weight and bias, with leading 1s to x's rank."""
        parameter = self.bias if self.weight is None else self.weight
        own: tuple[int, ...] = () if parameter is None else tuple(parameter.shape)
        missing: int = self.x.ndim - len(own)
        return (1,) * missing + own

    def gradients(self, g: TensorProxy) -> tuple[TensorProxy, TensorProxy, TensorProxy]:
        """Return the gradients of x, weight and bias. Reduced dimensions along which weight and
        bias are broadcast are summed first: gradients of both need these sums, too.
        """
        dims = [k for k, size in enumerate(self.scale.shape) if size != self.x.shape[k]]
        alike = [d for d in dims if self._shape[d] == 1]
        others = [d for d in dims if self._shape[d] != 1]
        apart, factor, weighted = self._apart, self.scale, g
        if self.weight is not None and not others:
            factor = factor * wide(self.weight)
        elif self.weight is not None:
            weighted = g * wide(self.weight)
        if alike:
            each = _summed(g, alike), _summed(g * apart, alike)
            of_weight, of_bias = each[1] * self.scale, each[0]
            shown = others and self.weight is not None
            sums = [t * wide(self.weight) for t in each] if shown else each
        else:
            of_weight, of_bias = g * (apart * self.scale), g
            sums = weighted, weighted * apart
        total, along = (_summed(t, others) for t in sums)
        count = max(math.prod(self.x.shape[d] for d in dims), 1)
        # Multiplied by one scale after the other, as their product may overflow.
        shift = apart * (along * self.scale * self.scale / count * factor)
        if self.mean is not None and dims:
            shift = shift + total / count * factor
        elif self.mean is not None:
            # Each element is its own mean, and the difference exactly 0.
            weighted = weighted - total
        gradient = weighted * factor - shift
        return gradient, self._of_parameter(of_weight), self._of_parameter(of_bias)

    def gradients_of_known(self, g: TensorProxy) -> tuple[TensorProxy, TensorProxy, TensorProxy]:
        """Return the gradients if statistics are constants: running ones, in evaluation mode."""
        factor = self.scale if self.weight is None else self.scale * wide(self.weight)
        return g * factor, *self._of_parameters(g)

    def _of_parameters(self, g: TensorProxy) -> tuple[TensorProxy, TensorProxy]:
        return self._of_parameter(g * (self._apart * self.scale)), self._of_parameter(g)

    def _of_parameter(self, each: TensorProxy) -> TensorProxy:
        return _summed(each, [k for k, size in enumerate(self._shape) if size != each.shape[k]])


def _summed(x: TensorProxy, dims: Sequence[int]) -> TensorProxy:
    return ltorch.sum(x, tuple(dims), keepdim=True) if dims else x


def _put(gradients: Sequence[TensorProxy], *operands: TensorProxy | None) -> None:
    for operand, gradient in zip(operands, gradients, strict=False):
        if operand is not None:
            put(operand, ltorch.reshape(gradient, operand.shape))


def _layer_norm(
    a: TensorProxy,
    /,
    normalized_shape: Sequence[int],
    weight: TensorProxy | None = None,
    bias: TensorProxy | None = None,
    eps: float = 1e-5,
) -> TensorProxy:
    result, mean, scale = norms.layer_norm(a, normalized_shape, weight, bias, eps)
    _put(_Norm(a, mean, scale, weight, bias).gradients(wide(get_grad(result))), a, weight, bias)
    return result


def _rms_norm(
    a: TensorProxy,
    /,
    normalized_shape: Sequence[int],
    weight: TensorProxy | None = None,
    eps: float | None = None,
) -> TensorProxy:
    result, scale = norms.rms_norm(a, normalized_shape, weight, eps)
    _put(_Norm(a, None, scale, weight, None).gradients(wide(get_grad(result))), a, weight)
    return result


def _group_norm(
    a: TensorProxy,
    /,
    num_groups: int,
    weight: TensorProxy | None = None,
    bias: TensorProxy | None = None,
    eps: float = 1e-5,
) -> TensorProxy:
    if not a.numel:
        return _of_nothing(ltorch.group_norm(a, num_groups, weight, bias, eps), a, weight, bias)
    result, mean, scale = norms.group_norm(a, num_groups, weight, bias, eps)
    x = grouped(a, num_groups)
    norm = _Norm(x, mean, scale, of_channels(weight, x.shape), of_channels(bias, x.shape))
    _put(norm.gradients(ltorch.reshape(wide(get_grad(result)), x.shape)), a, weight, bias)
    return result


def _batch_norm(
    a: TensorProxy,
    running_mean: TensorProxy | None = None,
    running_var: TensorProxy | None = None,
    weight: TensorProxy | None = None,
    bias: TensorProxy | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> TensorProxy:
    running, affine = (running_mean, running_var), (weight, bias)
    shown = [of_channels(p, a.shape) for p in affine]
    if training and a.numel:
        result, mean, scale = norms.BATCH_NORM(a, *running, *affine, momentum, eps)
        _put(_Norm(a, mean, scale, *shown).gradients(wide(get_grad(result))), a, *affine)
        return result
    result = ltorch.batch_norm(a, *running, *affine, training, momentum, eps)
    if not a.numel:
        return _of_nothing(result, a, *affine)
    mean, variance = (of_channels(p, a.shape) for p in running)
    norm = _Norm(a, mean, ltorch.rsqrt(wide(variance) + eps), *shown)
    _put(norm.gradients_of_known(wide(get_grad(result))), a, *affine)
    return result


def _of_nothing(
    result: TensorProxy, a: TensorProxy, *parameters: TensorProxy | None
) -> TensorProxy:
    """Put gradients for an empty input: those of parameters are 0, whatever the statistics."""
    g = get_grad(result)
    total = ltorch.sum(g, (0, *range(2, a.ndim)))
    _put((g, total, total), a, *parameters)
    return result


RULES: Mapping[str, Rule] = {
    "torch.layer_norm": _layer_norm,
    "torch.rms_norm": _rms_norm,
    "torch.nn.functional.group_norm": _group_norm,
    "torch.batch_norm": _batch_norm,
}
"""Grad transforms by symbol id, which the executor registers."""
