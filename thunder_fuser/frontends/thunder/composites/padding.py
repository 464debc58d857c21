"""Pads with elements of the tensor itself: `reflect`, `replicate` and `circular`.

Thunder pads with constants only. Along each dimension such a pad is a cat of the tensor with slices
of it, flipped or expanded, which a kernel reads where it needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol

from thunder_fuser.frontends.thunder.claims.operands import is_static
from thunder_fuser.frontends.thunder.composites.arguments import cut, rounded, wide


def pad(
    symbol: Symbol,
    input: TensorProxy,
    pad: Sequence[int],
    mode: str = "constant",
    value: Any = None,
) -> TensorProxy:
    """Pad as `torch.nn.functional.pad`, whose errors it raises; `symbol` pads with constants."""
    if mode not in _ENDS or not is_static(input.shape):
        if mode == "constant" and is_static(pad):
            value = _stored(input, value) if any(n > 0 for n in pad) else None
        padded: TensorProxy = symbol(input, pad, mode, value)
        return padded
    _check(input, pad, mode, value)
    # Gradients, which are sums, are rounded once.
    result = wide(input) if dtypes.is_float_dtype(input.dtype) else input
    for k in range(len(pad) // 2):
        before, after = pad[2 * k : 2 * k + 2]
        result = _padded(result, input.ndim - 1 - k, before, after, mode)
    result = rounded(result, input)
    if not any(n > 0 for n in pad):  # A slice, or all of the operand, which torch copies.
        result = ltorch.clone(result)
    # Torch writes the others in the memory format of their operand.
    return ltorch.contiguous(result) if mode == "circular" and input.ndim > 3 else result


def _check(x: TensorProxy, pad: Sequence[int], mode: str, value: Any) -> None:
    """Raise torch's error for sizes, or a dtype, that it does not pad."""
    dtype = dtypes.to_torch_dtype(x.dtype)
    sized = torch.empty(tuple(x.shape), dtype=dtype, device="meta")
    torch.nn.functional.pad(sized, tuple(pad), mode, value)
    # Dtypes are refused by kernels, and so not for meta tensors.
    small = torch.zeros([4] * x.ndim, dtype=dtype, device="cpu")
    torch.nn.functional.pad(small, [1] * len(pad), mode, value)


def _stored(x: TensorProxy, value: Any) -> Any:
    """Return a value that elements of x can hold; raise torch's error for another one."""
    if type(value) in (int, float):
        element = torch.zeros(1, dtype=dtypes.to_torch_dtype(x.dtype), device="cpu")
        torch.nn.functional.pad(element, (0, 1), value=value)
    return value


Ends = Callable[[TensorProxy, int, int, int], tuple[TensorProxy, TensorProxy]]
"""Takes a tensor, a dimension, and how many elements are needed before and after it."""


def _padded(x: TensorProxy, dim: int, before: int, after: int, mode: str) -> TensorProxy:
    """Pad one dimension. A negative width removes elements: of the tensor before it is wrapped
    around, and else of the padded tensor.
    """
    removed = max(-before, 0), max(-after, 0)
    if mode == "circular":
        x = _cropped(x, dim, *removed)
    first, last = _ENDS[mode](x, dim, max(before, 0), max(after, 0))
    parts = [part for part in (first, x, last) if part.shape[dim]]
    result = ltorch.cat(parts, dim) if len(parts) > 1 else x
    return result if mode == "circular" else _cropped(result, dim, *removed)


def _cropped(x: TensorProxy, dim: int, before: int, after: int) -> TensorProxy:
    return cut(x, dim, before, int(x.shape[dim]) - after) if before or after else x


def _reflected(
    x: TensorProxy, dim: int, before: int, after: int
) -> tuple[TensorProxy, TensorProxy]:
    """The elements next to each border in reverse order, without those at the border."""
    size = int(x.shape[dim])
    first, last = cut(x, dim, 1, before + 1), cut(x, dim, size - 1 - after, size - 1)
    return ltorch.flip(first, (dim,)), ltorch.flip(last, (dim,))


def _repeated(x: TensorProxy, dim: int, before: int, after: int) -> tuple[TensorProxy, TensorProxy]:
    """The elements at the borders."""
    size = int(x.shape[dim])
    widths = [[n if k == dim else -1 for k in range(x.ndim)] for n in (before, after)]
    first, last = cut(x, dim, 0, 1), cut(x, dim, size - 1, size)
    return ltorch.expand(first, *widths[0]), ltorch.expand(last, *widths[1])


def _wrapped(x: TensorProxy, dim: int, before: int, after: int) -> tuple[TensorProxy, TensorProxy]:
    """The elements at the other border."""
    size = int(x.shape[dim])
    if max(before, after) > size:
        raise NotImplementedError(
            f"pad: {max(before, after)} elements around dimension {dim}, of which negative widths "
            f"leave {size}; remove elements by a slice and pad the rest"
        )
    return cut(x, dim, size - before, size), cut(x, dim, 0, after)


_ENDS: Mapping[str, Ends] = {"reflect": _reflected, "replicate": _repeated, "circular": _wrapped}
