"""How operations are written that read and write at indices, draw random numbers, or call torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from tests.fuzz.definitions import inputs
from tests.fuzz.definitions.maker import CALLS, Maker
from tests.fuzz.definitions.program import Ref
from tests.fuzz.definitions.steps import Write, size_of
from thunder_fuser.ir.dtypes import Category, DataType

Dims = Sequence[tuple[int, ...]]
_ANY = (Category.BOOL, Category.INT, Category.FLOAT, Category.COMPLEX)
_FEW = (1, 2, 3, 5)
_PRODUCTS = (DataType.Float, DataType.Float, DataType.Double, DataType.BFloat16)
_WRITTEN = (DataType.Float, DataType.Double, DataType.BFloat16, DataType.Half, DataType.Int)


def _few(m: Maker) -> tuple[int, ...]:
    """A size of an index: one that is there, or a small one."""
    return m.rng.choice(m.open) if m.chance(0.4) else (m.rng.choice(_FEW),) * CALLS


def _index(m: Maker, dims: Dims, bounds: Sequence[int]) -> Ref | None:
    """Positions below the bound of each call, given or computed."""
    if not all(bounds):
        return None
    if m.chance(0.3):
        fitting = m.pick(
            lambda y: m.dims(y) == list(dims) and m.dtype(y) in (DataType.Int, DataType.Int32)
        )
        if fitting is not None:
            made = m.do("remainder", fitting, min(bounds))
            if made:
                return made[0]
    dtype = m.rng.choice((DataType.Int, DataType.Int32))
    return m.tensor(dims, dtype, lambda k: inputs.positions(m.rng, dtype, bounds[k]))


def _reads(op: str) -> Write:
    def write(m: Maker) -> None:
        x = m.of(*_ANY, rank=1)
        if x is None:
            return
        dim, dims = m.rng.randrange(m.rank(x)), m.dims(x)
        sizes = list(dims)
        sizes[dim] = _few(m)
        if op == "index_select":
            sizes = [sizes[dim]] if m.chance(0.9) else []
        elif op == "take_along_axis":
            sizes = [(1,) * CALLS if k != dim and m.chance(0.2) else d for k, d in enumerate(sizes)]
        elif m.chance(0.3):
            sizes = [
                tuple(min(n, 2) for n in d) if k != dim and len(set(d)) == 1 else d
                for k, d in enumerate(sizes)
            ]
        index = _index(m, sizes, dims[dim])
        if index is not None and m.dims(index) == sizes:
            m.do(op, x, index, dim - m.rank(x) if m.chance(0.3) else dim)

    return write


def _embedding(m: Maker) -> None:
    weight = m.pick(lambda x: m.rank(x) == 2 and m.dtype(x).is_floating)
    if weight is None:
        weight = m.tensor([_few(m), _few(m)], m.rng.choice(_PRODUCTS))
    if weight is None or m.rank(weight) != 2:
        return
    index = _index(m, [_few(m) for _ in range(m.rng.randint(0, 2))], m.dims(weight)[0])
    if index is not None:
        norms = (None, 1.0, 2.0, 0.5)
        more = [None, m.rng.choice(norms), m.rng.choice((None, 1.0, 2.0, 3.0, float("inf"), 0.0))]
        m.do("embedding_fwd", index, weight, *(more if m.chance(0.6) else []))


def _select(m: Maker) -> None:
    x = m.of(*_ANY, rank=1)
    if x is None:
        return
    dim = m.rng.randrange(m.rank(x))
    sizes = m.dims(x)[dim]
    if not all(sizes):
        return
    index: Ref | int = m.rng.randrange(-min(sizes), min(sizes))
    if m.chance(0.4):
        index = m.scalar(DataType.Int, [m.rng.randrange(n) for n in sizes])
    m.do("select", x, index, dim - m.rank(x) if m.chance(0.3) else dim)


def _triangle(m: Maker) -> None:
    x = m.of(*_ANY, rank=2)
    if x is not None:
        diagonal: Ref | int = m.rng.randint(-3, 3)
        if m.chance(0.3):
            diagonal = m.scalar(DataType.Int, [m.rng.randint(-3, 3) for _ in range(CALLS)])
        m.do(m.rng.choice(("triu", "tril")), x, *([diagonal] if m.chance(0.8) else []))


def _random(op: str, parameters: Callable[[Maker], Sequence[Any]]) -> Write:
    def write(m: Maker) -> None:
        x = m.pick()
        if x is None:
            return
        state: dict[str, Any] = {"rng_seed": m.rng.randint(0, 1 << 40), "rng_offset": 4}
        if m.chance(0.4):
            state = {
                name: m.scalar(DataType.Int, [m.rng.randint(0, 1 << 20) for _ in range(CALLS)])
                for name in state
            }
        if op != "bernoulli" and m.chance(0.5):
            floats = (DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16)
            state["dtype"] = m.rng.choice(floats)
        shape = [size_of(m, x, k) for k in range(m.rank(x))]
        m.do(op, *parameters(m), shape, **state)

    return write


def _random_like(m: Maker) -> None:
    x = m.of(Category.FLOAT)
    if x is not None:
        m.do(m.rng.choice(("rand_like", "randn_like")), x)


# ---- torch calls


def _operand(m: Maker, dims: Dims, dtype: DataType) -> Ref | None:
    """A tensor of those sizes, one that is there or a new one."""
    found = m.pick(lambda y: m.dims(y) == list(dims) and m.dtype(y) is dtype)
    made = found if found is not None and m.chance(0.7) else m.tensor(dims, dtype)
    return made if made is not None and m.dims(made) == list(dims) else None


def _call(m: Maker, op: str, *operands: Ref | None, **attributes: Any) -> None:
    """A call whose operands are all there."""
    if None not in operands:
        m.do(op, *operands, **attributes)


def _product(m: Maker) -> None:
    x = m.pick(lambda y: m.dtype(y) in _PRODUCTS and m.rank(y) >= 1)
    if x is None:
        return
    dims, dtype, outer = m.dims(x), m.dtype(x), _few(m)
    if m.chance(0.5):
        bias = _operand(m, [outer], dtype) if m.chance(0.4) else None
        more = {} if bias is None else {"bias": bias}
        _call(m, "linear", x, _operand(m, [outer, dims[-1]], dtype), **more)
    else:
        _call(m, "matmul", x, _operand(m, [dims[-1], outer], dtype))


def _batches(m: Maker) -> None:
    dtype, (b, n, k, c) = m.rng.choice(_PRODUCTS), (_few(m) for _ in range(4))
    x = m.pick(lambda y: m.dtype(y) is dtype and m.rank(y) == 3)
    if x is not None:
        b, n, k = m.dims(x)
    pair = (x or _operand(m, [b, n, k], dtype)), _operand(m, [b, k, c], dtype)
    if m.chance(0.5):
        _call(m, "bmm", *pair)
    else:
        _call(m, "baddbmm", _operand(m, [b, n, c], dtype), *pair, beta=0.5, alpha=2.0)


def _groups(m: Maker) -> None:
    dtype, n = m.rng.choice(_PRODUCTS), m.rng.randint(2, 8)
    rows, k, c = (n,) * CALLS, _few(m), _few(m)
    ends = torch.tensor([m.rng.randint(0, n), n])
    offsets = m.tensor([(2,) * CALLS], DataType.Int32, lambda _: lambda count: _ends(ends, count))
    x, y = _operand(m, [rows, k], dtype), _operand(m, [(2,) * CALLS, k, c], dtype)
    _call(m, "grouped_mm", x, y, offsets)


def _ends(ends: torch.Tensor, count: int) -> torch.Tensor:
    """Ends of groups wherever the two elements lie in a memory."""
    return torch.full((count,), int(ends[1]), dtype=torch.int32)


def _attention(m: Maker) -> None:
    dtype = m.rng.choice((DataType.Float, DataType.Double, DataType.BFloat16))
    batch, heads, rows, columns, width = (_few(m) for _ in range(5))
    queries, keys = [batch, heads, rows, width], [batch, heads, columns, width]
    # Torch's kernel for CPUs has zeros for rows of NaN.
    q, k, v = (
        m.tensor(dims, dtype, lambda _: inputs.quarters(m.rng, dtype))
        for dims in (queries, keys, keys)
    )
    if [m.dims(x) for x in (q, k, v)] != [queries, keys, keys]:
        return
    causal = rows == columns and m.chance(0.4)
    made = m.do("sdpfa_fwd", q, k, v, is_causal=causal)
    if made and m.chance(0.5):
        output, logsumexp, seed, offset = made
        grad = _operand(m, queries, dtype)
        if grad is not None:
            m.do("sdpfa_bwd", grad, q, k, v, output, logsumexp, 0.0, causal, seed, offset)


def _scaled(m: Maker) -> None:
    width = (16,) * CALLS
    n, c = (16,) * CALLS, (16,) * CALLS
    x = m.tensor([n, width], DataType.Float8_e4m3fn)
    y = m.tensor([c, width], DataType.Float8_e4m3fn)
    scales = [m.tensor([], DataType.Float) for _ in range(2)]
    turned = y and m.do("permute", y, [1, 0])
    if x is not None and turned and None not in scales:
        m.do("scaled_mm", x, turned[0], *scales)


def _convolution(m: Maker) -> None:
    dtype, spatial = m.rng.choice(_PRODUCTS), m.rng.randint(1, 2)
    batch, channels, out = _few(m), (m.rng.choice((2, 4)),) * CALLS, (m.rng.choice((2, 4)),) * CALLS
    size, kernel = (m.rng.choice((5, 8)),) * CALLS, (m.rng.choice((1, 2, 3)),) * CALLS
    groups = m.rng.choice((1, 1, 2))
    within = (channels[0] // groups,) * CALLS
    x = _operand(m, [batch, channels, *([size] * spatial)], dtype)
    weight = _operand(m, [out, within, *([kernel] * spatial)], dtype)
    if x is None or weight is None:
        return
    bias = _operand(m, [out], dtype) if m.chance(0.5) else None
    named: dict[str, Any] = {} if bias is None else {"bias": bias}
    named |= {"stride": [m.rng.choice((1, 2))], "padding": [m.rng.choice((0, 1))]}
    m.do("convolution", x, weight, groups=groups, **named)


def _writes(op: str) -> Write:
    def write(m: Maker) -> None:
        x = m.pick(lambda y: m.dtype(y) in _WRITTEN and m.rank(y) >= 1)
        if x is None:
            return
        dims, dtype = m.dims(x), m.dtype(x)
        dim = 0 if op == "index_put_accumulate" else m.rng.randrange(m.rank(x))
        few: tuple[int, ...] = (1,) * CALLS
        if op in ("scatter_add", "index_add", "index_put_accumulate") and _adds_exactly(dtype):
            few = _few(m)  # the others have one answer only for positions that differ
        sizes = [few if k == dim else d for k, d in enumerate(dims)]
        index = _index(m, sizes if op.startswith("scatter") else [few], dims[dim])
        source = _operand(m, sizes, dtype)
        if index is None or source is None:
            return
        if op == "index_put_accumulate":
            m.do(op, x, index, source)
        else:
            number = op == "scatter" and m.chance(0.3)
            m.do(op, x, index, m.constant(dtype) if number else source, dim)

    return write


def _adds_exactly(dtype: DataType) -> bool:
    """Whether sums are as the oracle bounds them: torch rounds each sum of 16-bit floats."""
    return not dtype.is_reduced_precision


def _embedding_backward(m: Maker) -> None:
    rows, index_dims = m.rng.choice(_FEW), [_few(m)]
    index = _index(m, index_dims, (rows,) * CALLS)
    dtype = m.rng.choice(list(filter(_adds_exactly, _PRODUCTS)))
    grad = _operand(m, [*index_dims, _few(m)], dtype)
    if index is not None and grad is not None:
        padding = m.rng.choice((-1, 0))
        m.do("embedding_backward", grad, index, rows, padding, m.chance(0.3))


def _orders(op: str) -> Write:
    def write(m: Maker) -> None:
        x = m.pick(lambda y: m.dtype(y) in _WRITTEN and m.rank(y) >= 1)
        if x is None:
            return
        dim = m.rng.randrange(-m.rank(x), m.rank(x))
        if op == "topk":
            count = m.rng.randint(0, min(m.dims(x)[dim]))
            m.do(op, x, count, dim, m.chance(0.5), True)
        else:
            m.do(op, x, dim, m.chance(0.5), True)

    return write


READS: Mapping[str, Write] = MappingProxyType(
    {name: _reads(name) for name in ("index_select", "take_along_axis", "gather")}
    | {"embedding_fwd": _embedding, "select": _select, "triangle": _triangle}
)
DRAWS: Mapping[str, Write] = MappingProxyType(
    {
        "uniform": _random("uniform", lambda m: (-1.0, m.rng.choice((1.0, 2.5)))),
        "normal": _random("normal", lambda m: (m.rng.choice((0.0, 1.0)), 0.5)),
        "bernoulli": _random("bernoulli", lambda m: (5, m.rng.choice((0, 1 << 31, 1 << 30)))),
        "random like": _random_like,
    }
)
CALLED: Mapping[str, Write] = MappingProxyType(
    {
        "product": _product, "batches": _batches, "grouped_mm": _groups, "attention": _attention,
        "scaled_mm": _scaled, "convolution": _convolution,
        "embedding_backward": _embedding_backward,
    }
    | {
        name: _writes(name)
        for name in ("scatter", "scatter_add", "index_add", "index_copy", "index_put_accumulate")
    }
    | {name: _orders(name) for name in ("sort", "argsort", "topk")}
)  # fmt: skip
