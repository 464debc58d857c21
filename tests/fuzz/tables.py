"""The operations that random torch programs are made of: one row each.

A row is a line of Python with places in it. {x} is a tensor of one of the kinds that the row names
(f: float, i: integer, b: bool, c: complex); the other places are filled to fit it (see `PLACES`).
A row that starts with "! " is a statement, all others make a new tensor. Whatever torch refuses is
not taken, so places need not be exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tests.fuzz.maker import Maker
from tests.fuzz.numbers import random_numbers


@dataclass(frozen=True, slots=True)
class Row:
    text: str
    kinds: str
    weight: float = 1.0


Place = Callable[[Maker, torch.Tensor], str]

# ---- places


def _dim(p: Maker, x: torch.Tensor) -> str:
    return str(p.rng.randrange(-x.dim(), x.dim())) if x.dim() else "0"


def _dims(p: Maker, x: torch.Tensor) -> str:
    if not x.dim() or p.chance(0.4):
        return _dim(p, x)
    chosen = p.rng.sample(range(x.dim()), p.rng.randint(1, x.dim()))
    return str(tuple(d - x.dim() if p.chance(0.3) else d for d in chosen))


def _order(p: Maker, x: torch.Tensor) -> str:
    return ", ".join(map(str, p.rng.sample(range(x.dim()), x.dim()))) or "()"


def _sizes(p: Maker, x: torch.Tensor) -> str:
    """Neighbours joined, dimensions divided, ones put in and taken out."""
    sizes = list(x.shape)
    for _ in range(p.rng.randint(1, 3)):
        k = p.rng.randrange(len(sizes) + 1)
        if k == len(sizes) or p.chance(0.2):
            sizes.insert(k, 1)
        elif sizes[k] == 1 and p.chance(0.4):
            del sizes[k]
        elif k + 1 < len(sizes) and p.chance(0.6):
            sizes[k : k + 2] = [sizes[k] * sizes[k + 1]]
        elif factors := [f for f in (2, 3, 4, 5) if sizes[k] % f == 0]:
            factor = p.rng.choice(factors)
            sizes[k : k + 1] = p.rng.sample([factor, sizes[k] // factor], 2)
    if sizes and x.numel() and p.chance(0.3):
        sizes[p.rng.randrange(len(sizes))] = -1
    return str(tuple(sizes))


def _expanded(p: Maker, x: torch.Tensor) -> str:
    sizes = [p.rng.choice((2, 3)) if n == 1 else p.rng.choice((n, -1)) for n in x.shape]
    return str((*(p.rng.randint(1, 3) for _ in range(p.rng.choice((0, 0, 1, 2)))), *sizes))


def _index(p: Maker, x: torch.Tensor) -> str:
    """Integers, slices, None and ellipses."""
    parts = []
    for size in x.shape:
        drawn = p.rng.random()
        if drawn < 0.3:
            parts.append(":")
        elif drawn < 0.45 and size:
            parts.append(str(p.rng.randrange(-size, size)))
        elif drawn < 0.9:
            start = -size - 2 if p.chance(0.1) else p.rng.randint(0, size)
            end = p.rng.choice(("", str(p.rng.randint(max(start, 0), size + 2)), "-1"))
            step = p.rng.choice(("", "", "", ":2", ":3"))
            parts.append(f"{start or ''}:{end}{step}")
        else:
            break
    if p.chance(0.1):
        parts.insert(p.rng.randint(0, len(parts)), "None")
    if len(parts) < x.dim() and p.chance(0.2):
        parts.append("...")
    return ", ".join(parts) or "..."


def _widths(p: Maker, x: torch.Tensor) -> str:
    count = p.rng.randint(1, max(x.dim(), 1))
    return str([p.rng.choice((0, 0, 1, 1, 2, -1)) for _ in range(2 * count)])


def _repeats(p: Maker, x: torch.Tensor) -> str:
    extra = p.rng.choice((0, 0, 1))
    return ", ".join(str(p.rng.choice((1, 1, 2, 3))) for _ in range(x.dim() + extra)) or "1"


def _indices(p: Maker, x: torch.Tensor) -> str:
    """A dimension, and a list of indices into it: `dim, indices`."""
    dim = p.rng.randrange(x.dim()) if x.dim() else 0
    size = x.shape[dim] if x.dim() else 1
    return f"{dim}, {p.indices(size, [p.rng.randint(0, 5)])}"


def _gathered(p: Maker, x: torch.Tensor) -> str:
    if not x.dim():
        return f"0, {p.indices(1, [2])}"
    dim = p.rng.randrange(x.dim())
    sizes = [p.rng.randint(1, max(n, 1)) for n in x.shape]
    sizes[dim] = p.rng.randint(1, 4)
    return f"{dim}, {p.indices(x.shape[dim], sizes)}"


def _taken(p: Maker, x: torch.Tensor) -> str:
    bound = x.shape[0] if x.dim() else 1
    return p.indices(bound, [p.rng.randint(1, 4) for _ in range(p.rng.choice((0, 1, 1, 2)))], True)


def _mask(p: Maker, x: torch.Tensor) -> str:
    pairs = [
        name
        for name in p.pool
        if (t := p.tensor(name)).dtype is torch.bool
        and t.dim() <= x.dim()
        and all(a in (1, b) for a, b in zip(reversed(t.shape), reversed(x.shape), strict=False))
    ]
    if pairs and p.chance(0.7):
        return p.rng.choice(pairs)
    return p.argument(p.related_sizes(x.shape), torch.bool)


def _operand(p: Maker, x: torch.Tensor) -> str:
    return p.number(x.dtype) if p.chance(0.35) else p.partner(x, into=False)


def _operand_into(p: Maker, x: torch.Tensor) -> str:
    return p.number(x.dtype) if p.chance(0.35) else p.partner(x, into=True)


def _last(p: Maker, x: torch.Tensor) -> str:
    """A vector as long as the last dimension."""
    size = x.shape[-1] if x.dim() else 1
    found = p.one_of(lambda t: list(t.shape) == [size] and t.dtype == x.dtype)
    return found if found and p.chance(0.5) else p.argument([size], x.dtype)


def _channels(p: Maker, x: torch.Tensor) -> str:
    return p.argument([x.shape[1] if x.dim() > 1 else 1], x.dtype)


def _modulation(p: Maker, x: torch.Tensor) -> str:
    """A vector as long as the last dimension for each element of the first, of a batch."""
    batches, columns = (x.shape[0] if x.dim() > 2 else 1), x.shape[-1] if x.dim() else 1
    return p.argument([batches, *[1] * max(x.dim() - 2, 0), columns], x.dtype)


def _running(p: Maker, x: torch.Tensor) -> str:
    """Statistics of channels that a call updates, each in a place of its own."""
    return p.argument([x.shape[1] if x.dim() > 1 else 1], x.dtype, dense=True)


def _columns(p: Maker, x: torch.Tensor) -> str:
    """A matrix that `x` can be multiplied with."""
    return p.argument([x.shape[-1] if x.dim() else 1, p.rng.randint(1, 4)], x.dtype)


def _weight_and_bias(p: Maker, x: torch.Tensor) -> str:
    count = p.rng.randint(1, 4)
    weight = p.argument([count, x.shape[-1] if x.dim() else 1], x.dtype)
    return f"{weight}, {p.argument([count], x.dtype)}"


def _matrices(p: Maker, x: torch.Tensor) -> str:
    """As many as `x` has, which they can be multiplied with."""
    sizes = [*x.shape[:-2], x.shape[-1] if x.dim() else 1, p.rng.randint(1, 5)]
    found = p.one_of(lambda t: t.dtype == x.dtype and list(t.shape[:-1]) == sizes[:-1])
    return found if found and p.chance(0.5) else p.argument(sizes, x.dtype)


def _products(p: Maker, x: torch.Tensor) -> str:
    """What a batch of products may be added to."""
    return p.argument([1, x.shape[-2] if x.dim() > 1 else 1, 1], x.dtype)


def _square(p: Maker, x: torch.Tensor) -> str:
    size = x.shape[0] if x.dim() else 1
    return p.argument([size, size], x.dtype)


def _keys_and_values(p: Maker, x: torch.Tensor) -> str:
    """For the queries `x`, as many of both: torch's kernel for CPUs does not look, and writes where
    nothing is. Often the same ones, or those of another call.
    """
    keys = p.one_of(
        lambda t: t.dim() == x.dim() > 2 and _alike_but(t, x, x.dim() - 2) and t.dtype == x.dtype
    )
    keys = keys or _of_sizes(p, [*x.shape[:-2], 3, x.shape[-1] if x.dim() else 1], x.dtype)
    sizes = p.tensor(keys).shape
    values = p.one_of(lambda t: t.shape == sizes and t.dtype == x.dtype)
    return f"{keys}, {values if values and p.chance(0.7) else _of_sizes(p, sizes, x.dtype)}"


def _shared_keys_and_values(p: Maker, x: torch.Tensor) -> str:
    """The same, for fewer heads, each for a group of the queries'."""
    if x.dim() < 3:
        return _keys_and_values(p, x)
    heads = p.rng.choice([k for k in range(1, x.shape[-3] + 1) if x.shape[-3] % k == 0] or [1])
    sizes = [*x.shape[:-3], heads, 3, x.shape[-1]]
    return ", ".join(_of_sizes(p, sizes, x.dtype) for _ in range(2))


def _scores(p: Maker, x: torch.Tensor) -> str:
    """A number for each query, which may be fp32 for queries of 16 bits."""
    is_wide = x.dtype.itemsize == 2 and p.chance(0.5)
    sizes = [x.shape[-2] if x.dim() > 1 else 1, 1]
    return p.argument(sizes, torch.float32 if is_wide else x.dtype)


def _of_sizes(p: Maker, sizes: Sequence[int], dtype: torch.dtype) -> str:
    """An argument of these sizes, of which none is made 0."""
    return p.argument(sizes, dtype, random_numbers(p.rng, sizes, dtype))


def _alike_but(a: torch.Tensor, b: torch.Tensor, dim: int) -> bool:
    return all(m == n or k == dim for k, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)))


def _kernel(p: Maker, x: torch.Tensor) -> str:
    """Of a convolution, with two channels of results."""
    window = [p.rng.randint(1, 3) for _ in range(x.dim() - 2)]
    return p.argument([2, x.shape[1] if x.dim() > 1 else 1, *window], x.dtype)


def _window(p: Maker, x: torch.Tensor) -> str:
    """Of a pool, along each dimension of an image."""
    taps = p.rng.randint(1, 3)
    options = [
        f"{taps}",
        f"stride={p.rng.choice(('None', '1', '2', '3'))}",
        f"padding={p.rng.randint(0, taps // 2)}",
        f"ceil_mode={p.rng.choice(('True', 'False'))}",
    ]
    return ", ".join(options)


def _written(p: Maker, x: torch.Tensor) -> tuple[int, list[int], list[int]]:
    """A dimension, some of its places, none twice, and the sizes of what is written there."""
    if not x.dim() or not x.numel():
        return 0, [], [0]
    dim = p.rng.randrange(x.dim())
    places = p.rng.sample(range(x.shape[dim]), p.rng.randint(1, x.shape[dim]))
    sizes = [len(places) if k == dim else n for k, n in enumerate(x.shape)]
    return dim, places, sizes


def _source(p: Maker, x: torch.Tensor, sizes: list[int]) -> str:
    found = p.one_of(lambda t: list(t.shape) == sizes and t.dtype == x.dtype)
    return found if found and p.chance(0.6) else p.argument(sizes, x.dtype)


def _placed(p: Maker, x: torch.Tensor) -> str:
    """A dimension, an index as large as a source, and the source."""
    dim, places, sizes = _written(p, x)
    shape = [-1 if k == dim else 1 for k in range(len(sizes))]
    index = torch.tensor(places, dtype=torch.int64).reshape(shape).expand(sizes).contiguous()
    return f"{dim}, {p.argument(sizes, index.dtype, index)}, {_source(p, x, sizes)}"


def _ordered(p: Maker, x: torch.Tensor) -> str:
    """The same with one index for all rows."""
    dim, places, sizes = _written(p, x)
    index = torch.tensor(places, dtype=torch.int64)
    return f"{dim}, {p.argument([len(places)], index.dtype, index)}, {_source(p, x, sizes)}"


def _rows(p: Maker, x: torch.Tensor) -> str:
    """Rows, none twice, and what is written there."""
    count = x.shape[0] if x.dim() else 1
    places = torch.tensor(p.rng.sample(range(count), p.rng.randint(0, count)), dtype=torch.int64)
    sizes = [len(places), *x.shape[1:]]
    return f"({p.argument([len(places)], torch.int64, places)},), {_source(p, x, sizes)}"


def _joined(p: Maker, x: torch.Tensor) -> str:
    """Tensors that may be concatenated, and the dimension."""
    if not x.dim():
        return "[], 0"
    dim = p.rng.randrange(x.dim())
    parts = []
    for _ in range(p.rng.randint(1, 3)):

        def fits(t: torch.Tensor) -> bool:
            pairs = enumerate(zip(t.shape, x.shape, strict=True))
            return t.dim() == x.dim() and all(a == b or k == dim for k, (a, b) in pairs)

        names = [n for n in p.pool if p.tensor(n).dim() == x.dim() and fits(p.tensor(n))]
        parts.append(p.rng.choice(names) if names else p.like(x))
    return f"[{', '.join(parts)}], {dim}"


def _classes(p: Maker, x: torch.Tensor) -> str:
    """Classes for the rows of a matrix of scores."""
    if x.dim() < 2:
        return p.indices(x.shape[0] if x.dim() else 1, [])
    return p.indices(x.shape[1], [x.shape[0], *x.shape[2:]])


def _dtype(p: Maker, x: torch.Tensor) -> str:
    return str(p.rng.choice(p.dtypes))


PLACES: dict[str, Place] = {
    "y": _operand,
    "into": _operand_into,
    "t": lambda p, x: p.partner(x, into=False),
    "t_into": lambda p, x: p.partner(x, into=True),
    "like": lambda p, x: p.like(x),
    "n": lambda p, x: p.number(x.dtype),
    "positive": lambda p, x: p.rng.choice(("0.5", "1.0", "2.0", "3")),
    # The last one is 0 in all dtypes but double precision, where its quotients are infinite.
    "tiny": lambda p, x: p.rng.choice(("0.0", "-0.0", "0.3", "-1e-30", "1e-320")),
    "k": lambda p, x: str(p.rng.randint(-2, 3)),
    "count": lambda p, x: str(p.rng.randint(1, 4)),
    # Parts of complex numbers are copies in programs with gradients (docs/thunder.md).
    "copied": lambda p, x: ".clone()" if p.gradients else "",
    "bool": lambda p, x: p.rng.choice(("True", "False")),
    "dim": _dim,
    "dims": _dims,
    "order": _order,
    "sizes": _sizes,
    "expanded": _expanded,
    "index": _index,
    "widths": _widths,
    "repeats": _repeats,
    "dim_and_indices": _indices,
    "dim_and_gathered": _gathered,
    "indices": _taken,
    "mask": _mask,
    "last": _last,
    "channels": _channels,
    "modulation": _modulation,
    "running": _running,
    "columns": _columns,
    "weight_and_bias": _weight_and_bias,
    "matrices": _matrices,
    "products": _products,
    "square": _square,
    "keys_and_values": _keys_and_values,
    "shared_keys_and_values": _shared_keys_and_values,
    "scores": _scores,
    "kernel": _kernel,
    "window": _window,
    "channels_made": lambda p, x: p.argument([2], x.dtype),
    "dim_places_source": _placed,
    "dim_order_source": _ordered,
    "rows_and_source": _rows,
    "tensors_and_dim": _joined,
    "classes": _classes,
    "dtype": _dtype,
    "rounding": lambda p, x: p.rng.choice(("None", "'floor'", "'trunc'")),
    "reduction": lambda p, x: p.rng.choice(("'mean'", "'sum'", "'none'")),
}
