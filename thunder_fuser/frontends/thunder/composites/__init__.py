"""Calls that Thunder knows by name only, written in operations that it differentiates and we fuse.

Thunder runs such a call in torch, between two regions, and its gradient by running it once more
under torch's autograd. Each here is torch's own arithmetic, with torch's names of arguments. What a
formula does not say of its arguments it leaves to torch, by raising `Unusual`.

Sums and powers of 16 bits are computed in fp32 and rounded once, as torch's kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thunder_fuser.frontends.thunder.composites import (
    losses,
    movement,
    pointwise,
    pools,
    products,
    reductions,
)
from thunder_fuser.frontends.thunder.composites.arguments import Unusual

__all__ = ["PARTS", "Unusual"]

PARTS: Mapping[str, Callable[..., Any]] = {
    **pointwise.PARTS,
    **reductions.PARTS,
    **losses.PARTS,
    **movement.PARTS,
    **products.PARTS,
    **pools.PARTS,
}
"""By torch's name of the function, below `torch`; methods of tensors of that name are the same."""
