"""Indexed reads in a random program: at indices that are given, and at indices that it computes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.support.generator_program import Program
from tests.support.inputs import laid_out
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.tables.indexing import TABLE

LENGTHS = (1, 2, 3, 5, 8, 16, 24, 0)


def gather_step(p: Program) -> None:
    op = p.rng.choice(list(TABLE))
    x = p.recent()
    if not x.rank or not x.numel:
        return
    dim = p.rng.randrange(x.rank)
    sizes = list(x.sizes)
    match op:
        case "index_select":
            sizes = [p.rng.choice(LENGTHS)]
        case "embedding_fwd":
            x, dim = p.builder.reshape(x, [x.sizes[0], -1]), 0
            sizes = [p.rng.choice(LENGTHS[:4]) for _ in range(p.rng.randint(0, 3))]
        case "take_along_axis":
            sizes = [1 if p.chance(0.2) else size for size in sizes]
            sizes[dim] = p.rng.choice(LENGTHS)
        case "gather":
            sizes = [p.rng.randint(1, size) if p.chance(0.3) else size for size in sizes]
            sizes[dim] = p.rng.choice(LENGTHS)
    index = _index(p, sizes, x.sizes[dim])
    p.keep(p.builder.gather(op, x, dim - x.rank if p.chance(0.3) else dim, index))


def _index(p: Program, sizes: Sequence[int], extent: int) -> TensorView:
    """Numbers below `extent`: an input, or computed from a tensor of the program that fits."""
    fitting = [v for v in p.pool if v.sizes == tuple(sizes)]
    if fitting and p.chance(0.6):
        numbers = p.cast(p.recent(fitting), DataType.Int)
        if numbers is not None:
            return p.pooled(p.builder.pointwise("remainder", numbers, extent))
    dtype = p.rng.choice((DataType.Int, DataType.Int32))
    chosen = [p.rng.randrange(extent) for _ in range(torch.Size(sizes).numel())]
    data, layout = laid_out(p.rng, torch.tensor(chosen, dtype=dtype.torch).reshape(tuple(sizes)))
    return p.adopt(data, layout, dtype)
