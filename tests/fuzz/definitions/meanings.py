"""What each operation of `fd.ops` means, in torch, on float64 and the widest integers.

Written from the operations' documentation, beside the builder and the reference evaluator that the
compiler has: those are compared with it. Operands are carriers of the evaluator (see
`ir/reference.py`), numbers where the operation takes numbers, and lists of either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

Meaning = Callable[..., "Tensor | Sequence[Tensor]"]
Dims = int | Sequence[int] | None


def _sizes(values: Sequence[Any]) -> list[int]:
    return [int(v) for v in values]


# ---- views


def _same(arg: Tensor, *_: object, **__: object) -> Tensor:
    return arg


def _broadcast(arg: Tensor, is_broadcast_dim: Sequence[bool]) -> Tensor:
    for k, is_new in enumerate(is_broadcast_dim):
        arg = arg.unsqueeze(k) if is_new else arg
    return arg


def _broadcast_in_dim(arg: Tensor, shape: Sequence[Any], broadcast_dims: Sequence[int]) -> Tensor:
    sizes, kept = _sizes(shape), list(broadcast_dims)
    made = _broadcast(arg, [k not in kept for k in range(len(sizes))])
    return made.expand(sizes)


def _squeeze(arg: Tensor, dims: Sequence[int], squeeze_expanded: bool = False) -> Tensor:
    for dim in sorted((d % arg.dim() for d in dims), reverse=True):
        arg = arg.narrow(dim, 0, 1) if squeeze_expanded else arg
        assert arg.shape[dim] == 1
        arg = arg.squeeze(dim)
    return arg


def _slice(
    arg: Tensor, start_indices: Any, end_indices: Any, strides: Any = None, *_: object
) -> Tensor:
    starts, ends = _sizes(start_indices), _sizes(end_indices)
    steps = [1] * arg.dim() if strides is None else _sizes(strides)
    return arg[tuple(slice(*part) for part in zip(starts, ends, steps, strict=True))]


def _pad(arg: Tensor, pad_widths: Sequence[Any], value: Any = 0) -> Tensor:
    widths = _sizes(pad_widths)
    for k in range(0, len(widths), 2):
        dim = arg.dim() - 1 - k // 2
        for width, place in zip(widths[k : k + 2], (0, 1), strict=True):
            size = arg.shape[dim]
            if width < 0:
                arg = arg.narrow(dim, -width * (1 - place), size + width)
            else:
                sizes = [width if d == dim else n for d, n in enumerate(arg.shape)]
                filled = _filled(sizes, value, arg.dtype)
                arg = torch.cat([arg, filled] if place else [filled, arg], dim)
    return arg


def _as_tensor(value: Any) -> Tensor:
    """A number in the widest dtype of its kind."""
    if isinstance(value, Tensor):
        return value
    made = torch.tensor(value)
    wide = torch.complex128 if made.is_complex() else torch.float64
    return (
        torch.tensor(value, dtype=wide) if made.is_floating_point() or made.is_complex() else made
    )


def _filled(sizes: Sequence[int], value: Any, dtype: torch.dtype) -> Tensor:
    number = _as_tensor(value)
    if number.is_complex() and not dtype.is_complex and dtype is not torch.bool:
        number = number.real
    return number.to(dtype).expand(list(sizes))


def _full(shape: Sequence[Any], fill_value: Any, dtype: Any) -> Tensor:
    return _as_tensor(fill_value).expand(_sizes(shape))


def _iota(length: Any, start: Any = 0, step: Any = 1, dtype: Any = None) -> Tensor:
    count = torch.arange(int(length))
    return start + count * step


def _view(arg: Tensor, op: str, transforms: Sequence[Sequence[Any]], value: Any = 0) -> Tensor:
    for word, *numbers in transforms:
        sizes = list(arg.shape)
        match word, numbers:
            case "merge", [axis]:
                sizes[axis : axis + 2] = [sizes[axis] * sizes[axis + 1]]
                arg = arg.reshape(sizes)
            case "split", [axis, outer, inner]:
                sizes[axis : axis + 1] = [outer, inner]
                arg = arg.reshape(sizes)
            case "resize", [axis, left, right]:
                widths = [0] * (2 * (arg.dim() - axis))
                widths[-2:] = [left, right]
                arg = _pad(arg, widths, value)
            case "reorder", [order]:
                arg = arg.permute(list(order))
    return arg


# ---- reductions and scans


def _dims(arg: Tensor, dims: Dims) -> list[int]:
    if dims is None:
        return list(range(arg.dim()))
    return [d % max(arg.dim(), 1) for d in ([dims] if isinstance(dims, int) else dims)]


def _rows(arg: Tensor, dims: Sequence[int]) -> Tensor:
    """The folded dimensions as one, the last."""
    kept = [d for d in range(arg.dim()) if d not in dims]
    sizes = [arg.shape[d] for d in kept]
    count = math.prod(arg.shape[d] for d in dims)
    return arg.permute([*kept, *dims]).reshape([*sizes, count])


def _reduction(fold: Callable[[Tensor], Tensor]) -> Meaning:
    def meaning(
        arg: Tensor,
        dims: Dims = None,
        keepdim: bool = False,
        dtype: Any = None,
        *,
        dim: Dims = None,
        keep_dim: bool | None = None,
    ) -> Tensor:
        axes = sorted(_dims(arg, dims if dim is None else dim))
        found = fold(_rows(arg, axes))
        for axis in axes if keepdim or keep_dim else ():
            found = found.unsqueeze(axis)
        return found

    return meaning


def _xor(rows: Tensor) -> Tensor:
    found = torch.zeros(rows.shape[:-1], dtype=rows.dtype)
    for k in range(rows.shape[-1]):
        found = found ^ rows[..., k]
    return found


def _position(sign: int) -> Callable[[Tensor], Tensor]:
    def found(rows: Tensor) -> Tensor:
        """The first NaN, or else the first of the largest."""
        values = rows if rows.dtype.is_floating_point else rows.to(torch.int64)
        best = values.amax(-1, keepdim=True) if sign > 0 else values.amin(-1, keepdim=True)
        hits = (values == best) | (values != values)
        return hits.to(torch.int64).argmax(-1)

    return found


def _variance(rows: Tensor, correction: float) -> Tensor:
    return _deviations(rows) / max(rows.shape[-1] - correction, 0)


def _mean(rows: Tensor) -> Tensor:
    return rows.sum(-1) / rows.shape[-1] if rows.shape[-1] else rows.sum(-1) / 0.0


def _deviations(rows: Tensor) -> Tensor:
    return (rows - _mean(rows).unsqueeze(-1)).abs().square().sum(-1)


def _var_mean(
    arg: Tensor, dims: Dims = None, correction: float = 1, keepdim: bool = False, **named: Any
) -> list[Tensor]:
    folds = (lambda rows: _variance(rows, correction), _mean)
    return [_reduction(fold)(arg, dims, keepdim, **named) for fold in folds]


def _welford(arg: Tensor, dims: Dims = None, **named: Any) -> list[Tensor]:
    folds = (_mean, _deviations, lambda rows: torch.full(rows.shape[:-1], rows.shape[-1]))
    return [_reduction(fold)(arg, dims, **named) for fold in folds]


def _scan(fold: Callable[[Tensor, int], Tensor], pair: Callable[..., Tensor]) -> Meaning:
    def meaning(arg: Tensor, dim: int, init: Any = None, *, dtype: Any = None) -> Tensor:
        wide = arg if arg.is_floating_point() or arg.is_complex() else arg.to(torch.int64)
        scanned = fold(wide, dim)
        if init is None:
            return scanned
        first = _as_tensor(init)
        return pair(scanned, first.to(torch.promote_types(scanned.dtype, first.dtype)))

    return meaning


# ---- reads at an index


def _index_select(arg: Tensor, index: Tensor, dim: int) -> Tensor:
    return arg.index_select(dim, index.reshape(-1).to(torch.int64))


def _take_along_axis(arg: Tensor, index: Tensor, dim: int) -> Tensor:
    axis = dim % arg.dim()
    common = torch.broadcast_shapes(
        *([n for d, n in enumerate(t.shape) if d != axis] for t in (arg, index))
    )
    sizes = [list(common), list(common)]
    for size, t in zip(sizes, (arg, index), strict=True):
        size.insert(axis, t.shape[axis])
    return arg.expand(sizes[0]).gather(axis, index.expand(sizes[1]).to(torch.int64))


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: Any = None,
    max_norm: Any = None,
    norm_type: Any = None,
    *_: object,
    **__: object,
) -> Tensor:
    rows = weight[input.to(torch.int64)]
    if max_norm is None:
        return rows
    norm = rows.norm(2.0 if norm_type is None else norm_type, -1, keepdim=True)
    return torch.where(norm > max_norm, rows * (max_norm / (norm + 1e-7)), rows)


MEANINGS: Mapping[str, Meaning] = MappingProxyType(
    {
        **dict.fromkeys(("set", "segment_set", "stride_order"), _same),
        "permute": lambda arg, dims: arg.permute(list(dims)),
        "broadcast": _broadcast,
        "broadcast_in_dim": _broadcast_in_dim,
        "expand": lambda arg, shape: arg.expand(_sizes(shape)),
        "squeeze": _squeeze,
        "reshape": lambda arg, new_shape: arg.reshape(_sizes(new_shape)),
        "slice": _slice,
        "pad": _pad,
        "cat": lambda tensors, dim=0, *_: torch.cat(list(tensors), dim),
        "full": _full,
        "iota": _iota,
        "size": lambda arg, dim: torch.tensor(arg.shape[dim]),
        "shape": lambda arg: [torch.tensor(n) for n in arg.shape],
        "at": lambda vector, index: vector[index],
        "view": _view,
        "sum": _reduction(lambda rows: rows.sum(-1)),
        "prod": _reduction(lambda rows: rows.prod(-1)),
        "max": _reduction(lambda rows: rows.amax(-1)),
        "min": _reduction(lambda rows: rows.amin(-1)),
        "xor_sum": _reduction(_xor),
        "any": _reduction(lambda rows: (rows != 0).any(-1)),
        "all": _reduction(lambda rows: (rows != 0).all(-1)),
        "argmax": _reduction(_position(1)),
        "argmin": _reduction(_position(-1)),
        "var": lambda *args, **named: _var_mean(*args, **named)[0],
        "var_mean": _var_mean,
        "welford": _welford,
        "cumsum": _scan(torch.cumsum, torch.add),
        "cumprod": _scan(torch.cumprod, torch.mul),
        "cummax": _scan(lambda x, dim: torch.cummax(x, dim).values, torch.maximum),
        "cummin": _scan(lambda x, dim: torch.cummin(x, dim).values, torch.minimum),
        "index_select": _index_select,
        "take_along_axis": _take_along_axis,
        "gather": lambda arg, index, dim: arg.gather(dim, index.to(torch.int64)),
        "embedding_fwd": _embedding,
        "triu": lambda arg, diagonal=0: arg.triu(int(diagonal)),
        "tril": lambda arg, diagonal=0: arg.tril(int(diagonal)),
        "select": lambda arg, index, dim: arg.select(dim, int(index)),
    }
)
"""By name; pointwise operations, random numbers and torch calls have tables of their own."""
