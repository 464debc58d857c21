"""Random well-formed fusions over the whole op table, with inputs: what property tests run on.

`random_case(seed)` is a function of its seed. A program grows from a pool of tensors: an operation
is drawn first, then operands; where it has a domain (log, division) other operations bring them
there. The oracle runs along, so that the pool holds only values that are worth building on, and
every case comes with its answer and the bound of the answer's error.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tests import oracle
from tests.inputs import QUARTERS, laid_out, random_tensor
from thunder_fuser.errors import FuserTypeError
from thunder_fuser.ir import ops
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import Category, DataType, Number
from thunder_fuser.ir.fusion import Fusion, Scalar, TensorView, Val

DTYPES = tuple(d for d in DataType if d is not DataType.Null)
SIZES = (1, 1, 2, 3, 5, 7, 8, 13, 16, 17, 24, 31, 64)


@dataclass(frozen=True, slots=True)
class Case:
    """A fusion, inputs for it, and the oracle that has run on them."""

    seed: int
    fusion: Fusion
    inputs: tuple[torch.Tensor | Number, ...]
    oracle: oracle.Oracle

    def check(self, outputs: Sequence[torch.Tensor], updates: Sequence[torch.Tensor] = ()) -> None:
        """AssertionError, with the seed and the program, where a result is outside its bound."""
        try:
            oracle.check(self.oracle, self.fusion, outputs, updates)
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {error}\n{self.fusion}") from None


def random_case(
    seed: int,
    *,
    steps: int = 10,
    max_numel: int = 4096,
    dtypes: Sequence[DataType] = DTYPES,
    updates: bool = True,
) -> Case:
    """A fusion of about `steps` drawn operations on CPU tensors of up to `max_numel` elements."""
    return _Generator(seed, max_numel, tuple(dtypes)).run(steps, updates)


@dataclass(frozen=True, slots=True)
class _Domain:
    """Where an operation is worth testing: real operands between the bounds.

    Complex operands go into the unit disc; around 2 instead of 0 if zero is not in the domain.
    """

    low: float
    high: float


_POSITIVE = _Domain(0.25, 8)
_UNIT = _Domain(-0.75, 0.75)
_MODEST = _Domain(-4, 4)
_DIVISOR = _Domain(0.5, 4)
_DOMAINS: dict[str, tuple[_Domain | None, ...]] = {
    **dict.fromkeys(
        ("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "lgamma"), (_POSITIVE,)
    ),
    **dict.fromkeys(("asin", "acos", "atan", "atanh", "asinh", "erfinv"), (_UNIT,)),
    **dict.fromkeys(("exp", "exp2", "expm1", "sinh", "cosh", "tanh"), (_MODEST,)),
    **dict.fromkeys(("sigmoid", "silu", "sin", "cos", "erf", "erfc"), (_MODEST,)),
    **dict.fromkeys(("div", "truediv", "mod", "fmod", "remainder"), (None, _DIVISOR)),
    "tan": (_Domain(-1.25, 1.25),),
    "acosh": (_Domain(1.5, 8),),
    "log1p": (_Domain(-0.75, 8),),
    "erfcinv": (_Domain(0.25, 1.75),),
    "atan2": (None, _POSITIVE),
    "pow": (_POSITIVE, _Domain(-3, 3)),
    "lerp": (None, None, _Domain(0, 1)),
}
_LARGEST = 1e4


class _Generator:
    def __init__(self, seed: int, max_numel: int, dtypes: tuple[DataType, ...]) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.max_numel = max_numel
        self.dtypes = dtypes
        self.builder = FusionBuilder()
        self.oracle = oracle.Oracle()
        self.inputs: list[torch.Tensor | Number] = []
        self.input_views: list[TensorView] = []
        self.pool: list[TensorView] = []
        self.scalars: list[Scalar] = []
        self.ran = 0

    def run(self, steps: int, updates: bool) -> Case:
        shape = self.shape()
        for _ in range(self.rng.randint(1, 3)):
            self.tensor([1 if self.rng.random() < 0.15 else size for size in shape])
        if self.rng.random() < 0.5:
            self.number()
        for _ in range(steps):
            drawn = self.rng.random()
            if drawn < 0.02:
                self.scalar_step()
            elif drawn < 0.6:
                self.pointwise_step()
            elif drawn < 0.95:
                self.view_step()
            else:
                self.factory_step()
        self.results(updates)
        return Case(self.seed, self.builder.build(), tuple(self.inputs), self.oracle)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def keep(self, made: Val | None) -> None:
        """Lets the oracle catch up, and pools the value if it is worth building on."""
        exprs = self.builder.build().exprs
        for expr in exprs[self.ran :]:
            self.oracle.run(expr)
        self.ran = len(exprs)
        if isinstance(made, Scalar):
            self.scalars.append(made)
        elif made is not None and self._worth_keeping(made):
            self.pool.append(made)

    def _worth_keeping(self, view: TensorView) -> bool:
        value = self.oracle.value(view)
        if view.numel > 4 * self.max_numel or view.rank > 6:
            return False
        if view.dtype.category >= Category.FLOAT and value.numel():
            size = value.abs()
            if not bool((size[size.isfinite()] < _LARGEST).all()):
                return False
            if float(size.isfinite().double().mean()) < 0.5:
                return False
        return oracle.tightness(self.oracle, view) > 0.9

    # ---- inputs

    def shape(self) -> list[int]:
        if self.chance(0.04):
            return []
        sizes = [self.rng.choice(SIZES) for _ in range(self.rng.randint(1, 5))]
        while math.prod(sizes) > self.max_numel:
            sizes.pop(self.rng.randrange(len(sizes)))
        if sizes and self.chance(0.05):
            sizes[self.rng.randrange(len(sizes))] = 0
        return sizes

    def tensor(self, sizes: Sequence[int], dtype: DataType | None = None) -> TensorView:
        dtype = dtype or self.rng.choice(self.dtypes)
        data, layout = laid_out(self.rng, random_tensor(self.rng, sizes, dtype))
        # Less may be promised than holds.
        promised = [flag and not self.chance(0.05) if flag else flag for flag in layout.contiguity]
        view = self.builder.tensor(
            sizes,
            dtype,
            expanded=layout.expanded,
            allocation=layout.allocation,
            contiguity=promised,
        )
        self.inputs.append(data)
        self.input_views.append(view)
        self.oracle.bind([view], [data])
        self.keep(view)
        return view

    def number(self, dtype: DataType | None = None) -> Scalar:
        dtype = dtype or self.rng.choice((DataType.Double, DataType.Int, DataType.Bool))
        scalar = self.builder.scalar(None, dtype)
        self.inputs.append(self.constant(dtype))
        self.oracle.bind([scalar], [self.inputs[-1]])
        self.scalars.append(scalar)
        return scalar

    def constant(self, dtype: DataType) -> Number:
        if dtype is DataType.Bool:
            return self.chance(0.5)
        if dtype.is_integral:
            return self.rng.randint(1, 5)
        if dtype.is_complex:
            return complex(self.rng.choice(QUARTERS), self.rng.choice(QUARTERS))
        return self.rng.choice((0.1, 0.25, 0.5, -0.75, 1.5, 2.0, 1 / 3))

    # ---- pointwise

    def pointwise_step(self) -> None:
        op = ops.lookup(self.rng.choice(tuple(ops.TABLE)))
        if op.name == "cast":
            self.keep(self.cast(self.recent(), self.rng.choice(self.dtypes)))
            return
        first = self.first(op)
        if first is None:
            return
        operands: list[Val | Number] = [
            self.condition(first) if k not in op.promoted else self.partner(first, op)
            for k in range(op.arity)
        ]
        operands[op.promoted[0]] = first
        inside = first.dtype.is_complex or not self.chance(0.15)
        for k, domain in enumerate(_DOMAINS.get(op.name, ())):
            if inside and domain is not None:
                operands[k] = self.within(operands[k], domain)
        try:
            made = self.builder.pointwise(op.name, *operands)
        except FuserTypeError:
            # No common type (uint64 with a signed one), or one that the operation does not take.
            return
        self.keep(made)

    def recent(self, among: Sequence[TensorView] = ()) -> TensorView:
        """A value, rather a young one: programs are deeper than they are wide."""
        pool = among or self.pool
        return self.rng.choice(pool[-4:] if self.chance(0.6) else pool)

    def first(self, op: ops.Op) -> TensorView | None:
        """A first operand of a kind drawn evenly from those that the operation takes."""
        category = self.rng.choice(sorted(op.accepts))
        fitting = [v for v in self.pool if v.dtype.category is category]
        if fitting and self.chance(0.7):
            return self.recent(fitting)
        dtypes = [d for d in self.dtypes if d.category is category]
        return self.cast(self.recent(), self.rng.choice(dtypes)) if dtypes else None

    def cast(self, x: TensorView, dtype: DataType) -> TensorView | None:
        """`x` as `dtype`, or None where that has no defined result."""
        if dtype.is_integral and x.dtype.category >= Category.FLOAT:
            if not bool(self.oracle.value(x).isfinite().all()):
                return None
            if x.dtype.is_complex:
                x = self._tensor(self.builder.pointwise("real", x))
            low = 0.0 if dtype.is_unsigned else -100.0
            x = self._tensor(self.builder.pointwise("clamp", x, low, 100.0))
        return self._tensor(self.builder.cast(x, dtype))

    def partner(self, x: TensorView, op: ops.Op) -> Val | Number:
        """Another operand: a tensor that broadcasts with `x`, a new input, or a number."""
        drawn = self.rng.random()
        fitting = [y for y in self.pool if _broadcastable(x, y) and y.dtype.category in op.accepts]
        if drawn < 0.6 and fitting:
            found = self.rng.choice(fitting)
            try:
                op.common_dtype(ops.operands_of([x, found] if op.arity > 1 else [x]))
            except FuserTypeError:
                return self.cast(found, x.dtype) or x
            return found
        if drawn < 0.7:
            return self.tensor([1 if self.chance(0.2) else size for size in x.sizes], x.dtype)
        scalars = [s for s in self.scalars if s.dtype.category <= x.dtype.category]
        if drawn < 0.8 and scalars:
            return self.rng.choice(scalars)
        return self.constant(x.dtype)

    def condition(self, x: TensorView) -> Val:
        fitting = [y for y in self.pool if y.dtype is DataType.Bool and _broadcastable(x, y)]
        if fitting and self.chance(0.5):
            return self.rng.choice(fitting)
        return self.builder.pointwise(
            "ne" if x.dtype.is_complex else "gt", x, self.constant(x.dtype)
        )

    def within(self, x: Val | Number, domain: _Domain) -> Val | Number:
        """The operand brought into the domain by other operations."""
        pointwise = self.builder.pointwise
        if not isinstance(x, TensorView):
            value = 1 if isinstance(x, (Scalar, bool)) else x
            return 1.5 if isinstance(value, complex) else min(max(value, domain.low), domain.high)
        if x.dtype.is_complex:
            disc = pointwise("truediv", x, pointwise("add", pointwise("abs", x), 1.0))
            return disc if domain.low <= 0 else pointwise("add", disc, 2.0)
        if x.dtype is DataType.Bool:
            one = domain.low <= 1 <= domain.high
            zero = domain.low <= 0 <= domain.high
            if not (one or zero):
                return self.builder.full(x.sizes, domain.low, DataType.Float)
            return x if one and zero else pointwise("logical_or" if one else "logical_and", x, one)
        low, high = domain.low, domain.high
        if x.dtype.is_integral:
            low, high = math.ceil(low), math.floor(high)
            if x.dtype.is_unsigned:
                low, high = max(low, 0), max(high, 0)
            elif domain is _DIVISOR and self.chance(0.3):
                low, high = -high, -2
        return pointwise("clamp", x, low, high)

    def _tensor(self, value: Val) -> TensorView:
        assert isinstance(value, TensorView)
        self.keep(value)
        return value

    def scalar_step(self) -> None:
        """Arithmetic between scalar inputs and numbers, done by the host or by every thread."""
        floats = [s for s in self.scalars if s.dtype.is_floating] or [self.number(DataType.Double)]
        op = self.rng.choice(("add", "mul", "maximum", "sub", "tanh", "lt"))
        operands: list[Val | Number] = [self.rng.choice(floats)]
        if ops.lookup(op).arity == 2:
            operands.append(self.constant(DataType.Double))
        self.keep(self.builder.pointwise(op, *operands))

    # ---- views and factories

    def view_step(self) -> None:
        x = self.recent()
        makers: Sequence[Callable[[TensorView], TensorView | None]] = (
            self.permuted, self.reshaped, self.sliced, self.padded, self.joined, self.broadcast,
            self.broadcast_in_dim, self.expanded, self.squeezed, self.reordered,
            self.builder.set, self.builder.segment_set,
        )  # fmt: skip
        self.keep(self.rng.choice(makers)(x))

    def permuted(self, x: TensorView) -> TensorView:
        return self.builder.permute(x, self.rng.sample(range(x.rank), x.rank))

    def reordered(self, x: TensorView) -> TensorView:
        return self.builder.stride_order(x, self.rng.sample(range(x.rank), x.rank))

    def reshaped(self, x: TensorView) -> TensorView:
        """Neighbours joined, dimensions divided, ones put in and taken out."""
        sizes = list(x.sizes)
        for _ in range(self.rng.randint(1, 3)):
            k = self.rng.randrange(len(sizes) + 1)
            if k == len(sizes) or self.chance(0.2):
                sizes.insert(k, 1)
            elif k + 1 < len(sizes) and self.chance(0.5):
                sizes[k : k + 2] = [sizes[k] * sizes[k + 1]]
            else:
                factor = self.rng.choice([f for f in (1, 2, 3, 4, 8, 13) if sizes[k] % f == 0])
                sizes[k : k + 1] = self.rng.sample([factor, sizes[k] // factor], 2)
        if self.chance(0.3) and math.prod(sizes):
            sizes[self.rng.randrange(len(sizes))] = -1
        return self.builder.reshape(x, sizes)

    def sliced(self, x: TensorView) -> TensorView:
        starts, ends, strides = [], [], []
        for size in x.sizes:
            start = self.rng.randint(0, size) if self.chance(0.5) else 0
            starts.append(start)
            ends.append(self.rng.randint(start, size) if self.chance(0.5) else size)
            strides.append(self.rng.choice((2, 3)) if self.chance(0.15) else 1)
        return self.builder.slice(x, starts, ends, strides)

    def padded(self, x: TensorView) -> TensorView:
        widths: list[int] = []
        for size in reversed(x.sizes[self.rng.randint(0, x.rank) :]):
            left = self.rng.randint(-min(2, size), 3)
            widths += [left, self.rng.randint(-min(2, size + min(left, 0)), 3)]
        value = None if self.chance(0.5) else self.constant(x.dtype)
        return self.builder.pad(x, widths, value)

    def joined(self, x: TensorView) -> TensorView | None:
        if not x.rank:
            return None
        dim = self.rng.randrange(x.rank)
        parts = [x]
        for _ in range(self.rng.randint(1, 3)):
            same = [y for y in self.pool if y.dtype is x.dtype and _joins(x, y, dim)]
            part = self.rng.choice(same)
            parts.append(self.sliced_along(part, dim) if self.chance(0.5) else part)
        self.rng.shuffle(parts)
        return self.builder.cat(parts, self.rng.choice((dim, dim - x.rank)))

    def sliced_along(self, x: TensorView, dim: int) -> TensorView:
        start = self.rng.randint(0, x.sizes[dim])
        starts = [start if k == dim else 0 for k in range(x.rank)]
        return self._tensor(self.builder.slice(x, starts, list(x.sizes)))

    def broadcast(self, x: TensorView) -> TensorView:
        flags = [False] * x.rank + [True] * self.rng.randint(1, 2)
        self.rng.shuffle(flags)
        return self.builder.broadcast(x, flags)

    def broadcast_in_dim(self, x: TensorView) -> TensorView:
        rank = x.rank + self.rng.randint(0, 2)
        dims = sorted(self.rng.sample(range(rank), x.rank))
        sizes = [self.rng.choice((1, 2, 3, 8)) for _ in range(rank)]
        for k, dim in enumerate(dims):
            if not _expandable(x, k):
                sizes[dim] = x.sizes[k]
        return self.builder.broadcast_in_dim(x, sizes, dims)

    def expanded(self, x: TensorView) -> TensorView:
        sizes = [
            self.rng.choice((-1, 2, 5)) if _expandable(x, k) else size
            for k, size in enumerate(x.sizes)
        ]
        return self.builder.expand(x, sizes)

    def squeezed(self, x: TensorView) -> TensorView:
        ones = [k for k in range(x.rank) if _expandable(x, k)]
        return self.builder.squeeze(x, self.rng.sample(ones, self.rng.randint(0, len(ones))))

    def factory_step(self) -> None:
        dtype = self.rng.choice(self.dtypes)
        like = self.rng.choice(self.pool)
        if self.chance(0.5) or dtype.is_complex or dtype is DataType.Bool or not like.rank:
            self.keep(self.builder.full(like.sizes, self.constant(dtype), dtype))
            return
        start, step = self.constant(DataType.Int), self.constant(DataType.Int)
        if dtype.is_floating:
            start, step = self.constant(dtype), self.constant(dtype)
        self.keep(self.builder.iota(like.sizes[-1], start, step, dtype))

    # ---- results

    def results(self, updates: bool) -> None:
        used = self.builder.build().uses()
        made = [v for v in self.pool if v not in self.input_views] or self.pool
        ends = [v for v in made if v not in used]
        chosen = self.rng.sample(ends, min(len(ends), self.rng.randint(1, 5))) or made[-1:]
        if self.chance(0.15):
            chosen.append(self.rng.choice(self.pool))
        if self.chance(0.08):
            chosen.append(chosen[0])
        for view in chosen:
            self.builder.output(view)
        if updates and self.chance(0.3):
            self._update(made)

    def _update(self, made: Sequence[TensorView]) -> None:
        for target in self.input_views:
            if any(d.expanded is not None for d in target.domain.logical):
                continue
            fitting = [
                v
                for v in made
                if v.dtype is target.dtype and v.sizes == target.sizes and v != target
            ]
            if fitting:
                self.builder.output(self.rng.choice(fitting), target)
                return


def _broadcastable(x: TensorView, y: TensorView) -> bool:
    pairs = zip(reversed(x.sizes), reversed(y.sizes), strict=False)
    return all(a == b or a == 1 or b == 1 for a, b in pairs)


def _joins(x: TensorView, y: TensorView, dim: int) -> bool:
    return x.rank == y.rank and all(
        a == b or k == dim for k, (a, b) in enumerate(zip(x.sizes, y.sizes, strict=True))
    )


def _expandable(x: TensorView, k: int) -> bool:
    dim = x.domain.logical[k]
    return dim.is_broadcast and dim.expanded is None
