"""Composites: calls that read elements at known places: combinations, repeats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import thunder.torch as ltorch
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.utils import canonicalize_dim

from thunder_fuser.frontends.thunder.claims.operands import is_static
from thunder_fuser.frontends.thunder.composites.arguments import Unusual, known

_MOST_PLACES = 1 << 14
"""Most places that are written into a program."""


def _combinations(input: TensorProxy, r: int = 2, with_replacement: bool = False) -> TensorProxy:
    known(input)
    if input.ndim != 1 or type(r) is not int or r < 1:
        raise Unusual  # torch raises the error
    size = input.shape[0]
    if math.comb(size + (r - 1) * with_replacement, r) * r > _MOST_PLACES:
        raise NotImplementedError(
            f"combinations of {size} elements, {r} at a time: more than {_MOST_PLACES:,} places "
            "would be written into the program; index by torch.triu_indices"
        )
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = [k for chosen in choose(range(size), r) for k in chosen]
    if not places:
        return ltorch.zeros((0, r), device=input.device, dtype=input.dtype)
    return input[ltorch.reshape(ltorch.tensor(places, device=input.device), (-1, r))]


def repeat(symbol: Symbol, x: TensorProxy, *repeats: Any) -> TensorProxy:
    """Connect a result of no elements to the gradient of `x`, as torch does."""
    found: TensorProxy = symbol(x, *repeats)
    if not is_static(found.shape) or 0 not in found.shape:
        return found
    return ltorch.reshape(ltorch.reshape(x, (-1,))[:0], tuple(found.shape))


def repeat_interleave(
    symbol: Symbol, x: Any, repeats: Any, dim: int | None = None, *, output_size: Any = None
) -> TensorProxy:
    """Repeat elements by numbers in a tensor: what the k-th element of the result repeats is found
    in the running totals of `repeats`.
    """
    if not isinstance(repeats, TensorProxy):
        return symbol(x, repeats, dim)
    if type(output_size) is not int:
        raise NotImplementedError(
            "repeat_interleave by a tensor: the size of its result depends on the numbers in it; "
            "give it by output_size=.., or use a number of repeats"
        )
    known(x, repeats)
    if dim is None:
        x, dim = ltorch.reshape(x, (-1,)), 0
    axis = canonicalize_dim(x.ndim, dim)
    ends = ltorch.cumsum(ltorch.expand(repeats, (x.shape[axis],)), 0)
    places = ltorch.arange(output_size, device=x.device)
    passed = ltorch.unsqueeze(places, 1) >= ends
    return ltorch.index_select(x, axis, ltorch.sum(passed, 1))


PARTS: Mapping[str, Callable[..., Any]] = {"combinations": _combinations}
