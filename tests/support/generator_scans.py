"""Scans in a random program: along any dimension, often one that an earlier scan has."""

from __future__ import annotations

from tests.support.generator_program import Program
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import ScanOp
from thunder_fuser.ir.tables import scans

_OPS = {"cumsum": 5, "cumprod": 1, "cummax": 2, "cummin": 1}


def scan_step(p: Program) -> None:
    row = scans.lookup(p.rng.choices(list(_OPS), list(_OPS.values()))[0])
    x, dim = p.recent(), -1
    if x.rank and p.chance(0.4):
        dim = p.rng.randrange(-x.rank, x.rank)
    # Kernels that do several have several of one shape.
    last = [e for e in p.builder.build().exprs if isinstance(e, ScanOp)][-1:]
    alike = [x for x in p.pool for e in last if x.sizes == e.output.sizes]
    if alike and p.chance(0.5):
        x, dim = p.recent(alike), last[0].dim
    if x.dtype.category not in row.reduction.accepts:
        return
    dtype = None
    if row.reduction.takes_dtype and p.chance(0.2):
        wider = [d for d in p.dtypes if d.category >= x.dtype.category and d is not DataType.Bool]
        dtype = p.rng.choice(wider) if wider else None
    p.keep(p.builder.scan(row.name, x, dim, dtype=dtype))
