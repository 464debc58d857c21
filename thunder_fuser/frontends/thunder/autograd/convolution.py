"""Convolutions left whole, and their gradients: one call for those that are wanted.

Thunder writes the gradients as convolutions of zero-dilated gradients, between transposes and pads,
each of which goes through memory; torch's libraries have kernels for both. The gradient rule makes
two calls, so that an input without gradient costs nothing; where both are wanted,
`trace/joint_gradients.py` makes them one.

Adding the bias, and summing its gradient, are operations that fuse with their neighbours. On a CPU,
whose libraries add the bias before they round, the forward's bias stays with the convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import thunder.torch as ltorch
import torch
from thunder.core.dtypes import is_float_dtype
from thunder.core.prims import PrimIDs, get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.extend import FusionExecutor
from torch import Tensor

from thunder_fuser.frontends.thunder.claims.operands import is_static

_gradients = torch.ops.aten.convolution_backward.default

NAMES = (
    "fuser_convolution",
    "fuser_convolution_input_gradient",
    "fuser_convolution_weight_gradient",
    "fuser_convolution_gradients",
)


class Symbols(NamedTuple):
    """Operators: the forward, the gradient of the input, and the gradient of the weight."""

    whole: Symbol
    of_input: Symbol
    of_weight: Symbol


def register(executor: FusionExecutor) -> Symbols:
    """Register the operators, and claim convolutions with grad transforms if `is_claimed`."""
    symbols = Symbols(
        executor.register_operator(NAMES[0], meta=_meta, fn=torch.convolution),
        executor.register_operator(NAMES[1], meta=_like_input, fn=_of_input),
        executor.register_operator(NAMES[2], meta=_like_weight, fn=_of_weight),
    )
    executor.register_operator(NAMES[3], meta=_like_both, fn=_of_both)
    for symbol in (ltorch.conv1d, ltorch.conv2d, ltorch.conv3d):
        executor.register_supported(symbol.id, _has_images, execution_transform=_of_images(symbols))
    executor.register_supported(
        PrimIDs.CONVOLUTION,
        is_claimed,
        execution_transform=_alone(symbols),
        grad_transform=_gradient(symbols),
    )
    return symbols


def is_claimed(
    x: object,
    weight: object,
    bias: object,
    stride: Sequence[object],
    padding: Sequence[object],
    dilation: Sequence[object],
    transposed: object,
    output_padding: Sequence[object],
    groups: object,
) -> bool:
    """True for a non-transposed convolution of static shapes, options known at trace time and one
    floating-point dtype; Thunder handles all others.
    """
    tensors = [x, weight, *([] if bias is None else [bias])]
    if not all(type(t) is TensorProxy and is_static(t.shape) for t in tensors):  # type: ignore[attr-defined]
        return False
    types = {t.dtype for t in tensors}  # type: ignore[attr-defined]
    numbers = (*stride, *padding, *dilation, *output_padding, groups)
    known = all(type(n) is int for n in numbers) and type(transposed) in (bool, int)
    return known and len(types) == 1 and is_float_dtype(types.pop()) and not transposed


def _images(
    x: TensorProxy,
    weight: TensorProxy,
    bias: TensorProxy | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> tuple[Any, ...]:
    """Return the prim's arguments for those of `conv1d`, `conv2d` or `conv3d`."""
    each = (v if isinstance(v, Sequence) else (v,) for v in (stride, padding, dilation))
    return (x, weight, bias, *each, False, (0,), groups)


def _has_images(*args: Any, **kwargs: Any) -> bool:
    """True if the prim covers the call; an unbatched input and a padding mode as string do not."""
    arguments = _images(*args, **kwargs)
    return is_claimed(*arguments) and arguments[0].ndim == arguments[1].ndim


def _of_images(symbols: Symbols) -> Callable[..., TensorProxy]:
    return lambda *args, **kwargs: _forward(symbols, *_images(*args, **kwargs))


def _forward(
    symbols: Symbols,
    x: TensorProxy,
    weight: TensorProxy,
    bias: TensorProxy | None,
    *options: object,
) -> TensorProxy:
    apart = bias is not None and x.device.type != "cpu"
    result: TensorProxy = symbols.whole(x, weight, None if apart else bias, *options)
    if bias is None or not apart:
        return result
    shown: TensorProxy = ltorch.reshape(bias, [-1] + [1] * (x.ndim - 2))
    return ltorch.add(result, shown)


def _alone(symbols: Symbols) -> Callable[..., TensorProxy]:
    def transform(
        x: TensorProxy,
        weight: TensorProxy,
        bias: TensorProxy | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: int,
        output_padding: Sequence[int],
        groups: int,
    ) -> TensorProxy:
        options = (stride, padding, dilation, bool(transposed), output_padding, groups)
        return _forward(symbols, x, weight, bias, *options)

    return transform


def _gradient(symbols: Symbols) -> Callable[..., TensorProxy]:
    def rule(
        x: TensorProxy,
        weight: TensorProxy,
        bias: TensorProxy | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: int,
        output_padding: Sequence[int],
        groups: int,
    ) -> TensorProxy:
        options = (stride, padding, dilation, bool(transposed), output_padding, groups)
        result = _forward(symbols, x, weight, bias, *options)
        g = get_grad(result)
        put_grad(x, symbols.of_input(g, x, weight, *options))
        put_grad(weight, symbols.of_weight(g, x, weight, *options))
        if bias is not None:
            put_grad(bias, ltorch.sum(g, [k for k in range(g.ndim) if k != 1]))
        return result

    return rule


# ---- meta functions


def _meta(
    x: TensorProxy,
    weight: TensorProxy,
    bias: TensorProxy | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *others: object,
) -> TensorProxy:
    spatial = x.ndim - 2
    steps, pads, gaps = (
        tuple(given) * spatial if len(given) == 1 else given
        for given in (stride, padding, dilation)
    )
    reach = [gap * (taps - 1) for gap, taps in zip(gaps, weight.shape[2:], strict=True)]
    image = [
        (n + 2 * pad - far - 1) // step + 1
        for n, pad, far, step in zip(x.shape[2:], pads, reach, steps, strict=True)
    ]
    return TensorProxy(like=x, shape=(x.shape[0], weight.shape[0], *image))


def _like_input(g: TensorProxy, x: TensorProxy, *others: object) -> TensorProxy:
    return TensorProxy(like=x, shape=tuple(x.shape))


def _like_weight(
    g: TensorProxy, x: TensorProxy, weight: TensorProxy, *others: object
) -> TensorProxy:
    return TensorProxy(like=weight, shape=tuple(weight.shape))


def _like_both(
    g: TensorProxy, x: TensorProxy, weight: TensorProxy, *others: object
) -> tuple[TensorProxy, TensorProxy]:
    return _like_input(g, x), _like_weight(g, x, weight)


# ---- implementations


def _of_input(g: Tensor, x: Tensor, weight: Tensor, *options: object) -> Tensor:
    return _gradients(g, x, weight, None, *options, [True, False, False])[0]


def _of_weight(g: Tensor, x: Tensor, weight: Tensor, *options: object) -> Tensor:
    return _gradients(g, x, weight, None, *options, [False, True, False])[1]


def _of_both(g: Tensor, x: Tensor, weight: Tensor, *options: object) -> tuple[Tensor, Tensor]:
    of_input, of_weight, _ = _gradients(g, x, weight, None, *options, [True, True, False])
    return of_input, of_weight
