"""Random stencils: one tensor read at several offsets, in rows as short as a vector and longer.

Which element a lane reads then depends on the row, on the lane, or on both. `shift_case(seed)` is a
function of its seed, and comes with its answer like those of generator.py.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.generator import Case
from tests.support.generator_program import Program
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.segment.anchors.evaluation_points import MAX_POINTS

SHORT = (2, 3, 4, 6, 8, 8, 12, 16, 16, 24, 32)
"""Sizes of the last dimension: parts of a vector, one, and a few."""
_DTYPES = (DataType.Float, DataType.BFloat16, DataType.Double, DataType.Int32)


def shift_case(seed: int) -> Case:
    """Two to five shifts of one tensor, joined by sums or a cat, or each a result; or a cast whose
    rows are added up one by one.
    """
    p = Program(seed, 20_000, (), ())
    if p.chance(0.1):
        p.builder.output(_rows_of_a_cast(p))
        return Case(seed, p.builder.build(), tuple(p.inputs), p.oracle)
    outer = [p.rng.choice((1, 2, 3, 5, 7, 16)) for _ in range(p.rng.randint(1, 2))]
    x = p.tensor([*outer, p.rng.choice(SHORT)], p.rng.choice(_DTYPES))
    terms = [_shifted(p, x) for _ in range(p.rng.randint(2, 5))]
    kind = p.rng.choice(("sum", "sum", "results", "rows", "columns"))
    if kind == "sum":
        total = terms[0]
        for term in terms[1:]:
            total = _tensor(p.builder.pointwise(p.rng.choice(("add", "maximum")), total, term))
        terms = [p.pooled(_as(p, total, x.dtype))]
    elif kind in ("rows", "columns"):
        # As torch.stack and a flatten lay them: in turns, or side by side.
        dim = x.rank - 1 if kind == "rows" else x.rank
        apart = [p.pooled(p.builder.reshape(t, [*t.sizes[:dim], 1, *t.sizes[dim:]])) for t in terms]
        joined = p.pooled(p.builder.cat(apart, dim))
        terms = [p.pooled(p.builder.reshape(joined, [*x.sizes[:-2], -1, joined.sizes[-1]]))]
    for term in terms:
        p.builder.output(p.pooled(term))
    return Case(seed, p.builder.build(), tuple(p.inputs), p.oracle)


def _rows_of_a_cast(p: Program) -> TensorView:
    """A cast of an input, or of a view of one, read at more points than are computed anew."""
    count = p.rng.randint(MAX_POINTS + 1, MAX_POINTS + 8)
    dtype, wide = p.rng.choice(_CASTS)
    x = p.tensor([count, p.rng.choice(SHORT)], dtype)
    if p.chance(0.3):
        x = p.pooled(p.builder.permute(p.tensor([x.sizes[1], count], dtype), [1, 0]))
    made = p.pooled(p.builder.cast(x, wide))
    if p.chance(0.2):
        p.builder.output(made)
    total = _cut(p, made, 0, 0, 1)
    for k in range(1, count):
        total = p.pooled(p.builder.pointwise("add", total, _cut(p, made, 0, k, k + 1)))
    return total


_CASTS = (
    (DataType.BFloat16, DataType.Float),
    (DataType.Half, DataType.Float),
    (DataType.Float, DataType.Double),
    (DataType.Int32, DataType.Float),
)


def _shifted(p: Program, x: TensorView) -> TensorView:
    found = x
    for _ in range(p.rng.randint(1, 2)):
        found = p.rng.choice(_SHIFTS)(p, found)
    return found


def _rolled(p: Program, x: TensorView) -> TensorView:
    """torch.roll along one dimension or several."""
    for dim in p.rng.sample(range(x.rank), p.rng.randint(1, x.rank)):
        by = p.rng.randrange(x.sizes[dim])
        if by:
            x = p.pooled(p.builder.cat([_cut(p, x, dim, -by), _cut(p, x, dim, 0, -by)], dim))
    return x


def _delayed(p: Program, x: TensorView) -> TensorView:
    """Zeros or the first elements, and then all but the last: a token shift."""
    dim = p.rng.randrange(x.rank)
    if x.sizes[dim] == 1:
        return x
    rest = _cut(p, x, dim, 0, -1)
    if p.chance(0.5):
        return p.pooled(p.builder.cat([_cut(p, x, dim, 0, 1), rest], dim))
    widths = [0] * (2 * (x.rank - dim))
    widths[-2] = 1
    return p.pooled(p.builder.pad(rest, widths))


def _half_turned(p: Program, x: TensorView) -> TensorView:
    """(-second, first), of halves of the last dimension: rotate-half of a rotary embedding."""
    half = x.sizes[-1] // 2
    if x.sizes[-1] % 2:
        return x
    second = p.pooled(_as(p, _tensor(p.builder.pointwise("neg", _cut(p, x, -1, half))), x.dtype))
    return p.pooled(p.builder.cat([second, _cut(p, x, -1, 0, half)], x.rank - 1))


def _patched(p: Program, x: TensorView) -> TensorView:
    """A row's beginning from one shift, and its end from another."""
    size = x.sizes[-1]
    at = p.rng.randint(1, size - 1)
    first, second = _rolled(p, x), _rolled(p, x)
    return p.pooled(p.builder.cat([_cut(p, first, -1, 0, at), _cut(p, second, -1, at)], x.rank - 1))


_SHIFTS: tuple[Callable[[Program, TensorView], TensorView], ...] = (
    _rolled, _rolled, _delayed, _half_turned, _patched,
)  # fmt: skip


def _cut(p: Program, x: TensorView, dim: int, begin: int, end: int | None = None) -> TensorView:
    dim %= x.rank
    size = x.sizes[dim]
    first, last = begin % size, size if end is None else end % (size + 1 if end > 0 else size)
    starts = [first if k == dim else 0 for k in range(x.rank)]
    ends = [last if k == dim else n for k, n in enumerate(x.sizes)]
    return p.pooled(p.builder.slice(x, starts, ends))


def _tensor(value: object) -> TensorView:
    assert isinstance(value, TensorView)
    return value


def _as(p: Program, x: TensorView, dtype: DataType) -> TensorView:
    return x if x.dtype is dtype else _tensor(p.builder.cast(x, dtype))
