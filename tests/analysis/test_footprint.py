"""Footprints against enumeration: every element carries its number through the same views."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from tests.support.seeds import blocks
from tests.zoo.rope import define_split, define_turned
from thunder_fuser.analysis import footprint as footprint_module
from thunder_fuser.analysis import region
from thunder_fuser.analysis.footprint import Footprint, footprint
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import (
    CatOp,
    CopyOp,
    CutOp,
    Fusion,
    PadOp,
    PointwiseOp,
    TensorView,
    Val,
    ViewOp,
)
from thunder_fuser.ir.reference_moves import moved

NOTHING = -1


def enumerated(
    fusion: Fusion, outputs: Sequence[TensorView], sources: set[TensorView]
) -> dict[TensorView, int]:
    """Distinct elements read, found by computing with element numbers instead of values.

    A tensor is a list of equally large arrays: one for each way in which elements reach it.
    """
    numbers: dict[TensorView, range] = {}
    total = 0
    carried: dict[Val, list[torch.Tensor]] = {}

    def numbered(tensor: TensorView, like: Sequence[int]) -> torch.Tensor:
        nonlocal total
        held = [
            1 if d.is_broadcast else size for size, d in zip(like, _memory(tensor), strict=True)
        ]
        count = int(torch.tensor(held).prod())
        numbers[tensor] = range(total, total + count)
        total += count
        return torch.arange(total - count, total).reshape(held).expand(list(like))

    def _memory(tensor: TensorView):
        return tensor.domain.root if tensor in fusion.inputs else tensor.domain.logical

    for tensor in fusion.tensor_inputs:
        shown = numbered(tensor, [d.size for d in tensor.domain.root])
        carried[tensor] = [moved(shown, tensor, None)]
    computed: dict[Val, list[torch.Tensor]] = {}
    for expr in fusion.exprs:
        out = expr.output
        match expr:
            case PointwiseOp():
                shape = torch.Size(out.sizes)
                found = [x.expand(shape) for v in expr.inputs for x in carried.get(v, [])]
            case ViewOp() | CopyOp() | CutOp() | PadOp():
                fill = torch.tensor(NOTHING)
                found = [moved(x, out, fill) for x in carried[expr.input]]
                for x in carried.get(expr.fill, []) if isinstance(expr, PadOp) else []:
                    inside = moved(torch.ones(expr.input.sizes, dtype=torch.int64), out, fill)
                    found.append(torch.where(inside == 1, NOTHING, x))
            case CatOp():
                depth = max(len(carried[t]) for t in expr.inputs)
                none = {t: torch.full(t.sizes, NOTHING) for t in expr.inputs}
                layers = [
                    [carried[t][k] if k < len(carried[t]) else none[t] for t in expr.inputs]
                    for k in range(depth)
                ]
                found = [torch.cat(layer, expr.dim) for layer in layers]
            case _:
                found = [x.expand(out.sizes) for v in expr.inputs for x in carried.get(v, [])]
        computed[out] = found
        carried[out] = [numbered(out, out.sizes)] if out in sources else found
    read: set[int] = set()
    for tensor in outputs:
        for x in computed.get(tensor, carried[tensor]):
            read.update(x.flatten().tolist())
    return {
        tensor: count for tensor, own in numbers.items() if (count := len(read.intersection(own)))
    }


# ---- random programs


class Programs:
    """Random fusions of views, cats, pads and sums over small tensors."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.builder = FusionBuilder()
        self.pool = [self._input() for _ in range(self.random.randint(1, 3))]

    def _input(self) -> TensorView:
        sizes = [
            self.random.choice((1, 2, 3, 4, 6, 8, 12)) for _ in range(self.random.randint(1, 3))
        ]
        expanded = [self.random.random() < 0.1 for _ in sizes]
        return self.builder.tensor(sizes, DataType.Float, expanded=expanded)

    def build(self, steps: int) -> tuple[Fusion, list[TensorView], set[TensorView]]:
        for _ in range(steps):
            x = self.random.choice(self.pool[-3:])
            made = getattr(self, self.random.choice(self.OPS))(x)
            if 1 < made.numel <= 600:
                self.pool.append(made)
        outputs = self.random.sample(self.pool[-4:], min(len(self.pool), self.random.randint(1, 2)))
        sources = {t for t in self.pool if self.random.random() < 0.1}
        for tensor in outputs:
            self.builder.output(tensor)
        return self.builder.build(), outputs, sources

    OPS = (
        *("permute", "slice", "slice", "slice", "pad", "pad", "reshape", "reshape"),
        *("reshape", "expand", "cat", "cat", "add"),
    )

    def permute(self, x: TensorView) -> TensorView:
        return self.builder.permute(x, self.random.sample(range(x.rank), x.rank))

    def slice(self, x: TensorView) -> TensorView:
        axis = self.random.randrange(x.rank) if x.rank else 0
        starts, ends, strides = [0] * x.rank, list(x.sizes), [1] * x.rank
        for k in range(x.rank):
            if k == axis or self.random.random() < 0.2:
                starts[k] = self.random.randint(0, x.sizes[k] // 2)
                ends[k] = self.random.randint((starts[k] + x.sizes[k]) // 2, x.sizes[k])
                strides[k] = self.random.choice((1, 1, 1, 2, 3))
        return self.builder.slice(x, starts, ends, strides)

    def pad(self, x: TensorView) -> TensorView:
        widths = []
        for size in reversed(x.sizes):
            cut = -self.random.randint(0, size // 2)
            widths += [self.random.choice((0, 0, 1, 2, cut)), self.random.choice((0, 0, 1, 3, cut))]
        zero_dim = [t for t in self.pool if t.rank == 0]
        return self.builder.pad(x, widths, self.random.choice(zero_dim) if zero_dim else 0.0)

    def reshape(self, x: TensorView) -> TensorView:
        left, sizes = x.numel, []
        if left == 0:
            return x
        for _ in range(self.random.randint(0, 3)):
            factor = self.random.choice([f for f in range(1, left + 1) if left % f == 0])
            sizes.append(factor)
            left //= factor
        if left > 1 or self.random.random() < 0.5:
            sizes.append(left)
        self.random.shuffle(sizes)
        return self.builder.reshape(x, sizes)

    def expand(self, x: TensorView) -> TensorView:
        at = self.random.randint(0, x.rank)
        flags = [k == at for k in range(x.rank + 1)]
        shape = [self.random.choice((-1, 2, 3)) if flag else -1 for flag in flags]
        return self.builder.expand(self.builder.broadcast(x, flags), shape)

    def cat(self, x: TensorView) -> TensorView:
        if x.rank == 0:
            return x
        dim = self.random.randrange(x.rank)
        fits = [
            t
            for t in self.pool
            if t.rank == x.rank and all(k == dim or t.sizes[k] == x.sizes[k] for k in range(x.rank))
        ]
        return self.builder.cat([x, *self.random.choices(fits, k=self.random.randint(1, 2))], dim)

    def add(self, x: TensorView) -> TensorView:
        fits = [
            t
            for t in self.pool
            if all(
                a == b or 1 in (a, b) for a, b in zip(t.sizes[::-1], x.sizes[::-1], strict=False)
            )
        ]
        made = self.builder.pointwise("add", x, self.random.choice(fits))
        assert isinstance(made, TensorView)
        return made


@blocks(4000, 1000, always=1000)
def test_equals_enumeration_on_random_programs(first: int) -> None:
    inexact = checked = 0
    for seed in range(first, first + 1000):
        fusion, outputs, sources = Programs(seed).build(steps=14)
        want = enumerated(fusion, outputs, sources)
        got = footprint(fusion, outputs, sources)
        assert list(got) == sorted(got, key=lambda t: t.id)
        for tensor in {*want, *got}:
            found = got.get(tensor, Footprint(0, True))
            if found.exact:
                assert found.elements == want.get(tensor, 0), (seed, tensor, str(fusion.exprs))
            else:
                assert want.get(tensor, 0) <= found.elements <= tensor.numel, (seed, tensor)
                inexact += 1
            checked += 1
    assert inexact <= checked // 100, f"{inexact} of {checked} are bounds only"


def test_bounds_are_sound_where_boxes_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region, "BOX_LIMIT", 2)
    inexact = 0
    for seed in range(600):
        fusion, outputs, sources = Programs(seed).build(steps=14)
        want = enumerated(fusion, outputs, sources)
        for tensor, found in footprint(fusion, outputs, sources).items():
            inexact += not found.exact
            assert found.elements <= tensor.numel
            if found.exact:
                assert found.elements == want.get(tensor, 0), seed
            else:
                assert found.elements >= want.get(tensor, 0), seed
    assert inexact > 20, "the limit was never reached: the test shows nothing"


# ---- programs with known answers


def elements(b: FusionBuilder, *outputs: TensorView) -> dict[str, int]:
    found = footprint(b.build(), outputs, set())
    assert all(f.exact for f in found.values())
    return {tensor.name: f.elements for tensor, f in found.items()}


def test_rope_of_issue_2577_moves_ideal_bytes() -> None:
    b = FusionBuilder()
    x = b.tensor([2, 1024, 768], DataType.BFloat16)
    cos, sin = (b.tensor([1024, 8], DataType.BFloat16) for _ in range(2))
    q, k, v = define_split(b, x, groups=4)
    outputs = [define_turned(b, q, cos, sin), define_turned(b, k, cos, sin), v]
    read = elements(b, *outputs)
    assert read == {x.name: x.numel, cos.name: 8192, sin.name: 8192}
    assert sum(read.values()) * 2 + sum(t.bytes for t in outputs) == 9_469_952


def test_rope_of_llama_3_skips_the_values() -> None:
    b = FusionBuilder()
    qkv = b.tensor([1, 8192, 6144], DataType.BFloat16)
    cos, sin = (b.tensor([8192, 128], DataType.BFloat16) for _ in range(2))
    q, k, _ = define_split(b, qkv, groups=8)
    outputs = [define_turned(b, q, cos, sin), define_turned(b, k, cos, sin)]
    assert [t.sizes for t in outputs] == [(1, 32, 8192, 128)] * 2
    read = elements(b, *outputs)
    assert read == {qkv.name: 8192 * 5120, cos.name: 8192 * 128, sin.name: 8192 * 128}
    assert sum(read.values()) * 2 + sum(t.bytes for t in outputs) == 222_298_112
    assert elements(b, outputs[1]) == {
        qkv.name: 8192 * 1024,
        cos.name: 8192 * 128,
        sin.name: 8192 * 128,
    }


def test_overlapping_slices_count_once() -> None:
    b = FusionBuilder()
    x = b.tensor([100, 50], DataType.Float)
    y = b.pointwise("add", b.slice(x, [0, 10], [60, 50]), b.slice(x, [30, 0], [90, 40]))
    assert isinstance(y, TensorView)
    # Two rectangles of 60 x 40 that share 30 x 30.
    assert elements(b, y) == {x.name: 2 * 60 * 40 - 30 * 30}


def test_a_pad_reads_the_inside_only() -> None:
    b = FusionBuilder()
    x, fill = b.tensor([8, 10], DataType.Float), b.tensor([], DataType.Float)
    padded = b.pad(x, [3, 5, -2, 1], fill)
    assert elements(b, padded) == {x.name: 6 * 10, fill.name: 1}
    inside = b.slice(padded, [0, 3], [6, 13])
    assert elements(b, inside) == {x.name: 6 * 10}
    outside = b.slice(padded, [0, 13], [6, 18])
    assert elements(b, outside) == {fill.name: 1}


def test_expanded_inputs_count_their_memory() -> None:
    b = FusionBuilder()
    bias = b.tensor([64, 32], DataType.Float, expanded=[True, False])
    x = b.tensor([64, 32], DataType.Float)
    y = b.pointwise("add", b.reshape(bias, [2048]), b.reshape(x, [2048]))
    assert isinstance(y, TensorView)
    assert elements(b, y) == {bias.name: 32, x.name: 2048}


def test_it_stops_at_sources_but_computes_outputs() -> None:
    b = FusionBuilder()
    x, y = b.tensor([6, 4], DataType.Float), b.tensor([6, 4], DataType.Float)
    mid = b.pointwise("add", x, y)
    assert isinstance(mid, TensorView)
    end = b.pointwise("neg", b.slice(mid, [0, 0], [3, 4]))
    assert isinstance(end, TensorView)
    fusion = b.build()
    assert footprint(fusion, [end], {mid}) == {mid: Footprint(12, True)}
    assert footprint(fusion, [mid, end], {mid}) == {
        x: Footprint(24, True),
        y: Footprint(24, True),
        mid: Footprint(12, True),
    }
    assert footprint(fusion, [end], set()) == {x: Footprint(12, True), y: Footprint(12, True)}
    assert footprint(fusion, [x], set()) == {x: Footprint(24, True)}


def test_cost_does_not_follow_size_or_depth() -> None:
    """A thousand views and sums of a large tensor: every expression is looked at once."""
    b = FusionBuilder()
    x = b.tensor([218, 1000, 1000], DataType.Float)
    y = x
    for k in range(250):
        y = b.reshape(b.permute(y, [1, 2, 0]), [1000, 1000, 218])
        y = b.reshape(b.permute(y, [2, 0, 1]), [218, 1000, 1000])
        cut = b.slice(y, [0, 0, k], [218, 1000, 1000 - k % 7])
        y = b.pad(cut, [k, k % 7])
    looked_at = 0

    def counting(*args: object) -> object:
        nonlocal looked_at
        looked_at += 1
        return real(*args)

    real = footprint_module._operands
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(footprint_module, "_operands", counting)
        found = footprint(b.build(), [y], set())
    assert found == {x: Footprint(218 * 1000 * (1000 - 249 - 6), True)}
    assert looked_at == len(b.build().exprs)
