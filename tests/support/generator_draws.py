"""Random numbers in a random program: of constant seeds, and of seeds that are inputs."""

from __future__ import annotations

from tests.support.generator_program import Program
from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.fusion import Scalar
from thunder_fuser.ir.tables.random import TABLE, WORDS


def draw_step(p: Program) -> None:
    op = p.rng.choice(list(TABLE))
    dtypes = [d for d in p.dtypes if d in TABLE[op].dtypes]
    if not dtypes:
        return
    sizes, state = p.recent().sizes, (_integer(p), _integer(p))
    drawn = p.builder.random(op, sizes, _parameters(p, op), state, p.rng.choice(dtypes))
    if op == "uniform" and p.chance(0.4):
        # A mask, which passes draw as such.
        comparison, constant = p.rng.choice(("lt", "le", "gt", "ge")), p.rng.random()
        drawn = p.builder.pointwise(comparison, drawn, constant)  # type: ignore[assignment]
    p.keep(drawn)


def _parameters(p: Program, op: str) -> tuple[Number, Number]:
    if op == "bernoulli":
        return p.rng.randrange(WORDS), p.rng.choice((0, 1, WORDS - 1, p.rng.randrange(WORDS)))
    first, second = p.constant(DataType.Double), p.rng.choice((0.0, 0.5, 1.0, 3.0))
    assert isinstance(first, float)
    return first, second + first if op == "uniform" else second


def _integer(p: Program) -> Scalar | Number:
    if p.chance(0.2):
        return p.number(DataType.Int)
    return p.rng.choice((0, p.rng.randint(-(2**63), 2**63 - 1)))
