"""Shapes of torch calls: sizes, dtypes and memory orders of their results, which sizes must be
equal, FLOPs, and how many terms are summed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.domain import Extent
from thunder_fuser.ir.dtypes import Category, DataType
from thunder_fuser.ir.tables.indexing import INDEX_DTYPES


@dataclass(frozen=True, slots=True)
class Shaped:
    """Shape, dtype and memory order of an operand or result.

    order  dimensions in memory order, outermost first; row-major if empty
    """

    shape: tuple[Extent, ...]
    dtype: DataType
    order: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.shape)


Operands = Mapping[str, Shaped]
Attributes = Mapping[str, Any]
Results = tuple[Shaped, ...]
Place = tuple[str, int]
"""(operand, dimension); the dimension counts from the end if negative."""


def _numbers(o: Operands, *names: str) -> DataType:
    """The common float or complex dtype of some operands; FuserTypeError if there is none."""
    found = [o[name].dtype for name in names if name in o]
    if found[0].category < Category.FLOAT or any(dtype is not found[0] for dtype in found):
        told = ", ".join(f"{n} {o[n].dtype.name}" for n in names if n in o)
        raise FuserTypeError(f"expected one floating dtype, got {told}; cast them first")
    return found[0]


def _ranks(o: Operands, **wanted: int | tuple[int, ...]) -> None:
    for name, ranks in wanted.items():
        allowed = ranks if isinstance(ranks, tuple) else (ranks,)
        if name in o and o[name].rank not in allowed:
            expected = " or ".join(map(str, allowed))
            raise FuserValueError(f"{name}: expected {expected} dimensions, got {o[name].rank}")


def _index(o: Operands, name: str) -> None:
    if o[name].dtype not in INDEX_DTYPES:
        raise FuserTypeError(
            f"{name}: expected an index of dtype Int or Int32, got {o[name].dtype.name}; "
            "cast it first"
        )


def _axis(x: Shaped, dim: int) -> int:
    rank = max(x.rank, 1)
    if not -rank <= dim < rank:
        raise FuserValueError(f"dim {dim} is out of range for {x.rank} dimensions")
    return dim % rank


def _size(extent: Extent) -> int:
    return extent if isinstance(extent, int) else 0


def numel(shape: Iterable[Extent]) -> int:
    return math.prod(map(_size, shape))


# ---- matrix products


def linear(o: Operands, _a: Attributes) -> Results:
    dtype = _numbers(o, "arg1", "arg2", "bias")
    _ranks(o, arg2=(1, 2), bias=o["arg2"].rank - 1)
    if not o["arg1"].rank:
        raise FuserValueError("arg1: expected at least 1 dimension, got 0")
    return (Shaped((*o["arg1"].shape[:-1], *o["arg2"].shape[:-1]), dtype),)


def linear_equal(o: Operands, _a: Attributes) -> Iterable[tuple[Place, Place]]:
    yield ("arg1", -1), ("arg2", -1)
    if "bias" in o and o["bias"].rank and o["arg2"].rank == 2:
        yield ("arg2", 0), ("bias", 0)


def inner(name: str, other: str = "") -> Callable[[Operands, Attributes], int]:
    """Terms per element: the last dimension of an operand, and one for `other` if it is given."""

    def terms(o: Operands, _a: Attributes) -> int:
        return _size(o[name].shape[-1]) + (other in o)

    return terms


def product_flops(row: Callable[[Operands, Attributes], Results], name: str) -> Any:
    def flops(o: Operands, a: Attributes) -> int:
        return 2 * numel(row(o, a)[0].shape) * _size(o[name].shape[-1])

    return flops


def matmul(o: Operands, _a: Attributes) -> Results:
    dtype = _numbers(o, "arg1", "arg2")
    a, b = o["arg1"], o["arg2"]
    if not (a.rank and b.rank):
        raise FuserValueError("expected at least 1 dimension of each operand; multiply numbers")
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if b.rank > 1 else ()
    return (Shaped((*_batch(a.shape[:-2], b.shape[:-2]), *rows, *columns), dtype),)


def _batch(a: tuple[Extent, ...], b: tuple[Extent, ...]) -> tuple[Extent, ...]:
    """Sizes of batch dimensions broadcast to each other, aligned at the right."""
    rank = max(len(a), len(b))
    left = (*(1,) * (rank - len(a)), *a)
    right = (*(1,) * (rank - len(b)), *b)
    return tuple(n if m == 1 else m for n, m in zip(left, right, strict=True))


def matmul_equal(o: Operands, _a: Attributes) -> Iterable[tuple[Place, Place]]:
    a, b = o["arg1"], o["arg2"]
    yield ("arg1", -1), ("arg2", -2 if b.rank > 1 else -1)
    for k in range(-min(a.rank, b.rank), -2):
        if 1 not in (a.shape[k], b.shape[k]):
            yield ("arg1", k), ("arg2", k)


def bmm(o: Operands, _a: Attributes) -> Results:
    dtype = _numbers(o, "batch1", "batch2")
    _ranks(o, batch1=3, batch2=3)
    return (Shaped((*o["batch1"].shape[:2], o["batch2"].shape[2]), dtype),)


def baddbmm(o: Operands, a: Attributes) -> Results:
    _numbers(o, "input", "batch1", "batch2")
    found = bmm(o, a)
    shape = o["input"].shape
    fits = zip(reversed(shape), reversed(found[0].shape), strict=False)
    known = [(n, m) for n, m in fits if isinstance(n, int) and isinstance(m, int)]
    if len(shape) > 3 or any(n not in (1, m) for n, m in known):
        raise FuserValueError(f"input of sizes {shape} does not broadcast to {found[0].shape}")
    return found


def batches_equal(_o: Operands, _a: Attributes) -> Iterable[tuple[Place, Place]]:
    yield ("batch1", 0), ("batch2", 0)
    yield ("batch1", 2), ("batch2", 1)


def grouped_mm(o: Operands, _a: Attributes) -> Results:
    dtype = _numbers(o, "mat1", "mat2")
    _index(o, "offsets")
    _ranks(o, mat1=(2, 3), mat2=(2, 3), offsets=1)
    a, b = o["mat1"], o["mat2"]
    if a.rank == b.rank == 3:
        raise FuserValueError("offsets divide a matrix; of two batches use bmm")
    groups = o["offsets"].shape[:1] if a.rank == b.rank else ()
    return (Shaped((*groups, a.shape[-2], b.shape[-1]), dtype),)


def groups_equal(o: Operands, _a: Attributes) -> Iterable[tuple[Place, Place]]:
    yield ("mat1", -1), ("mat2", -2)
    for name in ("mat1", "mat2"):
        if o[name].rank == 3:
            yield (name, 0), ("offsets", 0)


def scaled_mm(o: Operands, a: Attributes) -> Results:
    _numbers(o, "mat1", "mat2")
    _ranks(o, mat1=2, mat2=2, bias=1)
    return (Shaped((o["mat1"].shape[0], o["mat2"].shape[1]), a["dtype"]),)


def matrices_equal(_o: Operands, _a: Attributes) -> Iterable[tuple[Place, Place]]:
    yield ("mat1", 1), ("mat2", 0)


# ---- attention and convolutions


def sdpfa_fwd(o: Operands, _a: Attributes) -> Results:
    dtype = _numbers(o, "query", "key", "value")
    _ranks(o, query=4, key=4, value=4)
    rows = o["query"].shape[:3]
    return (
        Shaped((*rows, o["value"].shape[3]), dtype, (0, 2, 1, 3)),
        Shaped(rows, DataType.Double if dtype is DataType.Double else DataType.Float),
        Shaped((2,), DataType.UInt64),
        Shaped((), DataType.UInt64),
    )


def sdpfa_equal(_o: Operands, _a: Attributes) -> Iterable[tuple[Place, Place]]:
    for k in (0, 1):
        yield ("query", k), ("key", k)
        yield ("query", k), ("value", k)
    yield ("query", 3), ("key", 3)
    yield ("key", 2), ("value", 2)


def sdpfa_bwd(o: Operands, _a: Attributes) -> Results:
    _ranks(o, query=4, key=4, value=4)
    names = ("query", "key", "value")
    return tuple(Shaped(o[name].shape, o[name].dtype, (0, 2, 1, 3)) for name in names)


def sdpfa_flops(products: int) -> Callable[[Operands, Attributes], int]:
    """FLOPs of `products` matrix products of query and key size; half of them if causal."""

    def flops(o: Operands, a: Attributes) -> int:
        query, key = o["query"].shape, o["key"].shape
        whole = 2 * products * numel(query) * _size(key[2])
        return whole // 2 if a["is_causal"] else whole

    return flops


def drops(a: Attributes) -> bool:
    return bool(a["dropout_p"] > 0)


def _along(name: str, values: tuple[int, ...], dims: int) -> tuple[int, ...]:
    """An attribute of a convolution for each spatial dimension."""
    least = 1 if name in ("stride", "dilation") else 0
    if len(values) not in (1, dims) or min(values) < least:
        raise FuserValueError(
            f"{name}: expected one number or {dims}, each at least {least}, got {list(values)}"
        )
    return values * dims if len(values) == 1 else values


def convolution(o: Operands, a: Attributes) -> Results:
    dtype = _numbers(o, "input", "weight", "bias")
    x, weight = o["input"], o["weight"]
    _ranks(o, input=(3, 4, 5), weight=x.rank, bias=1)
    dims = x.rank - 2
    names = ("stride", "padding", "dilation", "output_padding")
    steps, pads, dilations, more = (_along(name, a[name], dims) for name in names)
    sizes: list[Extent] = []
    for k in range(dims):
        reach = dilations[k] * (weight.shape[2 + k] - 1)
        if a["transposed"]:
            sizes.append((x.shape[2 + k] - 1) * steps[k] - 2 * pads[k] + reach + more[k] + 1)
        else:
            sizes.append((x.shape[2 + k] + 2 * pads[k] - reach - 1) // steps[k] + 1)
    if any(isinstance(size, int) and size < 1 for size in sizes):
        raise FuserValueError(
            f"the weight's window of {list(weight.shape[2:])} does not fit into the input of "
            f"{list(x.shape[2:])}, padded by {list(pads)}: the result would have sizes {sizes}; "
            "pad more, or dilate less"
        )
    channels = weight.shape[1] * a["groups"] if a["transposed"] else weight.shape[0]
    return (Shaped((x.shape[0], channels, *sizes), dtype),)


def convolution_terms(o: Operands, a: Attributes) -> int:
    weight = o["weight"].shape
    inner = numel(weight[2:]) * _size(weight[0] // a["groups"] if a["transposed"] else weight[1])
    return inner + ("bias" in o)


def convolution_flops(o: Operands, a: Attributes) -> int:
    weight = o["weight"].shape
    points = convolution(o, a)[0].shape if not a["transposed"] else o["input"].shape
    return 2 * numel(points) * numel(weight[1:])


# ---- data-dependent writes, and sorts


def written(target: str, index: str) -> Callable[[Operands, Attributes], Results]:
    def results(o: Operands, _a: Attributes) -> Results:
        _index(o, index)
        for name, other in o.items():
            if name != index and other.dtype is not o[target].dtype:
                raise FuserTypeError(
                    f"{name} is {other.dtype.name} and {target} {o[target].dtype.name}; cast one"
                )
        return (Shaped(o[target].shape, o[target].dtype),)

    return results


def all_sums(target: str, index: str) -> Callable[[Operands, Attributes], int]:
    """Terms per element, at most: all elements of the index may name the same one."""
    return lambda o, _a: numel(o[index].shape) + 1


def embedding_backward(o: Operands, a: Attributes) -> Results:
    dtype = _numbers(o, "grad")
    _index(o, "index")
    _ranks(o, grad=o["index"].rank + 1)
    return (Shaped((a["rows"], o["grad"].shape[-1]), dtype),)


def embedding_equal(o: Operands, _a: Attributes) -> Iterable[tuple[Place, Place]]:
    for k in range(o["index"].rank):
        yield ("grad", k), ("index", k)


def argsort(o: Operands, a: Attributes) -> Results:
    _axis(o["arg"], a["dim"])
    return (Shaped(o["arg"].shape, DataType.Int),)


def sort(o: Operands, a: Attributes) -> Results:
    return (Shaped(o["arg"].shape, o["arg"].dtype), *argsort(o, a))


def topk(o: Operands, a: Attributes) -> Results:
    x = o["arg"]
    axis, k = _axis(x, a["dim"]), a["k"]
    shape = x.shape
    if x.rank:
        if isinstance(shape[axis], int) and not 0 <= k <= shape[axis]:
            raise FuserValueError(f"k is {k}, and dimension {axis} has {shape[axis]} elements")
        shape = (*shape[:axis], k, *shape[axis + 1 :])
    return Shaped(shape, x.dtype), Shaped(shape, DataType.Int)


def stacked(o: Operands, a: Attributes) -> Results:
    return (Shaped((a["size"], *o["arg"].shape), o["arg"].dtype),)


def as_given(o: Operands, _a: Attributes) -> Results:
    return (Shaped(o["arg"].shape, o["arg"].dtype),)


def exchanged(o: Operands, a: Attributes) -> Results:
    x, to, of = o["arg"], a["to"], a["of"]
    if not x.rank or not x.shape[0] == len(to) == len(of):
        raise FuserValueError(
            f"arg: expected parts along dimension 0 for {len(to)} devices, and as many back, from "
            f"{len(of)}; got {list(x.shape)}"
        )
    return (Shaped(x.shape, x.dtype),)


def one_of_stack(o: Operands, a: Attributes) -> Results:
    x = o["arg"]
    if not x.rank or x.shape[0] != a["size"]:
        raise FuserValueError(
            f"arg: expected {a['size']} parts along dimension 0, one a device, got {list(x.shape)}"
        )
    return (Shaped(x.shape[1:], x.dtype),)
