"""Sums over a few elements as additions at a point."""

from __future__ import annotations

import math
import random
import sys

import pytest
import torch

from tests.passes.patterns import check_same_results, ops_of
from tests.support.building import op
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.verify import verify
from thunder_fuser.passes.short_sums import short_sums

F32, BF16, INT = DataType.Float, DataType.BFloat16, DataType.Int


def grouped(sizes: list[int], dims: list[int], dtype: DataType = F32) -> Fusion:
    b = FusionBuilder()
    b.output(b.reduce("sum", op(b, "neg", b.tensor(sizes, dtype)), dims))
    return b.build()


@pytest.mark.parametrize("dtype", [F32, BF16, INT], ids=str)
@pytest.mark.parametrize("dims", [[1], [0, 2], [0]], ids=str)
def test_they_are_the_sums(dims: list[int], dtype: DataType) -> None:
    before = grouped([2, 4, 3, 1 << 14], dims, dtype)
    after = verify(short_sums(before), "folded")
    assert not {"sum"} & {*ops_of(after)}
    numbers = torch.tensor([-0.0, 0.0, 1.5, -7.0, 300.0, 2.5])
    x = numbers[torch.arange(2 * 4 * 3 * (1 << 14)) * 7 // 5 % 6]
    x = x.reshape(2, 4, 3, -1).to(dtype.torch)
    (old,), (new,) = (evaluate(fusion, [x]).outputs for fusion in (before, after))
    # Exact in any order, but for what of them is rounded to the results' dtype.
    torch.testing.assert_close(new, old, rtol=0, atol=0)
    assert torch.equal(torch.signbit(new), torch.signbit(old))


def small() -> Fusion:
    return grouped([4, 1 << 12], [0])


def many() -> Fusion:
    return grouped([9, 1 << 16], [0])


def innermost() -> Fusion:
    return grouped([1 << 16, 4], [1])


def innermost_in_memory() -> Fusion:
    b = FusionBuilder()
    x = b.permute(b.tensor([1 << 16, 4], F32), [1, 0])
    b.output(b.reduce("sum", op(b, "neg", x), [0]))
    return b.build()


def behind_a_fold() -> Fusion:
    b = FusionBuilder()
    x = b.tensor([4, 512, 512, 8], F32)
    b.output(b.reduce("sum", b.reduce("max", x, [3]), [0]))
    return b.build()


def largest() -> Fusion:
    b = FusionBuilder()
    b.output(b.reduce("max", b.tensor([4, 1 << 16], F32), [0]))
    return b.build()


@pytest.mark.parametrize(
    "made", [small, many, innermost, innermost_in_memory, behind_a_fold, largest]
)
def test_what_stays_a_fold(made: object) -> None:
    fusion = made()  # type: ignore[operator]
    assert short_sums(fusion) is fusion


def test_the_gradient_of_shared_heads_and_what_reads_it_are_one_kernel() -> None:
    """Queries beside keys that a group of 4 shares, joined as the projection has them."""
    b = FusionBuilder()
    batch, heads, group, time, size = 2, 4, 4, 512, 64
    dq = b.tensor([batch, heads * group, time, size], BF16)
    dk = b.tensor([batch, heads * group, time, size], BF16)
    factor = b.tensor([time, size], BF16)
    shared = b.reduce("sum", b.reshape(dk, [batch, heads, group, time, size]), [2])

    def turned(x: TensorView) -> TensorView:
        rows = b.expand(b.broadcast(factor, [True, True, False, False]), x.sizes)
        y = b.cast_tensor(op(b, "mul", x, rows), BF16)
        return b.reshape(b.permute(y, [0, 2, 1, 3]), [batch, time, x.sizes[1] * size])

    b.output(b.cat([turned(dq), turned(shared)], 2))
    plan = CompiledFusion(b.build()).plan()
    moved = 2 * dq.bytes + factor.bytes + dq.bytes * (1 + group) // group
    assert (plan.kernels, plan.bytes, plan.bytes_ideal) == (1, moved, moved)
    assert plan.segments[0].kind == "pointwise"


def test_no_result_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers whose sums are exact, or no numbers, in any order of dimensions and dtype."""
    monkeypatch.setattr(sys.modules[short_sums.__module__], "_LEAST", 1)
    numbers = torch.tensor([0.0, -0.0, 1.0, -1.5, 2.0, torch.inf, torch.nan])
    for seed in range(80):
        choose = random.Random(seed)
        dtype = choose.choice((F32, BF16, DataType.Half, DataType.Double, INT, DataType.Bool))
        sizes = [choose.randint(2, 4) for _ in range(choose.randint(1, 3))]
        dims = choose.sample(range(len(sizes)), choose.randint(1, min(2, len(sizes))))
        b = FusionBuilder()
        x = b.tensor([*sizes, 17], dtype)
        order = choose.sample(range(len(sizes)), len(sizes))
        moved = b.permute(x, [*order, len(sizes)]) if choose.random() < 0.5 else x
        total = b.reduce("sum", moved, dims)
        b.output(total if choose.random() < 0.5 else op(b, "add", total, total))
        before = b.build()
        after = verify(short_sums(before), "folded")
        count = math.prod(moved.sizes[k] for k in dims)
        assert ("sum" in ops_of(after)) == (count > 8), seed
        wide = numbers if dtype.is_floating else numbers[:5]
        chosen = [choose.randrange(len(wide)) for _ in range(x.numel)]
        inputs = [wide[chosen].reshape(x.sizes).to(dtype.torch)]
        check_same_results(before, after, inputs)
