from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate

import pytest
import torch

from tests.passes.patterns import ops_of
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import CatOp, Fusion, TensorView, Val
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.passes.dead_code import dead_code
from thunder_fuser.passes.sums_of_pads import sums_of_pads

F32, BF16, I32 = DataType.Float, DataType.BFloat16, DataType.Int32
Define = Callable[[FusionBuilder, TensorView, TensorView], Val]


def add(b: FusionBuilder, x: Val, y: Val) -> TensorView:
    """In fp32, and rounded: as Thunder has it."""
    assert isinstance(x, TensorView)
    if x.dtype is not BF16:
        made = b.pointwise("add", x, y)
    else:
        made = b.cast(b.pointwise("add", b.cast(x, F32), b.cast(y, F32)), BF16)
    assert isinstance(made, TensorView)
    return made


def random_sum(seed: int, dtype: DataType) -> tuple[Fusion, list[torch.Tensor]]:
    """Pieces of one dimension, padded and added in any order."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    sizes = [choose.randint(1, 4) for _ in range(choose.randint(1, 3))]
    dim = choose.randrange(len(sizes))
    ends = list(accumulate(choose.randint(1, 4) for _ in range(choose.randint(2, 4))))
    special = torch.tensor([0.0, -0.0, 1.0, -1e-42, torch.inf, torch.nan, -3.0, 255.0])
    if dtype is I32:
        special = special[[0, 2, 6, 7]]
    b, inputs, padded = FusionBuilder(), [], []
    for begin, end in zip([0, *ends], ends, strict=False):
        sizes[dim] = end - begin
        pick = torch.randint(0, len(special), sizes, generator=generator)
        inputs.append(special[pick].to(dtype.torch))
        widths = [0, 0] * (len(sizes) - 1 - dim) + [begin, ends[-1] - end]
        padded.append(b.pad(b.tensor(sizes, dtype), widths))
    while len(padded) > 1:
        choose.shuffle(padded)
        padded.append(add(b, padded.pop(), padded.pop()))
    b.output(padded[0])
    return b.build(), inputs


@pytest.mark.parametrize("dtype", [F32, BF16, I32], ids=str)
def test_pads_that_cover_are_a_cat_of_the_same_bits(dtype: DataType) -> None:
    """To the sign of zeros: what was added to 0.0 is never -0.0."""
    for seed in range(60):
        before, inputs = random_sum(seed, dtype)
        found = dead_code(sums_of_pads(before))
        assert sum(isinstance(e, CatOp) for e in found.exprs) == 1
        assert "pad" not in ops_of(found)
        (old,), (new,) = (evaluate(f, inputs).outputs for f in (before, found))
        torch.testing.assert_close(new, old, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(new.double().signbit() & (new == 0), old.double().signbit() & (old == 0))


@pytest.mark.parametrize(
    "define",
    [
        # Pads that meet, leave something out, are along two dimensions, or multiplied.
        lambda b, x, y: add(b, b.pad(x, [4, 1]), b.pad(y, [0, 3])),
        lambda b, x, y: add(b, b.pad(x, [6, 0]), b.pad(y, [0, 4])),
        lambda b, x, y: add(b, b.pad(x, [5, 0, 0, 1]), b.pad(y, [0, 3, 0, 1])),
        lambda b, x, y: b.pointwise("mul", b.pad(x, [5, 0]), b.pad(y, [0, 3])),
        # What is added to a piece is no zero, or leaves its sign.
        lambda b, x, y: add(b, b.pad(x, [5, 0], 1.0), b.pad(y, [0, 3])),
        lambda b, x, y: add(b, b.pad(x, [5, 0]), b.pad(y, [0, 3], -0.0)),
        # Something stands between them.
        lambda b, x, y: add(b, b.pointwise("neg", b.pad(x, [5, 0])), b.pad(y, [0, 3])),
        lambda b, x, y: add(b, b.segment_set(b.pad(x, [5, 0])), b.pad(y, [0, 3])),
    ],
)
def test_others_stay(define: Define) -> None:
    b = FusionBuilder()
    made = define(b, b.tensor([4, 3], F32), b.tensor([4, 5], F32))
    assert isinstance(made, TensorView)
    b.output(made)
    fusion = b.build()
    assert sums_of_pads(fusion) is fusion
