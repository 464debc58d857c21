from __future__ import annotations

import random

import pytest
import torch

from tests.passes.patterns import check_same_results, ops_of
from tests.support.building import op
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.tables.reductions import TABLE
from thunder_fuser.ir.verify import verify
from thunder_fuser.passes.broadcast_reductions import broadcast_reductions
from thunder_fuser.passes.dead_code import dead_code

F32, BF16, Int, Bool = DataType.Float, DataType.BFloat16, DataType.Int, DataType.Bool


def expanded(name: str, dtype: DataType, dims: list[int] | None) -> Fusion:
    """[3, 4 (expanded), 2] folded over some dimensions."""
    b = FusionBuilder()
    x = b.expand(b.broadcast(b.tensor([3, 2], dtype), [False, True, False]), [3, 4, 2])
    b.output(op(b, "exp" if dtype.is_floating else "abs", b.reduce(name, x, dims)))
    return dead_code(broadcast_reductions(b.build()))


# ---- where it fires


@pytest.mark.parametrize(
    ("name", "dtype", "operations"),
    [
        ("sum", F32, ["squeeze", "mul", "add"]),
        ("sum", BF16, ["squeeze", "cast", "mul", "add", "cast"]),
        ("sum", Int, ["squeeze", "mul", "add"]),
        ("prod", F32, ["squeeze", "pow"]),
        ("max", F32, ["squeeze"]),
        ("min", BF16, ["squeeze"]),
        ("max", Int, ["squeeze"]),
        ("xor_sum", Int, ["squeeze", "bitwise_xor"]),
    ],
)
def test_copies_alone_are_arithmetic(name: str, dtype: DataType, operations: list[str]) -> None:
    fusion = expanded(name, dtype, [1])
    assert ops_of(fusion)[2:-1] == operations
    counts = [v.value for e in fusion.exprs if e.op in ("mul", "pow") for v in e.inputs[1:]]  # type: ignore[union-attr]
    assert counts == ([4] if name in ("sum", "prod") else [])


@pytest.mark.parametrize("name", ["prod", "sum"])
def test_copies_of_bools_that_stay_bools(name: str) -> None:
    """A power does not take them, and is one of them."""
    b = FusionBuilder()
    x = b.tensor([3], Bool)
    b.output(b.reduce(name, b.expand(b.broadcast(x, [True, False]), [4, 3]), [0], dtype=Bool))
    fusion = dead_code(broadcast_reductions(b.build()))
    verify(fusion)
    given = torch.tensor([True, False, True])
    assert evaluate(fusion, [given]).outputs[0].tolist() == given.tolist()
    assert len(CompiledFusion(b.build()).plan([given]).segments) == 1


@pytest.mark.parametrize("name", ["any", "all"])
def test_any_and_all_of_copies_are_a_cast(name: str) -> None:
    b = FusionBuilder()
    x = b.tensor([3], F32)
    found = b.reduce(name, b.expand(b.broadcast(x, [True, False]), [4, 3]), [0])
    b.output(op(b, "logical_not", found))
    assert ops_of(dead_code(broadcast_reductions(b.build()))) == [
        "broadcast", "expand", "squeeze", "cast", "logical_not",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "operations"),
    [("sum", ["squeeze", "sum", "mul"]), ("prod", ["squeeze", "prod", "pow"])]
    + [(name, ["squeeze", name]) for name in ("max", "min")],
)
def test_other_dimensions_are_folded_as_before(name: str, operations: list[str]) -> None:
    assert ops_of(expanded(name, F32, [0, 1]))[2:-1] == operations
    assert ops_of(expanded(name, F32, None))[2:-1] == operations


def test_the_plan_has_no_reduction_left() -> None:
    """The gradient of a bias that was expanded, where the gradient is one, too."""
    b = FusionBuilder()
    dy = b.expand(b.broadcast(b.tensor([1024], F32), [True, False]), [4096, 1024])
    b.output(b.reduce("sum", dy, [0]))
    plan = CompiledFusion(b.build()).plan()
    assert [s.kind for s in plan.segments] == ["pointwise"]
    assert (plan.kernels, plan.bytes) == (1, 2 * 1024 * 4)


def test_rows_of_one_element_are_not_folded() -> None:
    """A sum over a batch of one goes along with sums that have other rows, and with zeros."""
    b = FusionBuilder()
    x, y = b.tensor([1, 64, 4, 256], F32), b.tensor([1, 64, 4, 256], F32)
    both = b.pointwise("mul", x, y)
    b.output(b.reduce("sum", op(b, "exp", both), [0]))
    b.output(b.reduce("sum", both, [0, 2]))
    b.output(b.full([64, 256], 0, F32))
    plan = CompiledFusion(b.build()).plan()
    assert [s.kind for s in plan.segments] == ["reduction"]
    assert plan.bytes == plan.bytes_ideal


# ---- where it must not


def test_what_stays_a_reduction() -> None:
    b = FusionBuilder()
    x, z = b.tensor([3, 4], F32), b.tensor([3], DataType.ComplexFloat)
    copies = b.expand(b.broadcast(z, [True, False]), [4, 3])
    nothing = b.expand(b.broadcast(b.tensor([3], F32), [True, False]), [0, 3])
    b.output(b.reduce("sum", x, [1]))
    b.output(b.reduce("sum", copies, [0]))
    b.output(b.reduce("sum", nothing, [0]))
    # The deviation of one element is 0, and not the element.
    one = b.tensor([3, 1], F32)
    b.output(b.fold("squared_deviations", one, [1], F32, F32))
    b.output(b.fold("sum_exp", one, [1], F32, F32))
    fusion = b.build()
    assert broadcast_reductions(fusion) is fusion


def test_a_result_does_not_become_a_view_of_an_input() -> None:
    b = FusionBuilder()
    x = b.tensor([3, 1], F32)
    b.output(b.reduce("max", x, [1]))
    before = b.build()
    after = broadcast_reductions(before)
    data = [torch.tensor([[1.0], [torch.nan], [-0.0]])]
    check_same_results(before, after, data)
    (found,) = CompiledFusion(before)(data)
    assert found.data_ptr() != data[0].data_ptr()


# ---- results


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dtype", [F32, BF16, DataType.Int32, Bool], ids=str)
def test_copies_have_torchs_results(device: torch.device, name: str, dtype: DataType) -> None:
    """Powers of two, zeros of both signs, infinities and NaN: products and sums are exact."""
    if dtype.category not in TABLE[name].accepts:
        return
    special = torch.tensor([0.0, -0.0, 1.0, -2.0, 0.5, torch.inf, -torch.inf, torch.nan])
    x = (special if dtype.is_floating else torch.arange(-4, 4)).to(dtype.torch)
    b = FusionBuilder()
    wide = b.expand(b.broadcast(b.tensor([8], dtype), [False, True]), [8, 3])
    b.output(b.reduce(name, wide, [1]))
    before = b.build()
    (exact,) = evaluate(before, [x]).outputs
    (ours,) = evaluate(verify(broadcast_reductions(before), "folded"), [x]).outputs
    (found,) = CompiledFusion(before)([x.to(device)])
    for value in (ours, found.cpu()):
        assert torch.equal(value.isnan(), exact.isnan())
        assert torch.equal(value.nan_to_num(7), exact.nan_to_num(7))
        if dtype.is_floating and name == "sum":
            assert torch.equal(value.signbit() & (value == 0), exact.signbit() & (exact == 0))


def random_copies(seed: int) -> tuple[Fusion, list[torch.Tensor]]:
    """Reductions of tensors whose dimensions are partly copies, of small integers."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    b, inputs = FusionBuilder(), []
    for _ in range(rng.randint(1, 3)):
        dtype = rng.choice((F32, F32, BF16, Int))
        sizes = [rng.choice((1, 2, 3)) for _ in range(rng.randint(0, 2))]
        inputs.append(torch.randint(-2, 3, sizes, generator=generator).to(dtype.torch))
        x = b.tensor(sizes, dtype)
        for _ in range(rng.randint(0, 2)):
            at = rng.randint(0, x.rank)
            x = b.broadcast(x, [k == at for k in range(x.rank + 1)])
            if rng.random() < 0.7:
                x = b.expand(
                    x, [rng.choice((1, 2, 3)) if k == at else n for k, n in enumerate(x.sizes)]
                )
        x = op(b, "neg", x) if rng.random() < 0.5 else x
        for _ in range(rng.randint(1, 2)):
            if x.rank:
                dims = rng.sample(range(x.rank), rng.randint(1, x.rank))
                names = [n for n, row in TABLE.items() if x.dtype.category in row.accepts]
                x = b.reduce(rng.choice(names), x, dims, keepdim=rng.random() < 0.5)
                x = op(b, "neg", x) if x.dtype is not Bool and rng.random() < 0.5 else x
        b.output(x)
    return b.build(), inputs


def test_results_of_random_copies_stay_the_same() -> None:
    fired = 0
    for seed in range(300):
        before, inputs = random_copies(seed)
        after = verify(broadcast_reductions(before), "folded")
        check_same_results(before, after, inputs)
        fired += after is not before
        assert broadcast_reductions(after) is after
    assert fired > 100
