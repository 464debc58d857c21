"""Reductions in a random program: alone, several over the same dimensions, and what norms do with
rows, and with groups of them.
"""

from __future__ import annotations

from tests.support.generator_program import Program
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import ReductionOp, TensorView
from thunder_fuser.ir.tables import reductions

_OPS = {
    "sum": 6,
    "prod": 1,
    "max": 3,
    "min": 2,
    "any": 1,
    "all": 1,
    "argmax": 1,
    "argmin": 1,
    "var_mean": 3,
}


def reduction_step(p: Program) -> None:
    op = p.rng.choices(list(_OPS), list(_OPS.values()))[0]
    x, dims = _operand(p)
    keepdim = p.chance(0.6)
    if op == "var_mean":
        _var_mean(p, x, dims, keepdim)
        return
    row = reductions.lookup(op)
    if x.dtype.category not in row.accepts:
        return
    if not row.of_empty and any(x.sizes[k] == 0 for k in _axes(x, dims)):
        return
    dtype = None
    if row.takes_dtype and p.chance(0.2):
        dtype = p.rng.choice([d for d in p.dtypes if d.category >= x.dtype.category])
    made = p.builder.reduce(op, x, dims, keepdim=keepdim, dtype=dtype)
    p.keep(made)
    if keepdim and made in p.pool and p.chance(0.5):
        _applied(p, x, made)


def _operand(p: Program) -> tuple[TensorView, list[int] | None]:
    """A tensor and dimensions; often those of an earlier reduction, so that kernels share rows."""
    folds = [e for e in p.builder.build().exprs if isinstance(e, ReductionOp)]
    if folds and p.chance(0.5):
        last = p.rng.choice(folds)
        same = [x for x in p.pool if x.sizes == last.input.sizes]
        if same and last.input.rank:
            return p.recent(same), list(last.dims)
    x = p.recent()
    if not x.rank or p.chance(0.15):
        return x, None
    dims = p.rng.sample(range(x.rank), p.rng.randint(1, min(x.rank, 3)))
    return x, [d - x.rank if p.chance(0.3) else d for d in dims]


def group_step(p: Program) -> None:
    """What a norm's backward does with a scale of each sample: a value of a row, which all elements
    see, and totals of a group of rows, and of all rows.
    """
    fitting = [x for x in p.pool if x.rank > 2 and x.dtype.is_floating and x.numel]
    if not fitting:
        return
    x = p.recent(fitting)
    order = list(range(x.rank)) if p.chance(0.7) else p.rng.sample(range(x.rank), x.rank)
    first, second = sorted(p.rng.sample(range(1, x.rank), 2))
    groups, rows, columns = order[:first], order[first:second], order[second:]
    if p.chance(0.6):
        # A modulation: the same for all rows of a group, which differs from group to group.
        sizes = [1 if k in rows else n for k, n in enumerate(x.sizes)]
        modulation = p.tensor(sizes, x.dtype)
        _applied(p, x, modulation)
        x = p.pool[-1] if p.pool[-1].sizes == x.sizes else x
    of_row = p.builder.reduce(p.rng.choice(("sum", "max", "min")), x, columns, keepdim=True)
    p.keep(of_row)
    if of_row in p.pool:
        _applied(p, x, of_row)
    for dims in (rows, groups + rows):
        if p.chance(0.8):
            y = p.rng.choice([t for t in p.pool if t.sizes == x.sizes and t.dtype.is_floating])
            p.keep(p.builder.reduce(p.rng.choice(("sum", "sum", "max")), y, sorted(dims)))


def _axes(x: TensorView, dims: list[int] | None) -> list[int]:
    return list(range(x.rank)) if dims is None else [d % x.rank for d in dims]


def _var_mean(p: Program, x: TensorView, dims: list[int] | None, keepdim: bool) -> None:
    if not x.dtype.is_floating:
        return
    made = p.builder.var_mean(x, dims, correction=p.rng.choice((0, 1, 1, 2.5)), keepdim=keepdim)
    for value in p.rng.sample(made, 2):
        p.keep(value)


def _applied(p: Program, x: TensorView, folded: TensorView) -> None:
    """Every element against the value of its row."""
    if DataType.Bool in (x.dtype, folded.dtype) or DataType.UInt64 in (x.dtype, folded.dtype):
        return
    p.keep(p.builder.pointwise(p.rng.choice(("sub", "mul", "add")), x, folded))
