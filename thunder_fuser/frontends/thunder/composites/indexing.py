"""Indices of `x[key]` that are out of range, which Thunder's decomposition may hide.

Thunder adds the size to negative indices, and flattens the indices of several dimensions to one.
A kernel would then see another value for an index below -size, and an index that is out of range in
its own dimension may be in range after flattening. Thunder takes bools in a list for the indices 0
and 1, and refuses slices that begin or end before the first element, as `x[-512:]` of a short `x`.
It puts the dimensions of indices elsewhere than torch where one of them has none.

`index_put` with masks, which Thunder does not know.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
import thunder.torch as ltorch
from thunder import clang
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol

from thunder_fuser.frontends.thunder.claims.operands import is_static

_INDICES = (dtypes.int32, dtypes.int64)
_NO_INDEX = (slice, list, tuple, TensorProxy)
_LONG = 32
"""From this length on torch takes any list for one of indices."""


def in_range(x: Any, key: Any) -> Any:
    """Return a key that selects the same elements of `x`, whose indices out of range stay so.

    Raises IndexError for a list with an index out of range.
    """
    key = _of_several(_of_arrays(key))
    given = key if isinstance(key, tuple) else (key,)
    entries = [_of_bools(x, given, k) for k in range(len(given))]
    entries = [_within(x, entries, k) for k in range(len(entries))]
    key = tuple(entries) if isinstance(key, tuple) else entries[0]
    indexed = _dimensions(x, entries)
    tensors = [entries[k] for k in indexed if isinstance(entries[k], TensorProxy)]
    if len(indexed) == len(tensors) == 1 and not tensors[0].ndim:
        return key  # a number, which selects a view
    if not tensors:
        for k, dim in indexed.items():
            _check(entries[k], dim, x.shape[dim])
        return key
    total = math.prod(x.shape[dim] for dim in indexed.values())
    for k, dim in indexed.items():
        index, size = entries[k], x.shape[dim]
        if not isinstance(index, TensorProxy):
            _check(index, dim, size)
        elif len(indexed) > 1:
            wide = ltorch.to(index, dtypes.int64)
            entries[k] = ltorch.where((wide >= -size) & (wide < size), wide, total)
        else:
            # Thunder will add the size again.
            entries[k] = ltorch.where(index < -size, index - size, index)
    return tuple(entries) if isinstance(key, tuple) else entries[0]


def getitem(x: Any, key: Any) -> Any:
    """Return `x[key]`. Torch selects by a tensor without dimensions as by a number, before it looks
    where the dimensions of other indices go: `x[k, :, index]` has those of `index` last.
    """
    if isinstance(key, tuple) and isinstance(x, TensorProxy):
        indices = [k for k, e in enumerate(key) if isinstance(e, (TensorProxy, list))]
        numbers = [k for k in indices if _is_number(key[k])]
        are_apart = bool(indices) and indices[-1] - indices[0] >= len(indices)
        are_integers = all(map(_has_integers, (key[k] for k in indices)))
        if are_apart and are_integers and len(numbers) < len(indices):
            entries = list(key)
            for k in numbers:
                rows = (slice(None),) * _dimension(x, entries, k)
                x = getitem(x, (*rows, ltorch.reshape(entries[k], (1,))))
                entries[k] = 0
            key = tuple(entries)
    return ltorch.getitem(x, in_range(x, key))


def _is_number(entry: Any) -> bool:
    return isinstance(entry, TensorProxy) and not entry.ndim and entry.dtype in _INDICES


def _has_integers(entry: Any) -> bool:
    if isinstance(entry, TensorProxy):
        return entry.dtype in _INDICES
    return all(type(n) is int for n in entry)


def _of_arrays(key: Any) -> Any:
    """Return a key with lists or tensors in place of arrays of NumPy."""
    given = key if isinstance(key, tuple) else (key,)
    if not any(isinstance(entry, numpy.ndarray) for entry in given):
        return key
    entries = [e for entry in given for e in _of_array(entry)]
    return tuple(entries) if isinstance(key, tuple) or len(entries) > 1 else entries[0]


def _of_array(entry: Any) -> list[Any]:
    """Return the entries that stand for one: for each dimension of a mask, those of its places."""
    if not isinstance(entry, numpy.ndarray) or not entry.ndim:
        return [entry.item() if isinstance(entry, numpy.ndarray) else entry]
    if entry.dtype == bool and entry.ndim > 1:
        return [places.tolist() for places in entry.nonzero()]
    return [entry.tolist() if entry.ndim == 1 else ltorch.tensor(entry.tolist())]


def _of_several(key: Any) -> Any:
    """Return a key as a tuple if it is a list that torch takes for one: of slices, for example."""
    if not isinstance(key, list) or len(key) >= _LONG:
        return key
    is_tuple = any(e is None or e is Ellipsis or isinstance(e, _NO_INDEX) for e in key)
    return tuple(key) if is_tuple else key


def _of_bools(x: Any, entries: Sequence[Any], k: int) -> Any:
    """Return an entry without bools: the positions in a list that are True, None for True."""
    entry = entries[k]
    if type(entry) is bool:
        if not entry or any(isinstance(e, (list, TensorProxy)) for e in entries):
            raise NotImplementedError(
                f"x[{entry}], also with lists and tensors: write x[None] for True, x[None][:0] for "
                "False, and index that"
            )
        return None
    if not (isinstance(entry, list) and entry and all(type(n) is bool for n in entry)):
        return entry
    dim = _dimension(x, entries, k)
    if len(entry) != x.shape[dim]:
        raise IndexError(
            f"The shape of the mask [{len(entry)}] at index {k} does not match the shape of the "
            f"indexed tensor {list(x.shape)} at index {dim}"
        )
    return [place for place, is_selected in enumerate(entry) if is_selected]


def _within(x: Any, entries: Sequence[Any], k: int) -> Any:
    """Return an entry; a slice whose bounds count from the end, no further than to the first."""
    entry = entries[k]
    if not isinstance(entry, slice) or not (isinstance(x, TensorProxy) and is_static(x.shape)):
        return entry
    dim = _dimension(x, entries, k)
    if not 0 <= dim < x.ndim:
        return entry  # too many, which raises
    first, last = (
        max(bound, -x.shape[dim]) if type(bound) is int else bound
        for bound in (entry.start, entry.stop)
    )
    return slice(first, last, entry.step)


def _dimension(x: Any, entries: Sequence[Any], k: int) -> int:
    """Return the dimension that the entry at `k` indexes."""
    if any(e is Ellipsis for e in entries[:k]):
        return int(x.ndim) - sum(e is not None for e in entries[k:])
    return sum(e is not None for e in entries[:k])


def _dimensions(x: Any, entries: Sequence[Any]) -> dict[int, int]:
    """Map positions of tensors and lists in a key to the dimensions that they index; {} if one is a
    mask, or a size is unknown.
    """
    if not isinstance(x, TensorProxy) or not is_static(x.shape):
        return {}
    found: dict[int, int] = {}
    for k, entry in enumerate(entries):
        if entry is None or entry is Ellipsis:
            continue
        dim = _dimension(x, entries, k)
        if isinstance(entry, TensorProxy):
            if entry.dtype not in _INDICES or not is_static(entry.shape):
                return {}
        elif not (isinstance(entry, list) and all(type(n) is int for n in entry)):
            if not isinstance(entry, (slice, int)) or isinstance(entry, bool):
                return {}
            continue
        if not 0 <= dim < x.ndim:
            return {}
        found[k] = dim
    return found


def _check(index: Sequence[int], dim: int, size: int) -> None:
    for n in index:
        if not -size <= n < size:
            raise IndexError(f"index {n} is out of bounds for dimension {dim} with size {size}")


def index_put(
    symbol: Symbol, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> TensorProxy:
    """Write where masks are true as `x[mask] = values` does, which takes them. A mask alone selects
    no element twice: what is added there is written to zeros.
    """
    masks = [k for k in indices if isinstance(k, TensorProxy) and k.dtype == dtypes.bool8]
    if not masks or (accumulate and len(indices) > 1):
        return symbol(x, indices, values, accumulate)
    into = ltorch.zeros_like(x) if accumulate else x
    found: TensorProxy = clang.copy_with_setitem(into, tuple(indices), values)
    found = ltorch.add(x, found) if accumulate else found
    return ltorch.copy_(x, found) if symbol is ltorch.index_put_ else found
