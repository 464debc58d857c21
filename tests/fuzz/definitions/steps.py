"""How each operation is written: arguments that fit the tensors that are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from tests.fuzz.definitions.maker import CALLS, Maker
from tests.fuzz.definitions.program import Ref
from thunder_fuser.ir.dtypes import Category, DataType, Number
from thunder_fuser.ir.tables import pointwise, reductions, scans

Write = Callable[[Maker], object]
_ANY = (Category.BOOL, Category.INT, Category.FLOAT, Category.COMPLEX)
_INTEGERS_BY_ZERO = ("div", "mod", "fmod", "remainder", "gcd", "truediv")
_REMAINDERS = ("mod", "fmod", "remainder")
_TINY = 1e-6
_SHIFTS = ("bitwise_left_shift", "bitwise_right_shift", "logical_right_shift")


# ---- pointwise


def _pointwise(row: pointwise.Op) -> Write:
    def write(m: Maker) -> None:
        first = m.of(*row.accepts)
        if first is None:
            return
        operands: list[Ref | Number] = [
            _partner(m, first, row) if k in row.promoted else _condition(m, first)
            for k in range(row.arity)
        ]
        operands[row.promoted[0]] = first
        if _is_defined(m, row.name, operands):
            m.do(row.name, *operands)

    return write


def _partner(m: Maker, x: Ref, row: pointwise.Op) -> Ref | Number:
    drawn = m.rng.random()
    if drawn < 0.6:
        found = m.pick(lambda y: m.dtype(y).category in row.accepts and _broadcasts(m, y, x))
        if found is not None:
            return found
    if drawn < 0.75:
        return m.tensor(m.related(m.dims(x)), m.dtype(x))
    scalars = [s for s in m.scalars if m.dtype(s).category <= m.dtype(x).category]
    if drawn < 0.85 and scalars:
        return m.rng.choice(scalars)
    return m.constant(m.dtype(x))


def _condition(m: Maker, x: Ref) -> Ref | Number:
    found = m.pick(lambda y: m.dtype(y) is DataType.Bool and _broadcasts(m, y, x))
    if found is not None and m.chance(0.6):
        return found
    return m.chance(0.5) if m.chance(0.2) else m.tensor(m.related(m.dims(x)), DataType.Bool)


def _broadcasts(m: Maker, x: Ref, y: Ref) -> bool:
    """Whether sizes are equal at all calls, or known to be one."""
    a, b = m.dims(x), m.dims(y)
    return all(
        d == e or m.known(x, m.rank(x) - 1 - k) == 1 or m.known(y, m.rank(y) - 1 - k) == 1
        for k, (d, e) in enumerate(zip(reversed(a), reversed(b), strict=False))
    )


def _is_defined(m: Maker, op: str, operands: list[Ref | Number]) -> bool:
    """Whether integers are neither divided by zero nor shifted too far nor raised to a negative
    power, and no remainder is by what may be zero or not.
    """
    dtypes = [m.dtype(x) if isinstance(x, Ref) else None for x in operands]
    last = operands[-1]
    numbers = m.numbers[last.place] if isinstance(last, Ref) else [torch.tensor(last)]
    if any(d is not None and d.category >= Category.FLOAT for d in dtypes):
        near_zero = any(bool(((x * 1.0).abs() < _TINY).any()) for x in numbers)
        return not (op in _REMAINDERS and near_zero)
    if op in _INTEGERS_BY_ZERO:
        return op == "truediv" or not any(bool(((x == 0) | (x == -1)).any()) for x in numbers)
    if op in _SHIFTS:
        return all(bool(((x >= 0) & (x < 8)).all()) for x in numbers)
    return op != "pow" or all(bool(((x >= 0) & (x < 5)).all()) for x in numbers)


def _cast(m: Maker) -> None:
    x, dtype = m.pick(), m.rng.choice(m.dtypes if m.chance(0.8) else list(DataType)[:-1])
    if x is not None:
        converted(m, x, dtype)


def converted(m: Maker, x: Ref, dtype: DataType) -> Ref | None:
    """`x` as `dtype`, or nothing where an integer cannot hold it."""
    is_real = m.dtype(x).category is Category.FLOAT
    if m.dtype(x).is_complex and dtype.category < Category.FLOAT:
        return None
    if is_real and dtype.is_integral:
        low = 0 if dtype.is_unsigned else -100
        values = m.numbers[x.place]
        if not all(bool(((v > low - 1) & (v < 100)).all()) for v in values):
            return None
    found = m.do("cast", x, dtype)
    return found[0] if found else None


def _between_scalars(m: Maker) -> None:
    """Arithmetic of numbers: of inputs, and of sizes."""
    if not m.scalars or m.chance(0.3):
        dtype = m.rng.choice((DataType.Double, DataType.Int, DataType.Bool, DataType.Float))
        m.scalar(dtype, [m.constant(dtype) for _ in range(CALLS)])
        return
    x = m.rng.choice(m.scalars)
    y: Ref | Number = m.rng.choice(m.scalars) if m.chance(0.5) else m.constant(m.dtype(x))
    m.do(m.rng.choice(("add", "sub", "mul", "maximum", "minimum", "lt", "eq")), x, y)


# ---- sizes


def size_of(m: Maker, x: Ref, dim: int) -> Ref | int:
    """A size in an argument: the number, where it is known, or a scalar of the definition."""
    known = m.known(x, dim)
    if known is not None and m.chance(0.8):
        return known
    made = m.do("shape", x) if m.chance(0.2) else m.do("size", x, dim)
    if len(made) > 1 and m.chance(0.5):
        return m.do("at", made, dim)[0]
    return made[dim] if len(made) > 1 else made[0]


def _sizes(m: Maker, x: Ref) -> list[Ref | int]:
    return [size_of(m, x, k) for k in range(m.rank(x))]


def _number(m: Maker, x: Ref) -> Ref | Number:
    """A number of the kind of `x`, constant or not."""
    dtype = m.dtype(x)
    if m.chance(0.3):
        wide = {Category.BOOL: DataType.Bool, Category.INT: DataType.Int}.get(
            dtype.category, DataType.Double
        )
        return m.scalar(wide, [m.constant(wide) for _ in range(CALLS)])
    number = m.constant(dtype)
    return abs(number) if dtype.is_unsigned and isinstance(number, int) else number


# ---- views


def _view_of(rank: int) -> Callable[[Callable[[Maker, Ref], object]], Write]:
    def decorated(write: Callable[[Maker, Ref], object]) -> Write:
        def found(m: Maker) -> None:
            x = m.of(*_ANY, rank=rank)
            if x is not None:
                write(m, x)

        return found

    return decorated


@_view_of(0)
def _set(m: Maker, x: Ref) -> None:
    m.do(m.rng.choice(("set", "segment_set")), x)


@_view_of(1)
def _permute(m: Maker, x: Ref) -> None:
    order = m.rng.sample(range(m.rank(x)), m.rank(x))
    m.do("permute", x, [d - m.rank(x) if m.chance(0.1) else d for d in order])


@_view_of(1)
def _stride_order(m: Maker, x: Ref) -> None:
    m.do("stride_order", x, m.rng.sample(range(m.rank(x)), m.rank(x)))


@_view_of(0)
def _broadcast(m: Maker, x: Ref) -> Ref | None:
    flags = [False] * m.rank(x)
    for _ in range(m.rng.randint(1, 2)):
        flags.insert(m.rng.randint(0, len(flags)), True)
    made = m.do("broadcast", x, flags)
    return made[0] if made else None


@_view_of(0)
def _expand(m: Maker, x: Ref) -> None:
    ones = [k for k in range(m.rank(x)) if m.known(x, k) == 1]
    if not ones:
        flags = [True, *([False] * m.rank(x))]
        made = m.do("broadcast", x, flags)
        if not made:
            return
        x, ones = made[0], [0]
    shape: list[Ref | int] = []
    for k in range(m.rank(x)):
        other = m.of(*_ANY, rank=1)
        if k in ones and other is not None and m.chance(0.4):
            shape.append(size_of(m, other, m.rng.randrange(m.rank(other))))
        elif k in ones:
            shape.append(m.rng.choice((1, 2, 3, 5)))
        else:
            shape.append(size_of(m, x, k))
    m.do("expand", x, shape)


@_view_of(0)
def _broadcast_in_dim(m: Maker, x: Ref) -> None:
    shape, kept = _sizes(m, x), list(range(m.rank(x)))
    for _ in range(m.rng.randint(1, 2)):
        place = m.rng.randint(0, len(shape))
        other = m.of(*_ANY, rank=1)
        new: Ref | int = m.rng.choice((1, 2, 3))
        if other is not None and m.chance(0.5):
            new = size_of(m, other, m.rng.randrange(m.rank(other)))
        shape.insert(place, new)
        kept = [k + (k >= place) for k in kept]
    m.do("broadcast_in_dim", x, shape, kept)


@_view_of(1)
def _squeeze(m: Maker, x: Ref) -> None:
    ones = [k for k, d in enumerate(m.dims(x)) if set(d) == {1}]
    if not ones:
        return
    dims = m.rng.sample(ones, m.rng.randint(1, len(ones)))
    m.do("squeeze", x, [d - m.rank(x) if m.chance(0.2) else d for d in dims])


@_view_of(1)
def _squeeze_expanded(m: Maker, x: Ref) -> None:
    made = m.do("broadcast", x, [True, *([False] * m.rank(x))])
    wide = made and m.do("expand", made[0], [m.rng.choice((2, 3)), *_sizes(m, x)])
    if wide:
        m.do("squeeze", wide[0], [0], True)


@_view_of(1)
def _reshape(m: Maker, x: Ref) -> None:
    shape, k = _sizes(m, x), m.rng.randrange(m.rank(x))
    drawn = m.rng.random()
    if drawn < 0.2:
        shape = [-1]
    elif drawn < 0.5 and k + 1 < m.rank(x):
        merged = (
            m.do("mul", shape[k], shape[k + 1])
            if any(isinstance(n, Ref) for n in shape[k : k + 2])
            else [shape[k] * shape[k + 1]]
        )  # type: ignore[operator]
        shape[k : k + 2] = [-1] if m.chance(0.4) else merged
    elif drawn < 0.8:
        sizes = m.dims(x)[k]
        factors = [f for f in (2, 3, 4, 8) if all(n % f == 0 and n for n in sizes)]
        if factors:
            factor = m.rng.choice(factors)
            shape[k : k + 1] = m.rng.sample([factor, -1], 2)
    else:
        shape.insert(k, 1)
    m.do("reshape", x, shape)


@_view_of(1)
def _slice(m: Maker, x: Ref) -> None:
    starts, ends, steps = [], [], []
    for k, sizes in enumerate(m.dims(x)):
        start = m.rng.choice((0, 0, 0, 1, 2))
        start = min(start, min(sizes))
        end: Ref | int = size_of(m, x, k)
        if m.chance(0.4):
            end = m.rng.choice((-1, start, start + 1, start + 3, start + 8))
            end = end if end != -1 or min(sizes) > start else start
        starts.append(start)
        ends.append(end)
        steps.append(m.rng.choice((1, 1, 1, 2, 3)))
    m.do("slice", x, starts, ends, *([steps] if m.chance(0.6) else []))


@_view_of(1)
def _pad(m: Maker, x: Ref) -> None:
    widths: list[int] = []
    for sizes in reversed(m.dims(x)):
        if m.chance(0.2) and widths:
            break
        widths += [m.rng.choice((0, 0, 1, 2, 3, -1 if min(sizes) > 1 else 0)) for _ in range(2)]
    m.do("pad", x, widths, *([_number(m, x)] if m.chance(0.6) else []))


@_view_of(1)
def _cat(m: Maker, x: Ref) -> None:
    dim = m.rng.randrange(m.rank(x))
    others = m.dims(x)
    pieces = [x]
    for _ in range(m.rng.randint(1, 3)):
        found = m.pick(
            lambda y: (
                m.dtype(y) is m.dtype(x)
                and m.rank(y) == m.rank(x)
                and all(
                    d == e or k == dim
                    for k, (d, e) in enumerate(zip(m.dims(y), others, strict=True))
                )
            )
        )
        if found is None or m.chance(0.3):
            dims = list(others)
            dims[dim] = m.rng.choice([*m.open, dims[dim]])
            found = m.tensor(dims, m.dtype(x))
        if found is not None and m.rank(found) == m.rank(x):
            pieces.append(found)
    m.rng.shuffle(pieces)
    m.do("cat", pieces, dim - m.rank(x) if m.chance(0.3) else dim)


def _full(m: Maker) -> None:
    x = m.pick()
    if x is None:
        return
    shape = _sizes(m, x) if m.chance(0.7) else [m.rng.choice((0, 1, 2, 5)), 3]
    m.do("full", shape, _number(m, x), m.dtype(x))


def _iota(m: Maker) -> None:
    x = m.of(*_ANY, rank=1)
    dtype = m.rng.choice((DataType.Int, DataType.Int32, DataType.Float, DataType.Double))
    length: Ref | int = m.rng.randint(0, 9)
    if x is not None and m.chance(0.7):
        length = size_of(m, x, m.rng.randrange(m.rank(x)))
    numbers = [m.rng.choice((0, 1, 2, -3)), m.rng.choice((1, 2, -1, 0))]
    m.do("iota", length, *numbers[: m.rng.randint(0, 2)], dtype=dtype)


@_view_of(1)
def _view(m: Maker, x: Ref) -> None:
    transforms: list[list[object]] = []
    k = m.rng.randrange(m.rank(x))
    drawn = m.rng.random()
    if drawn < 0.4 and k + 1 < m.rank(x):
        transforms.append(["merge", k])
    elif drawn < 0.7:
        known = m.known(x, k)
        if known and known % 2 == 0:
            transforms += [["split", k, 2, known // 2]]
    elif drawn < 0.85:
        transforms.append(["reorder", m.rng.sample(range(m.rank(x)), m.rank(x))])
    if not transforms and all(n > 1 for n in m.dims(x)[k]):
        transforms.append(["resize", k, -1, m.rng.choice((0, 1))])
    if transforms:
        m.do("view", x, _NAMES[str(transforms[0][0])], transforms, 0)


_NAMES = {"merge": "reshape", "split": "reshape", "reorder": "permute", "resize": "pad"}


# ---- folds


def _axes(m: Maker, x: Ref) -> list[int]:
    count = m.rng.choice((1, 1, 1, 2, m.rank(x)))
    chosen = m.rng.sample(range(m.rank(x)), min(count, m.rank(x)))
    return [d - m.rank(x) if m.chance(0.2) else d for d in chosen]


def _fold(op: str, accepts: tuple[Category, ...], takes_dtype: bool = False) -> Write:
    def write(m: Maker) -> None:
        x = m.of(*accepts, rank=0 if m.chance(0.1) else 1)
        if x is None:
            return
        axes: list[int] | int | None = _axes(m, x)
        if not axes or m.chance(0.1):
            axes = None
        elif len(axes) == 1 and m.chance(0.4):  # type: ignore[arg-type]
            (axes,) = axes  # type: ignore[misc]
        named: dict[str, object] = {}
        if op != "welford" and m.chance(0.4):
            named[m.rng.choice(("keepdim", "keep_dim"))] = True
        if op in ("var", "var_mean"):
            named["correction"] = m.rng.choice((0, 1, 1, 2, 0.5, 5))
        if takes_dtype and m.dtype(x).category is not Category.COMPLEX and m.chance(0.3):
            is_float = m.dtype(x).category is Category.FLOAT
            floats = (DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16)
            named["dtype"] = m.rng.choice(floats if is_float else (*floats, DataType.Int32))
        m.do(op, x, axes, **named)

    return write


def _scan(op: str, accepts: tuple[Category, ...], takes_dtype: bool) -> Write:
    def write(m: Maker) -> None:
        x = m.of(*accepts, rank=1)
        if x is None:
            return
        dim = m.rng.randrange(-m.rank(x), m.rank(x))
        named: dict[str, object] = {}
        if takes_dtype and m.dtype(x).category < Category.FLOAT and m.chance(0.3):
            named["dtype"] = m.rng.choice((DataType.Float, DataType.Int32, DataType.Double))
        m.do(op, x, dim, *([_number(m, x)] if m.chance(0.3) else []), **named)

    return write


FOLDS: Mapping[str, Write] = MappingProxyType(
    {
        name: _fold(name, tuple(row.accepts), row.takes_dtype)
        for name, row in reductions.TABLE.items()
    }
    | {name: _fold(name, _ANY[2:]) for name in ("var", "var_mean", "welford")}
)
SCANS: Mapping[str, Write] = MappingProxyType(
    {
        name: _scan(name, tuple(row.reduction.accepts), row.reduction.takes_dtype)
        for name, row in scans.TABLE.items()
    }
)
POINTWISE: Mapping[str, Write] = MappingProxyType(
    {name: _pointwise(row) for name, row in pointwise.TABLE.items() if name != "cast"}
    | {"cast": _cast, "between scalars": _between_scalars}
)
VIEWS: Mapping[str, Write] = MappingProxyType(
    {
        "set": _set, "permute": _permute, "stride_order": _stride_order, "broadcast": _broadcast,
        "expand": _expand, "broadcast_in_dim": _broadcast_in_dim, "squeeze": _squeeze,
        "squeeze expanded": _squeeze_expanded, "reshape": _reshape, "slice": _slice, "pad": _pad,
        "cat": _cat, "full": _full, "iota": _iota, "view": _view,
    }
)  # fmt: skip
