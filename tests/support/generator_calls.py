"""Torch calls in a random program: products, writes at indices, orders of elements."""

from __future__ import annotations

import torch

from tests.support.generator_program import Program
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView

_PRODUCED = (DataType.Float, DataType.Double, DataType.BFloat16)


def call_step(p: Program) -> None:
    step = p.rng.choices([_product, _write, _order], [6, 3, 1])[0]
    step(p)


def _product(p: Program) -> None:
    fitting = [x for x in p.pool if x.rank and x.dtype in _PRODUCED and x.numel]
    if not fitting:
        return
    x = p.recent(fitting)
    inner, outer = x.sizes[-1], p.rng.choice((1, 3, 8, 17))
    alike = [y for y in fitting if y.rank == 2 and y.dtype is x.dtype and inner in y.sizes]
    if alike and p.chance(0.5):
        # What the program has computed, as it is or transposed.
        y = p.recent(alike)
        if y.sizes[1] != inner:
            y = p.pooled(p.builder.permute(y, [1, 0]))
    else:
        y = p.tensor([outer, inner], x.dtype)
    operands = {"arg1": x, "arg2": y}
    if p.chance(0.4):
        operands["bias"] = p.tensor([y.sizes[0]], x.dtype)
    if "bias" not in operands and p.chance(0.5):
        operands["arg2"] = p.pooled(p.builder.permute(y, [1, 0]))
        _call(p, "matmul", operands)
    else:
        _call(p, "linear", operands)


def _write(p: Program) -> None:
    """At places of which none is named twice, so that there is one answer."""
    x = p.recent()
    if not x.rank or not x.numel or x.dtype.is_complex or x.dtype not in _WRITTEN:
        return
    dim = p.rng.randrange(x.rank)
    count = p.rng.randint(1, x.sizes[dim])
    order = torch.tensor(p.rng.sample(range(x.sizes[dim]), count))
    sizes = [*x.sizes[:dim], count, *x.sizes[dim + 1 :]]
    alike = [y for y in p.pool if y.dtype is x.dtype and list(y.sizes) == sizes]
    source = p.recent(alike) if alike else p.tensor(sizes, x.dtype)
    op = p.rng.choice(("scatter", "scatter_add", "index_add", "index_copy"))
    if op.startswith("scatter"):
        order = order.reshape([-1 if k == dim else 1 for k in range(x.rank)]).expand(sizes)
    _call(p, op, {"arg": x, "index": _given(p, order), "src": source}, dim=dim)


_WRITTEN = (*_PRODUCED, DataType.Half, DataType.Int, DataType.Int32)


def _given(p: Program, data: torch.Tensor) -> TensorView:
    """An input that is an index."""
    view = p.builder.tensor(list(data.shape), DataType.Int)
    p.inputs.append(data.contiguous())
    p.oracle.bind([view], [data])
    return view


def _order(p: Program) -> None:
    """Of elements that no rounding brings into another order; equal ones stay as they are."""
    exact = [
        x
        for x in p.pool
        if x.rank and x.numel and x.dtype in _WRITTEN and not bool(p.oracle.error(x).any())
    ]
    if not exact:
        return
    x = p.recent(exact)
    dim, descending = p.rng.randrange(-x.rank, x.rank), p.chance(0.5)
    if bool(p.oracle.value(x).isfinite().all()):
        _call(p, "sort", {"arg": x}, dim=dim, descending=descending, stable=True)


def _call(p: Program, op: str, operands: dict[str, TensorView], **attributes: int | bool) -> None:
    for made in p.builder.call(op, operands, attributes):
        p.keep(made)
