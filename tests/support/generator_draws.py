"""Random numbers in a random program: of constant seeds, and of seeds that are inputs."""

from __future__ import annotations

from tests.support.generator_program import Program
from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.fusion import Scalar
from thunder_fuser.ir.tables.random import DTYPES, TABLE


def draw_step(p: Program) -> None:
    dtypes = [d for d in p.dtypes if d in DTYPES]
    if not dtypes:
        return
    op, like = p.rng.choice(list(TABLE)), p.recent()
    first, second = p.constant(DataType.Double), p.rng.choice((0.0, 0.5, 1.0, 3.0))
    if op == "uniform":
        assert isinstance(first, float)
        second += first
    state = (_integer(p), _integer(p))
    p.keep(p.builder.random(op, like.sizes, (first, second), state, p.rng.choice(dtypes)))


def _integer(p: Program) -> Scalar | Number:
    if p.chance(0.2):
        return p.number(DataType.Int)
    return p.rng.choice((0, p.rng.randint(-(2**63), 2**63 - 1)))
