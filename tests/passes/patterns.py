"""Random fusions full of what passes look for, and what it means that a pass changed nothing."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from tests.support.generator import random_case
from thunder_fuser.analysis.aliases import view_of
from thunder_fuser.analysis.layout import declared_layout
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.fusion import Fusion, TensorView, Val
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.tables.reductions import TABLE
from thunder_fuser.ir.verify import verify

DTYPES = (
    *(DataType.Float, DataType.Float, DataType.BFloat16, DataType.Half, DataType.Double),
    *(DataType.Int, DataType.Int32, DataType.UInt8, DataType.Bool, DataType.ComplexFloat),
    *(DataType.UInt64, DataType.Float8_e4m3fn, DataType.Float8_e5m2),
)
_NUMBERS = (0, 1, -1, 0.0, -0.0, 1.0, 0.5, float("nan"), float("inf"), True, False)


def pattern_case(seed: int, steps: int = 14) -> tuple[Fusion, list[torch.Tensor]]:
    """A fusion and inputs for it, which hold zeros of both signs, infinities and NaN."""
    return _Patterns(seed).run(steps)


class _Patterns:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)
        self.b = FusionBuilder()
        self.inputs: list[torch.Tensor] = []
        self.sizes = [self.rng.choice((1, 2, 3, 4, 6)) for _ in range(self.rng.randint(1, 3))]
        self.pool = [self.tensor() for _ in range(self.rng.randint(1, 2))]

    def tensor(self) -> TensorView:
        dtype = self.rng.choice(DTYPES)
        special = torch.tensor([0.0, -0.0, 1.0, -1.5, 2.0, torch.inf, -torch.inf, torch.nan])
        if dtype.category < DataType.Float.category:
            special = torch.tensor([0.0, 1.0, 2.0, 3.0, 250.0])
        pick = torch.randint(0, len(special), tuple(self.sizes), generator=self.torch)
        self.inputs.append(special[pick].to(dtype.torch))
        return self.b.tensor(self.sizes, dtype)

    def run(self, steps: int) -> tuple[Fusion, list[torch.Tensor]]:
        for _ in range(steps):
            made = getattr(self, self.rng.choice(self.STEPS))(self.rng.choice(self.pool[-5:]))
            if isinstance(made, TensorView) and made.numel <= 2000:
                self.pool.append(made)
        for x in self.rng.choices(self.pool[-6:], k=self.rng.randint(1, 3)):
            self.b.output(x)
        for target in self.pool[: len(self.inputs)]:
            fits = [x for x in self.pool if (x.dtype, x.sizes) == (target.dtype, target.sizes)]
            if self.rng.random() < 0.15:
                self.b.output(self.rng.choice(fits), target)
        return self.b.build(), self.inputs

    STEPS = (
        *("neutral", "neutral", "neutral", "twice", "choice", "cast", "cast", "cast", "full"),
        *("slice", "pad", "permute", "reshape", "broadcast", "expand", "squeeze", "back", "set"),
        *("segment_set", "stride_order", "halves", "halves", "piece", "add", "repeat", "unary"),
        *("fold", "fold", "fold"),
    )

    # ---- arithmetic that does little

    def constant(self, x: TensorView) -> Val | Number:
        number = self.rng.choice(_NUMBERS)
        if self.rng.random() < 0.5:
            return number
        return self.made_full(number, x)

    def made_full(self, number: Number, x: TensorView) -> Val:
        dtype = x.dtype if self.rng.random() < 0.7 else self.rng.choice(DTYPES)
        if dtype.category < DataType.Float.category and number != number:
            number = 1
        if dtype.category < DataType.Float.category and abs(number) == float("inf"):
            number = 0
        shape = self.rng.choice((list(x.sizes), [1] * x.rank, []))
        return self.b.full(shape, number, dtype)

    def neutral(self, x: TensorView) -> Val | None:
        ops = ["add", "sub", "mul", "truediv", "pow", "bitwise_and", "bitwise_or", "logical_or"]
        ops += ["bitwise_xor", "bitwise_left_shift", "logical_and", "div"]
        operands = [x, self.constant(x)]
        op = self.rng.choice(ops)
        if op not in ("pow", "bitwise_left_shift", "div") and self.rng.random() < 0.4:
            operands.reverse()
        if op in ("div", "bitwise_left_shift", "pow"):
            operands[1] = 1 if op != "bitwise_left_shift" else 0
        return self.pointwise(op, *operands)

    def pointwise(self, op: str, *operands: Val | Number) -> Val | None:
        try:
            return self.b.pointwise(op, *operands)
        except TypeError:
            return None

    def twice(self, x: TensorView) -> Val | None:
        op = self.rng.choice(("neg", "bitwise_not", "logical_not"))
        inner = self.pointwise(op, x)
        return None if inner is None else self.pointwise(op, inner)

    def choice(self, x: TensorView) -> Val | None:
        flag = self.rng.choice((True, False, self.b.full(x.sizes, True, DataType.Bool)))
        other = self.rng.choice([x, *(y for y in self.pool if y.sizes == x.sizes), 0.5])
        operands = [x, other]
        self.rng.shuffle(operands)
        return self.pointwise("where", flag, *operands)

    def cast(self, x: TensorView) -> Val:
        # Out of range, converting to an integer is not defined; complex to real warns.
        real = [d for d in DTYPES if d.category >= x.dtype.category]
        back = [d for d in DTYPES if d.is_floating or d.is_complex]
        return self.b.cast(x, self.rng.choice(real if x.dtype.category < 2 else back))

    def full(self, x: TensorView) -> Val | None:
        y = self.made_full(self.rng.choice(_NUMBERS), x)
        op = self.rng.choice(("neg", "exp", "sqrt", "logical_not", "round", "reciprocal", "abs"))
        return self.pointwise(op, y) if self.rng.random() < 0.7 else y

    def unary(self, x: TensorView) -> Val | None:
        return self.pointwise(self.rng.choice(("exp", "neg", "abs", "sigmoid")), x)

    def add(self, x: TensorView) -> Val | None:
        others = [y for y in self.pool if y.sizes == x.sizes]
        return self.pointwise(self.rng.choice(("add", "mul", "sub")), x, self.rng.choice(others))

    def repeat(self, x: TensorView) -> Val | None:
        """An expression that is there already."""
        others = [y for y in self.pool if y.sizes == x.sizes]
        y = self.rng.choice(others)
        one = self.pointwise("add", x, y)
        two = self.pointwise("add", *self.rng.sample([x, y], 2))
        if one is None or two is None:
            return None
        for value in (one, two):
            if isinstance(value, TensorView):
                self.pool.append(value)
        return self.pointwise("mul", one, two)

    # ---- views

    def slice(self, x: TensorView) -> Val:
        starts, ends, strides = [0] * x.rank, list(x.sizes), [1] * x.rank
        for k in range(x.rank):
            if self.rng.random() < 0.4:
                starts[k] = self.rng.randint(0, x.sizes[k])
                ends[k] = self.rng.randint(starts[k], x.sizes[k])
                strides[k] = self.rng.choice((1, 1, 2))
        return self.b.slice(x, starts, ends, strides)

    def pad(self, x: TensorView) -> Val:
        widths = [self.rng.choice((0, 0, 1, 2, -1)) for _ in range(2 * x.rank)]
        for k, size in enumerate(reversed(x.sizes)):
            if size + widths[2 * k] + widths[2 * k + 1] < 0 or -widths[2 * k] > size:
                widths[2 * k : 2 * k + 2] = [0, 0]
        number = self.rng.choice((0, 0, 1))
        return self.b.pad(x, widths, number)

    def permute(self, x: TensorView) -> Val:
        return self.b.permute(x, self.rng.sample(range(x.rank), x.rank))

    def reshape(self, x: TensorView) -> Val:
        left, sizes = x.numel, []
        if left == 0:
            return x
        for _ in range(self.rng.randint(0, 2)):
            factor = self.rng.choice([f for f in range(1, left + 1) if left % f == 0])
            sizes.append(factor)
            left //= factor
        sizes.append(left)
        self.rng.shuffle(sizes)
        return self.b.reshape(x, sizes)

    def broadcast(self, x: TensorView) -> Val:
        at = self.rng.randint(0, x.rank)
        return self.b.broadcast(x, [k == at for k in range(x.rank + 1)])

    def expand(self, x: TensorView) -> Val:
        y = self.b.broadcast(x, [True, *(False for _ in x.sizes)])
        return self.b.expand(y, [self.rng.choice((1, 2, 3)), *x.sizes])

    def fold(self, x: TensorView) -> Val | None:
        """A reduction, mostly of dimensions that hold one element."""
        rows = [row for row in TABLE.values() if x.dtype.category in row.accepts]
        ones = [k for k, d in enumerate(x.domain.logical) if d.is_broadcast]
        dims = self.rng.sample(ones, min(len(ones), 2))
        if not dims or self.rng.random() < 0.3:
            dims += [k for k in range(x.rank) if k not in dims][:1]
        if 0 in x.sizes:
            return None
        keepdim = self.rng.random() < 0.5
        return self.b.reduce(self.rng.choice(rows).name, x, dims or None, keepdim=keepdim)

    def squeeze(self, x: TensorView) -> Val:
        ones = [k for k, d in enumerate(x.domain.logical) if d.is_broadcast]
        return self.b.squeeze(x, self.rng.sample(ones, min(1, len(ones))), squeeze_expanded=True)

    def back(self, x: TensorView) -> Val:
        """A view and its inverse."""
        if self.rng.random() < 0.5 or not x.numel:
            order = self.rng.sample(range(x.rank), x.rank)
            y = self.b.permute(x, order)
            y = self.b.pointwise("neg", y) if x.dtype is DataType.Float else y
            assert isinstance(y, TensorView)
            return self.b.permute(y, [order.index(k) for k in range(x.rank)])
        y = self.reshape(x)
        assert isinstance(y, TensorView)
        return self.b.reshape(y, x.sizes)

    def set(self, x: TensorView) -> Val:
        return self.b.set(x)

    def segment_set(self, x: TensorView) -> Val:
        return self.b.segment_set(x)

    def stride_order(self, x: TensorView) -> Val:
        return self.b.stride_order(x, self.rng.sample(range(x.rank), x.rank))

    def halves(self, x: TensorView) -> Val | None:
        """Slices of one tensor, perhaps permuted, joined again."""
        if not x.rank:
            return None
        dim = self.rng.randrange(x.rank)
        cuts = sorted({0, x.sizes[dim], *(self.rng.randint(0, x.sizes[dim]) for _ in range(2))})
        order = self.rng.sample(range(x.rank), x.rank)
        pieces: list[TensorView] = []
        for begin, end in pairwise(cuts):
            starts, ends = [0] * x.rank, list(x.sizes)
            starts[dim], ends[dim] = begin, end
            pieces.append(self.b.permute(self.b.slice(x, starts, ends), order))
        if self.rng.random() < 0.2:
            self.rng.shuffle(pieces)
        return self.b.cat(pieces, order.index(dim)) if pieces else None

    def piece(self, x: TensorView) -> Val | None:
        """A slice of a cat that lies inside one piece, perhaps."""
        fits = [y for y in self.pool if (y.dtype, y.sizes) == (x.dtype, x.sizes)]
        if not x.rank:
            return None
        dim = self.rng.randrange(x.rank)
        pieces = [x, self.rng.choice(fits)]
        joined = self.b.cat(pieces, dim)
        starts, ends = [0] * x.rank, list(joined.sizes)
        size = x.sizes[dim]
        starts[dim] = self.rng.choice((0, size, self.rng.randint(0, 2 * size)))
        ends[dim] = self.rng.randint(starts[dim], 2 * size)
        return self.b.slice(joined, starts, ends)


# ---- what passes must keep


def check_on_random_fusions(apply: Callable[[Fusion], Fusion], count: int = 150) -> None:
    """The pass keeps results, gives well-formed fusions, and is done after finitely many turns."""
    fired = 0
    for fusion, inputs in random_fusions(count):
        after = verify(apply(fusion), "folded")
        check_same_results(fusion, after, inputs)
        fired += after is not fusion
        for _ in range(len(fusion.exprs)):
            before, after = after, apply(after)
            if after is before:
                break
        else:
            raise AssertionError("it finds something to do every time")
    assert fired > count // 20, f"it fired {fired} times only: the property shows little"


@functools.cache
def _table_fusions() -> tuple[tuple[Fusion, tuple[torch.Tensor | Number, ...]], ...]:
    cases = (random_case(seed, steps=10, max_numel=256) for seed in range(60))
    return tuple((case.fusion, case.inputs) for case in cases)


def random_fusions(count: int) -> Iterator[tuple[Fusion, Sequence[torch.Tensor | Number]]]:
    """Some over the whole op table, the others from this file."""
    yield from _table_fusions()
    for seed in range(count):
        yield pattern_case(seed)


def ops_of(fusion: Fusion) -> list[str]:
    return [expr.op for expr in fusion.exprs]


def check_same_results(
    before: Fusion, after: Fusion, inputs: Sequence[torch.Tensor | Number]
) -> None:
    """Bit for bit, in the same order in memory, and no less memory of their own. An update that is
    gone would have written what was there.
    """
    updated = {after.inputs.index(u.target) for u in after.updates}
    kept = tuple(u for u in before.updates if before.inputs.index(u.target) in updated)
    for update, value in zip(before.updates, evaluate(before, inputs).updates, strict=True):
        given = inputs[before.inputs.index(update.target)]
        assert update in kept or (isinstance(given, torch.Tensor) and same_bits(value, given))
    before = replace(before, updates=kept)
    old, new = evaluate(before, inputs), evaluate(after, inputs)
    for a, b in zip(old.outputs + old.updates, new.outputs + new.updates, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert same_bits(a, b)
    check_same_interface(before, after)
    check_memory(before, after)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal, with zeros of the same sign; one NaN is as good as another.

    But for complex zeros: the sign that torch gives them depends on where they lie in memory.
    """
    if a.is_complex():
        x, y = torch.view_as_real(a), torch.view_as_real(b)
        return bool(((x == y) | (x.isnan() & y.isnan())).all())
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    x, y = a.double(), b.double()
    equal = (x == y) & (x.signbit() == y.signbit())
    return bool((equal | (x.isnan() & y.isnan())).all())


def check_same_interface(before: Fusion, after: Fusion) -> None:
    """Inputs, outputs and updates are as many, in the same order, of the same form."""
    assert [_bound(v) for v in before.inputs] == [_bound(v) for v in after.inputs]
    assert [_form(v) for v in before.outputs] == [_form(v) for v in after.outputs]
    for old, new in zip(before.updates, after.updates, strict=True):
        assert before.inputs.index(old.target) == after.inputs.index(new.target)
        assert _form(old.value) == _form(new.value)


def _bound(value: Val) -> object:
    """What a call's tensor must be; see fold_broadcasts for what may be made of it."""
    if not isinstance(value, TensorView):
        return value.dtype
    return value.dtype, value.domain.root, value.is_cpu


def _form(value: Val) -> object:
    if not isinstance(value, TensorView):
        return value.dtype
    return value.dtype, value.domain.logical, value.domain.allocation, value.is_cpu


def check_memory(before: Fusion, after: Fusion) -> None:
    """A result that was a tensor of its own still is, and results that were two still are two."""
    for old, new in zip(_memory(before), _memory(after), strict=True):
        assert new is None or new == old, "a result became a view of an input"
    old_results = [*before.outputs, *(u.value for u in before.updates)]
    new_results = [*after.outputs, *(u.value for u in after.updates)]
    owns = [m is None for m in _memory(before)]
    for j in range(len(old_results)):
        for k in range(j):
            if owns[j] and owns[k] and old_results[j] != old_results[k]:
                assert new_results[j] != new_results[k], "two results became one"


def _memory(fusion: Fusion) -> list[int | None]:
    """Per result, the position of the input that it is or is a view of."""
    layouts = {t: declared_layout(t) for t in fusion.tensor_inputs}
    found: list[int | None] = []
    for result in [*fusion.outputs, *(u.value for u in fusion.updates)]:
        view = view_of(result, fusion, layouts.keys(), layouts)
        found.append(None if view is None else fusion.inputs.index(view.base))
    return found
