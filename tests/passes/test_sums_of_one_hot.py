from __future__ import annotations

import random

import pytest
import torch

from tests.passes.patterns import ops_of
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, ReductionOp, TensorView, Val
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.passes import run

F32, BF16, INT, I32 = DataType.Float, DataType.BFloat16, DataType.Int, DataType.Int32
SPECIAL = torch.tensor([0.0, -0.0, 1.0, torch.inf, torch.nan, -3.0, 255.0])


def tensor(value: Val) -> TensorView:
    assert isinstance(value, TensorView)
    return value


def random_choice(seed: int) -> tuple[Fusion, list[torch.Tensor]]:
    """The gradient of a choice among classes, added up over dimensions with theirs among them."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rank = choose.randint(1, 3)
    sizes = [choose.randint(2, 5) for _ in range(rank)]
    axis = choose.randrange(rank)
    others = [k for k in range(rank) if k != axis]
    rows = [sizes[k] for k in others]
    index = choose.choice([INT, I32])
    start = choose.choice([0, 3])
    targets = torch.randint(-2, sizes[axis] + start + 2, rows, generator=generator)
    b = FusionBuilder()
    inputs = [targets.to(index.torch)]
    chosen = b.broadcast_in_dim(b.tensor(rows, index), sizes, others)
    counts = b.broadcast_in_dim(b.iota(sizes[axis], start, 1, index), sizes, [axis])
    pair = [counts, chosen]
    choose.shuffle(pair)
    hit = b.pointwise("eq", *pair)
    if choose.random() < 0.5:
        hit = b.pointwise("bitwise_and", hit, b.pointwise("ne", chosen, 1))
    shape = choose.choice([[], rows])
    inputs.append(SPECIAL[torch.randint(0, len(SPECIAL), shape, generator=generator)])
    scale: Val = b.tensor(shape, F32)
    if shape:
        scale = b.broadcast_in_dim(tensor(scale), sizes, others)
    spread: Val = b.pointwise("where", hit, scale, 0.0)
    if choose.random() < 0.5:
        spread = b.cast(b.cast(spread, BF16), F32)
    dims = sorted({axis, *choose.sample(others, choose.randint(0, len(others)))})
    b.output(b.fold("sum", tensor(spread), dims, F32, F32))
    return b.build(), inputs


def test_what_is_chosen_once_is_added_up_without_a_fold() -> None:
    """To the sign of zeros, with targets out of range, wherever the classes are."""
    for seed in range(150):
        before, inputs = random_choice(seed)
        after = run(before, verify=True)
        (old,), (new,) = (evaluate(f, inputs).outputs for f in (before, after))
        torch.testing.assert_close(new, old, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(new.signbit() & (new == 0), old.signbit() & (old == 0)), seed
        (fold,) = (e for e in before.exprs if isinstance(e, ReductionOp))
        left = [e.dims for e in after.exprs if isinstance(e, ReductionOp)]
        assert sum(map(len, left)) < len(fold.dims), seed


@pytest.mark.parametrize(
    "spoil", ["index differs along the classes", "value does", "other number", "step", "wraps"]
)
def test_what_is_no_choice_stays_a_sum(spoil: str) -> None:
    b = FusionBuilder()
    classes = 300 if spoil == "wraps" else 6
    shape, counted = [4, classes], DataType.Int8 if spoil == "wraps" else INT
    whole, row = b.tensor(shape, INT), b.broadcast_in_dim(b.tensor([4], INT), shape, [0])
    index = whole if spoil.startswith("index") else row
    step = 2 if spoil == "step" else 1
    counts = b.broadcast_in_dim(b.iota(classes, 0, step, counted), shape, [1])
    hit = b.pointwise("eq", counts, index)
    value = b.tensor(shape, F32) if spoil == "value does" else b.tensor([], F32)
    other = 1.0 if spoil == "other number" else 0.0
    b.output(b.reduce("sum", tensor(b.pointwise("where", hit, value, other)), [1]))
    assert "sum" in ops_of(run(b.build(), verify=True))
