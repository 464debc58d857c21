"""Matrix products: einsum of two operands, and of one that it permutes; `matmul` of no elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import ascii_letters
from types import MappingProxyType
from typing import Any

import thunder.torch as ltorch
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol

from thunder_fuser.frontends.thunder.claims.operands import is_static
from thunder_fuser.frontends.thunder.composites.arguments import Unusual, floats
from thunder_fuser.frontends.thunder.composites.views import permuted


def einsum(equation: str, *operands: Any) -> TensorProxy:
    """One batched matrix product with the operands in the order of the result's dimensions, as in
    torch. Thunder swaps operands, so that readers would access the result by columns.
    """
    if isinstance(equation, str) and len(operands) == 1:
        return permuted(equation, *operands)
    if not isinstance(equation, str) or len(operands) != 2:
        raise Unusual
    floats(*operands)
    named = _without_dots(_with_result(equation.replace(" ", "")), *operands)
    terms, arrow, out = named.partition("->")
    left, comma, right = terms.partition(",")
    names = (left, right, out)
    if not (arrow and comma) or not all(n.isalpha() and len({*n}) == len(n) for n in names):
        raise Unusual
    x, y = operands
    sizes = dict(zip(left, x.shape, strict=True)) if len(left) == x.ndim else {}
    others = dict(zip(right, y.shape, strict=True)) if len(right) == y.ndim else {}
    shared = [k for k in left if k in others]
    if not sizes or not others or x.dtype != y.dtype or any(sizes[k] != others[k] for k in shared):
        raise Unusual
    batch = [k for k in out if k in shared]
    folded = [k for k in shared if k not in out]
    rows = [k for k in out if k not in others]
    columns = [k for k in out if k not in sizes]
    kept = {*batch, *folded}
    if ({*left}, {*right}) != (kept | {*rows}, kept | {*columns}):
        raise Unusual
    if not folded:
        return ltorch.mul(_along(x, left, out), _along(y, right, out))
    if rows and columns and max(map(out.index, columns)) < min(map(out.index, rows)):
        # Torch swaps, too, so that the result has its own dimension order, not that of a
        # transposed view.
        return einsum(f"{right},{left}->{out}", y, x)
    sizes |= others
    product = ltorch.matmul(
        _matrices(x, left, batch, rows, folded, sizes),
        _matrices(y, right, batch, folded, columns, sizes),
    )
    found = [*batch, *rows, *columns]
    whole = ltorch.reshape(product, [sizes[k] for k in found])
    return ltorch.permute(whole, [found.index(k) for k in out])


def _with_result(equation: str) -> str:
    """Add the dimensions of the result: those that occur once, in alphabetical order."""
    if "->" in equation:
        return equation
    once = sorted(k for k in {*equation} if k.isalpha() and equation.count(k) == 1)
    return f"{equation}->{'...' if '...' in equation else ''}{''.join(once)}"


def _along(x: TensorProxy, names: str, out: str) -> TensorProxy:
    """Permute a tensor to the dimensions of the result, of which it gets those it lacks."""
    moved = ltorch.permute(x, [names.index(k) for k in out if k in names])
    for place, k in enumerate(out):
        moved = moved if k in names else ltorch.unsqueeze(moved, place)
    return moved


def _without_dots(equation: str, *operands: TensorProxy) -> str:
    """Name the dimensions that `...` stands for, which must be as many in both operands."""
    terms = equation.partition("->")[0].split(",")
    if len(terms) != len(operands) or "..." not in equation:
        return equation
    pairs = zip(terms, operands, strict=True)
    counts = {x.ndim - len(term) + 3 for term, x in pairs if "..." in term}
    free = [k for k in ascii_letters if k not in equation]
    if len(counts) != 1 or not 0 <= min(counts) <= len(free):
        raise Unusual
    return equation.replace("...", "".join(free[: counts.pop()]))


def _matrices(
    x: TensorProxy,
    names: str,
    batch: list[str],
    rows: list[str],
    columns: list[str],
    sizes: Mapping[str, int],
) -> TensorProxy:
    """Permute and reshape a tensor with these dimension names to one matrix per batch."""
    moved = ltorch.permute(x, [names.index(k) for k in (*batch, *rows, *columns)])
    if len(rows) == len(columns) == 1:
        return moved
    counts = [1, 1]
    for k, group in enumerate((rows, columns)):
        for name in group:
            counts[k] *= sizes[name]
    return ltorch.reshape(moved, [*(sizes[k] for k in batch), *counts])


def matmul(symbol: Symbol, x: TensorProxy, other: TensorProxy) -> TensorProxy:
    """Multiply several empty matrices by one as by several: Thunder makes one matrix of them by
    `reshape(-1, 0)`, whose rows cannot be found out.
    """
    is_folded = isinstance(other, TensorProxy) and x.ndim > 2 and other.ndim == 2
    if is_folded and is_static((*x.shape, *other.shape)) and 0 in (*x.shape, *other.shape):
        other = ltorch.expand(other, (*x.shape[:-2], *other.shape))
    found: TensorProxy = symbol(x, other)
    return found


PARTS: Mapping[str, Callable[..., Any]] = MappingProxyType({"einsum": einsum})
