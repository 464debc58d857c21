"""Composites: differentiable, fusible decompositions of Thunder's auto-registered torch calls.

Thunder runs such a call in torch, between two regions, and its gradient by running it once more
under torch's autograd. Each decomposition has torch's arithmetic and argument names, and raises
`Unusual` for arguments that it does not cover, which leaves the call to torch.

Sums and powers of 16-bit floats are computed in fp32 and rounded once, as in torch's kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thunder_fuser.frontends.thunder.composites import (
    attention,
    gathers,
    interpolation,
    losses,
    movement,
    noise,
    pointwise,
    pools,
    products,
    recurrent,
    reductions,
    statistics,
    views,
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
    **interpolation.PARTS,
    **attention.PARTS,
    **recurrent.PARTS,
    **noise.PARTS,
    **statistics.PARTS,
    **gathers.PARTS,
    **views.PARTS,
}
"""Decompositions by the function's path below `torch`; tensor methods of that name share them."""
