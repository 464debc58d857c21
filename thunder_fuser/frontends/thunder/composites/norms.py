"""Norms that also return the statistics that their gradients read, in fp32 for 16-bit inputs.

Thunder's own return the result alone, and a backward cannot read a call's intermediate values. The
operations are Thunder's, except that 16-bit operands are converted first. Statistics have the rank
of the normalised tensor, with size 1 in reduced dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.clang import maybe_convert_to_dtype
from thunder.core.dtypes import to_torch_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol

from thunder_fuser.frontends.thunder.composites.arguments import rounded, wide

Normalized = tuple[TensorProxy, TensorProxy, TensorProxy]
"""Result, mean, and reciprocal standard deviation."""


def grouped(a: TensorProxy, num_groups: int) -> TensorProxy:
    """Reshape to [batch, groups, channels of a group, ...]."""
    return ltorch.reshape(a, (a.shape[0], num_groups, a.shape[1] // num_groups, *a.shape[2:]))


def of_channels(parameter: TensorProxy | None, shape: Sequence[int]) -> TensorProxy | None:
    """Reshape a per-channel parameter to broadcast to `shape`, in which channels may be grouped."""
    if parameter is None:
        return None
    if parameter.shape[0] == shape[1]:
        return ltorch.reshape(parameter, (1, shape[1], *(1,) * (len(shape) - 2)))
    return ltorch.reshape(parameter, (1, *shape[1:3], *(1,) * (len(shape) - 3)))


def layer_norm(
    a: TensorProxy,
    /,
    normalized_shape: Sequence[int],
    weight: TensorProxy | None = None,
    bias: TensorProxy | None = None,
    eps: float = 1e-5,
) -> Normalized:
    # With sharded parameters, `normalized_shape` differs from the sizes of the tensors.
    parameter = bias if weight is None else weight
    ndim = len(normalized_shape if parameter is None else parameter.shape)
    dims = tuple(range(a.ndim - ndim, a.ndim))
    x = wide(a)
    variance, mean = ltorch.var_mean(x, dims, correction=0, keepdim=True)
    scale = ltorch.rsqrt(variance + eps)
    return _affine((x - mean) * scale, weight, bias, a), mean, scale


def rms_norm(
    a: TensorProxy,
    /,
    normalized_shape: Sequence[int],
    weight: TensorProxy | None = None,
    eps: float | None = None,
) -> tuple[TensorProxy, TensorProxy]:
    """Return the result, and the reciprocal root mean square."""
    x = wide(a)
    if eps is None:
        eps = torch.finfo(to_torch_dtype(x.dtype)).eps
    dims = tuple(range(a.ndim - len(normalized_shape), a.ndim))
    scale = ltorch.rsqrt(ltorch.mean(x * x, dim=dims, keepdim=True) + eps)
    return _affine(x * scale, weight, None, a), scale


def group_norm(
    a: TensorProxy,
    /,
    num_groups: int,
    weight: TensorProxy | None = None,
    bias: TensorProxy | None = None,
    eps: float = 1e-5,
) -> Normalized:
    x = wide(grouped(a, num_groups))
    variance, mean = ltorch.var_mean(x, tuple(range(2, x.ndim)), correction=0, keepdim=True)
    scale = ltorch.rsqrt(variance + eps)
    normal = ltorch.reshape((x - mean) * scale, a.shape)
    return _of_channels(normal, weight, bias, a), mean, scale


def _batch_norm(
    a: TensorProxy,
    /,
    running_mean: TensorProxy | None,
    running_var: TensorProxy | None,
    weight: TensorProxy | None,
    bias: TensorProxy | None,
    momentum: float,
    eps: float,
) -> Normalized:
    """Batch norm in training mode, with an update of the running statistics."""
    dims = (0, *range(2, a.ndim))
    x = wide(a)
    variance, mean = ltorch.var_mean(x, dims, correction=0, keepdim=True)
    scale = ltorch.rsqrt(variance + eps)
    count = a.numel / a.shape[1]
    for running, new in ((running_mean, mean), (running_var, variance * (count / (count - 1)))):
        if running is not None:
            update_running(running, ltorch.reshape(new, running.shape), momentum)
    return _of_channels((x - mean) * scale, weight, bias, a), mean, scale


def update_running(running: TensorProxy, new: TensorProxy, momentum: float) -> None:
    """Update a running statistic by that of a batch, of the same size."""
    moved = (1 - momentum) * running + momentum * new
    ltorch._copy_(running, maybe_convert_to_dtype(moved, running.dtype))


def _of_channels(
    normal: TensorProxy, weight: TensorProxy | None, bias: TensorProxy | None, like: TensorProxy
) -> TensorProxy:
    return _affine(normal, of_channels(weight, like.shape), of_channels(bias, like.shape), like)


def _affine(
    normal: TensorProxy, weight: TensorProxy | None, bias: TensorProxy | None, like: TensorProxy
) -> TensorProxy:
    weighted = normal if weight is None else normal * weight
    return rounded(weighted if bias is None else weighted + bias, like)


BATCH_NORM = Symbol("batch_norm_in_training", meta=_batch_norm, id="batch_norm_in_training")
"""Batch norm in training mode as one call, which includes the update of running statistics."""


def native_batch_norm(
    symbol: Callable[..., Any],
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    *options: float,
) -> Any:
    """Raise NotImplementedError for running statistics, which Thunder's call updates unseen."""
    if training and running_mean is not None:
        raise NotImplementedError(
            "native_batch_norm updates its running statistics, which a trace does not see: call "
            "torch.nn.functional.batch_norm"
        )
    return symbol(input, weight, bias, running_mean, running_var, training, *options)
