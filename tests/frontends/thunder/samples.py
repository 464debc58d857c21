"""What tests on torch's own samples share: copies in memory, their layouts, and rounding errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten


def tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, Tensor)]


def copy(x: Any) -> Any:
    """Return a leaf of the same values, at the same strides in memory of its own."""
    if not isinstance(x, Tensor):
        return x
    if x.layout is not torch.strided or x.is_conj() or x.is_neg():
        found = x.detach().clone()
    else:
        memory = x.detach().untyped_storage().clone()
        found = x.detach().new_empty(0).set_(memory, x.storage_offset(), x.shape, x.stride())
    return found.requires_grad_(x.requires_grad)


def _strided(x: Tensor) -> Tensor:
    """Every other element along the last dimension."""
    return x.new_zeros((*x.shape[:-1], 2 * x.shape[-1]))[..., ::2].copy_(x)


def _transposed(x: Tensor) -> Tensor:
    """The first dimension is contiguous, the last has the largest stride."""
    return x.new_empty(x.shape[::-1]).permute(*range(x.ndim)[::-1]).copy_(x)


def _expanded(x: Tensor) -> Tensor:
    """The first slice along the first dimension of several, repeated: other values."""
    dim = next((d for d in range(x.ndim) if x.shape[d] > 1), None)
    return x if dim is None else x.narrow(dim, 0, 1).clone().expand_as(x)


LAYOUTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "strided": _strided,
    "transposed": _transposed,
    "expanded": _expanded,
}
"""Layouts that are not contiguous."""


def laid_out(x: Any, layout: str) -> Any:
    """Return a leaf in another layout; what is no tensor of several dimensions, as it is."""
    is_dense = isinstance(x, Tensor) and x.layout is torch.strided and x.ndim and x.numel()
    return LAYOUTS[layout](x.detach()).requires_grad_(x.requires_grad) if is_dense else x


def strides(x: Tensor) -> list[int]:
    """Strides that count."""
    return [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1] if x.numel() else []


def shared(results: list[Tensor], arguments: list[Tensor]) -> list[tuple[int, int] | None]:
    """For each result that lies in the memory of an argument: which argument, and where in it."""
    places = {x.untyped_storage()._cdata: k for k, x in reversed([*enumerate(arguments)])}
    found = []
    for x in results:
        place = places.get(x.untyped_storage()._cdata) if x.numel() else None
        found.append(None if place is None else (place, x.storage_offset()))
    return found


def moved(x: Any) -> Any:
    """Return a leaf whose numbers are an ulp off, or half of one."""
    if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
        return copy(x)
    kind = x.real.dtype if x.is_complex() else x.dtype
    sign = torch.randint(2, x.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    found = x.detach() * (1 + torch.finfo(kind).eps * sign.to(kind))
    return found.requires_grad_(x.requires_grad)
