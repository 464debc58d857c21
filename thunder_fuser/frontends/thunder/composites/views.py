"""Composites: calls that return views in torch, or their operand itself, made of calls that Thunder
knows to be views. As a single call each would be a new tensor to Thunder, and in-place updates of
the operand or of the result would be lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.utils import canonicalize_dims

from thunder_fuser.frontends.thunder.composites.arguments import Unusual, known

_LEAST: Mapping[int, Callable[[TensorProxy], TensorProxy]] = {
    1: lambda x: x if x.ndim else ltorch.unsqueeze(x, 0),
    2: lambda x: x if x.ndim > 1 else ltorch.unsqueeze(_LEAST[1](x), 0),
    3: lambda x: x if x.ndim > 2 else ltorch.unsqueeze(_LEAST[2](x), -1),
}


def squeeze(symbol: Symbol, x: Any, dim: Any = None) -> TensorProxy:
    """Take the one dimension that torch sees in a tensor of none."""
    dims = dim if isinstance(dim, Sequence) else (dim,)
    return symbol(x) if not x.ndim and {*dims} <= {0, -1} else symbol(x, dim)


def transpose(symbol: Symbol, x: Any, dim0: int, dim1: int) -> TensorProxy:
    """Take the one dimension that torch sees in a tensor of none."""
    is_alone = not x.ndim and {dim0, dim1} <= {0, -1}
    return ltorch.view_as(x, x) if is_alone else symbol(x, dim0, dim1)


def split(symbol: Symbol, a: TensorProxy, size: Any, dim: int = 0) -> Any:
    """A dimension of no elements is one piece; Thunder gives none, or raises for a size of 0."""
    is_empty = a.ndim > 0 and a.shape[dim] == 0 and not isinstance(size, Sequence)
    return symbol(a, [0] if is_empty else size, dim)


def tensor_split(symbol: Symbol, a: TensorProxy, indices_or_sections: Any, dim: int = 0) -> Any:
    """Places in any order: a piece that ends before it starts is empty."""
    places = indices_or_sections
    if not isinstance(places, Sequence) or list(places) == sorted(places):
        return symbol(a, places, dim)
    (axis,) = canonicalize_dims(a.ndim, (dim,))
    before = (slice(None),) * axis
    pairs = zip((0, *places), (*places, a.shape[axis]), strict=True)
    pieces = [(*before, slice(start, end)) for start, end in pairs]
    return tuple(a[piece] for piece in pieces)


def unflatten(symbol: Symbol, a: TensorProxy, dim: int, sizes: Sequence[int]) -> TensorProxy:
    """Find the size -1 from those beside it and the one dimension, also in an empty tensor."""
    (axis,) = canonicalize_dims(a.ndim, (dim,))
    known = math.prod(n for n in sizes if n != -1)
    if -1 in sizes and known and a.shape[axis] % known == 0:
        sizes = [a.shape[axis] // known if n == -1 else n for n in sizes]
    return symbol(a, dim, sizes)


def diagonal(
    symbol: Symbol, a: TensorProxy, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorProxy:
    """A diagonal outside of the matrices is empty, where Thunder states sizes as if it were not."""
    row, column = canonicalize_dims(a.ndim, (dim1, dim2))
    length = min(a.shape[row] + min(offset, 0), a.shape[column] - max(offset, 0))
    if length > 0 or row == column:
        return symbol(a, offset, dim1, dim2)
    others = [n for k, n in enumerate(a.shape) if k not in (row, column)]
    return ltorch.reshape(ltorch.narrow(a, column, 0, 0), (*others, 0))


REPLACED: Mapping[str, Callable[..., Any]] = {
    "squeeze": squeeze,
    "transpose": transpose,
    "split": split,
    "tensor_split": tensor_split,
    "unflatten": unflatten,
    "diagonal": diagonal,
}
"""Replacements by Thunder's name of the call; each takes its symbol, then the arguments."""


def _at_least(rank: int) -> Callable[..., Any]:
    """Make a call that gives tensors at least so many dimensions."""

    def function(*tensors: Any) -> Any:
        given, is_sequence = _tensors(tensors)
        known(*given)
        found = tuple(map(_LEAST[rank], given))
        return found if is_sequence or len(tensors) > 1 else found[0]

    return function


def _tensors(given: tuple[Any, ...]) -> tuple[Sequence[Any], bool]:
    """Return the tensors of a call that takes several or a sequence; True for a sequence."""
    is_sequence = len(given) == 1 and isinstance(given[0], Sequence)
    return (given[0] if is_sequence else given), is_sequence


def _broadcast_tensors(*tensors: Any) -> tuple[TensorProxy, ...]:
    given, _ = _tensors(tensors)
    known(*given)
    rank = max((x.ndim for x in given), default=0)
    shape = [1] * rank
    for x in given:
        for k, n in enumerate(x.shape, rank - x.ndim):
            if n != 1 and shape[k] not in (1, n):
                raise Unusual  # torch raises the error
            shape[k] = n if n != 1 else shape[k]
    return tuple(ltorch.expand(x, tuple(shape)) for x in given)


def _split_along(least: int, dim: int) -> Callable[..., Any]:
    """Make a split along a dimension: the first one of a vector, for `hsplit`."""

    def function(x: TensorProxy, indices_or_sections: Any) -> Any:
        known(x)
        axis = min(dim, x.ndim - 1)
        parts = indices_or_sections
        if x.ndim < least or (type(parts) is int and (parts < 1 or x.shape[axis] % parts)):
            raise Unusual  # torch raises the error
        return ltorch.tensor_split(x, parts, axis)

    return function


def _adjoint(x: TensorProxy) -> TensorProxy:
    known(x)
    if dtypes.is_complex_dtype(x.dtype) or x.ndim < 2:
        raise Unusual
    return ltorch.transpose(x, -2, -1)


def _reshape_as(x: TensorProxy, other: TensorProxy) -> TensorProxy:
    known(x, other)
    return ltorch.reshape(x, tuple(other.shape))


def _itself(input: TensorProxy) -> TensorProxy:
    known(input)
    if dtypes.is_complex_dtype(input.dtype) or dtypes.is_boolean_dtype(input.dtype):
        raise Unusual
    return input


def _dropout(input: TensorProxy, p: float, train: bool) -> TensorProxy:
    known(input)
    if train and p != 0:
        raise Unusual
    return input


def _cartesian_prod(*tensors: Any) -> TensorProxy:
    known(*tensors)
    if len(tensors) != 1 or tensors[0].ndim != 1:
        raise Unusual
    found: TensorProxy = tensors[0]
    return found


def _diagonal(A: TensorProxy, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> TensorProxy:
    known(A)
    return ltorch.diagonal(A, offset, dim1, dim2)


def permuted(equation: str, x: Any) -> TensorProxy:
    """An einsum of one operand that sums nothing: its diagonals, permuted. Raises Unusual for
    others.
    """
    known(x)
    names, arrow, out = equation.replace(" ", "").partition("->")
    if not arrow:
        out = "".join(sorted(k for k in {*names} if names.count(k) == 1 and k != "."))
        out = "..." * ("..." in names) + out
    rest = x.ndim - len(names.replace("...", ""))
    if rest < 0 or (rest and "..." not in names):
        raise Unusual  # torch raises the error
    extra = "".join(map(chr, range(rest)))
    names, out = (k.replace("...", extra) for k in (names, out))
    if {*names} != {*out} or len({*out}) != len(out):
        raise Unusual
    for k in dict.fromkeys(names):
        while names.count(k) > 1:
            first, second = names.index(k), names.rindex(k)
            if x.shape[first] != x.shape[second]:
                raise Unusual
            x = ltorch.diagonal(x, 0, first, second)
            names = names[:first] + names[first + 1 : second] + names[second + 1 :] + k
    return ltorch.permute(x, [names.index(k) for k in out])


PARTS: Mapping[str, Callable[..., Any]] = {
    **{f"atleast_{rank}d": _at_least(rank) for rank in _LEAST},
    "broadcast_tensors": _broadcast_tensors,
    "hsplit": _split_along(1, 1),
    "vsplit": _split_along(2, 0),
    "dsplit": _split_along(3, 2),
    "adjoint": _adjoint,
    "reshape_as": _reshape_as,
    **dict.fromkeys(("positive", "conj", "resolve_conj", "resolve_neg"), _itself),
    **dict.fromkeys(
        ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), _dropout
    ),
    "cartesian_prod": _cartesian_prod,
    "linalg.diagonal": _diagonal,
}
