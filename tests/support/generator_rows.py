"""Random programs of rows, as norms and their backwards are: what blocks stride over and share.

`rows_case(seed)` is a function of its seed, and comes with its answer like those of generator.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.support.generator import Case
from tests.support.generator_program import Program
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView

_ROWS = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 40, 64, 129, 300)
_COLUMNS = (1, 2, 3, 6, 8, 12, 31, 32, 36, 48, 64, 96, 100, 128, 250, 256, 257, 512, 1000, 2048)
_LONG = (3000, 4096, 5003, 6001, 8192, 12_000, 16_384)
_MOST, _MOST_OF_LONG = 20_000, 150_000
_BINARY = ("mul", "add", "sub")
_UNARY = ("neg", "tanh", "sigmoid", "relu", "abs", "sin")


def rows_case(seed: int) -> Case:
    """Tensors of groups of rows of columns, of two to four dimensions, and others that lack some of
    them: weights of columns, numbers of rows, channels. Folds of rows and what their elements make
    of them; totals of columns and of groups; results in 16 bits as in 32.
    """
    p = Program(seed, _MOST_OF_LONG, (), ())
    sizes = _sizes(p)
    columns = sorted(_columns(p, len(sizes)))
    dtype = p.rng.choice((DataType.BFloat16, DataType.BFloat16, DataType.Float))
    whole = [p.tensor(sizes, dtype) for _ in range(p.rng.randint(1, 2))]
    weight = [n if k in columns else 1 for k, n in enumerate(sizes)]
    lacking = [weight if p.chance(0.5) else _without_some(p, sizes) for _ in range(3)]
    parts = [p.tensor(each, _sometimes_wide(p, dtype)) for each in lacking]
    made, folded = list(whole), list(parts)
    for _ in range(p.rng.randint(2, 7)):
        kind = p.rng.random()
        if kind < 0.4:
            folds = folded[len(parts) :] if len(folded) > len(parts) and p.chance(0.6) else folded
            _add(p, made, _binary(p, p.recent(made), p.rng.choice(folds)))
        elif kind < 0.55:
            _add(p, made, _binary(p, p.rng.choice(made), p.rng.choice(made)))
        elif kind < 0.65:
            _add(p, made, _unary(p, p.rng.choice(made)))
        else:
            _add(p, folded, _folded(p, p.rng.choice(made[-2:]), columns))
    if folded == parts:
        _add(p, folded, _folded(p, made[-1], columns))
    _add(p, made, _binary(p, made[-1], folded[-1]))
    _outputs(p, made, folded, columns, dtype)
    return Case(seed, p.builder.build(), tuple(p.inputs), p.oracle)


def _sizes(p: Program) -> list[int]:
    """Rows, perhaps in groups, and columns, perhaps in two dimensions; any of them may be long."""
    if p.chance(0.1):
        return [p.rng.choice((3, 5, 9, 17, 33)), p.rng.choice(_LONG)]
    sizes = [p.rng.choice(_ROWS), p.rng.choice(_COLUMNS)]
    if p.chance(0.6):
        sizes.insert(0, p.rng.choice((2, 3, 4, 8)))
    if p.chance(0.4):
        sizes.append(p.rng.choice((2, 3, 6, 8, 36, 64)))
    limit = 3 * _MOST if p.chance(0.2) else _MOST
    while math.prod(sizes) > limit:
        k = max(range(len(sizes)), key=sizes.__getitem__)
        sizes[k] = max(1, sizes[k] // p.rng.choice((2, 3)))
    return sizes


def _columns(p: Program, rank: int) -> list[int]:
    """The dimensions of a row: the last ones as a rule, any for norms of batches and channels."""
    if p.chance(0.7):
        return list(range(p.rng.randint(1, rank - 1), rank))
    return p.rng.sample(range(rank), p.rng.randint(1, rank - 1))


def _without_some(p: Program, sizes: Sequence[int]) -> list[int]:
    return [1 if p.chance(0.5) else n for n in sizes]


def _sometimes_wide(p: Program, dtype: DataType) -> DataType:
    return DataType.Float if p.chance(0.3) else dtype


def _add(p: Program, to: list[TensorView], made: TensorView) -> None:
    """Kept where the oracle can still say something of it."""
    p.keep(made)
    if made in p.pool:
        to.append(made)


def _unary(p: Program, x: TensorView) -> TensorView:
    made = p.builder.pointwise(p.rng.choice(_UNARY), x)
    assert isinstance(made, TensorView)
    return made


def _binary(p: Program, x: TensorView, y: TensorView) -> TensorView:
    made = p.builder.pointwise(p.rng.choice(_BINARY), x, y)
    assert isinstance(made, TensorView)
    return _rounded(p, made, 0.15)


def _folded(p: Program, x: TensorView, columns: Sequence[int]) -> TensorView:
    """A row as one number, such as its mean, variance, or largest element."""
    kind = p.rng.choice(("sum", "mean", "var", "max", "squares"))
    b = p.builder
    if kind == "var":
        _, mean = b.var_mean(x, list(columns), correction=0, keepdim=True)
        variance = b.reduce("sum", _square(p, b.pointwise("sub", x, mean)), columns, keepdim=True)
        count = math.prod(x.sizes[k] for k in columns)
        scaled = b.pointwise("add", b.pointwise("mul", variance, 1 / max(count, 1)), 0.5)
        made = b.pointwise("rsqrt", scaled)
        assert isinstance(made, TensorView)
        return made
    if kind == "max":
        return b.reduce("max", x, list(columns), keepdim=True)
    folded = b.reduce("sum", _square(p, x) if kind == "squares" else x, columns, keepdim=True)
    if kind == "sum":
        return _rounded(p, folded, 0.3)
    made = b.pointwise("mul", folded, 1 / max(1, x.numel // max(folded.numel, 1)))
    assert isinstance(made, TensorView)
    return _rounded(p, made, 0.3)


def _square(p: Program, x: object) -> TensorView:
    made = p.builder.pointwise("mul", x, x)  # type: ignore[arg-type]
    assert isinstance(made, TensorView)
    return made


def _rounded(p: Program, x: TensorView, probability: float) -> TensorView:
    """As a call that ends here rounds it."""
    if not p.chance(probability):
        return x
    made = p.builder.cast(x, DataType.BFloat16)
    assert isinstance(made, TensorView)
    return made


def _outputs(
    p: Program,
    made: Sequence[TensorView],
    folded: Sequence[TensorView],
    columns: Sequence[int],
    dtype: DataType,
) -> None:
    """The last tensor, now and then others; numbers of rows; totals of what is no column, or of
    channels alone.
    """
    b, last = p.builder, made[-1]
    for x in [last, *(x for x in made[:-1] if p.chance(0.15))]:
        narrow = p.chance(0.7) and x.dtype is not dtype
        b.output(p.pooled(b.cast(x, dtype)) if narrow else x)
    for x in folded:
        if p.chance(0.15):
            b.output(x)
    rows = [k for k in range(last.rank) if k not in columns]
    for dims in (rows, rows[-1:], p.rng.sample(range(last.rank), p.rng.randint(1, last.rank))):
        if dims and p.chance(0.4):
            op = p.rng.choice(("sum", "sum", "sum", "max"))
            x = p.rng.choice([t for t in made if t.rank == last.rank])
            total = p.pooled(b.reduce(op, x, sorted(dims), keepdim=p.chance(0.5)))
            b.output(p.pooled(b.cast(total, dtype)) if p.chance(0.5) else total)
    if p.chance(0.25):
        # A fold whose accumulators are structs, beside those of numbers.
        x = p.rng.choice([t for t in made if t.rank == last.rank])
        b.output(p.pooled(b.reduce(p.rng.choice(("argmax", "argmin")), x, list(columns))))
