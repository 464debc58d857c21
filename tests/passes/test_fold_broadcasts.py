from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from tests.passes.patterns import check_on_random_fusions, check_same_results, ops_of
from tests.support.building import op
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import IterKind, NewBroadcast
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView, ViewOp
from thunder_fuser.ir.verify import verify
from thunder_fuser.passes.fold_broadcasts import _Search, fold_broadcasts

F32 = DataType.Float


def issue_3366(rows: int, columns: int) -> Fusion:
    """tv0 [i0] and tv1 [i0, i1]; tv2 = neg(tv0), tv3 = broadcast(tv2), tv4 = tv3 * tv1."""
    b = FusionBuilder()
    tv0, tv1 = b.tensor([rows], F32), b.tensor([rows, columns], F32)
    tv3 = b.broadcast(op(b, "neg", tv0), [False, True])
    b.output(op(b, "mul", tv3, tv1))
    return b.build()


# ---- the example of the issue


def test_the_example_of_the_issue() -> None:
    fusion = fold_broadcasts(issue_3366(4, 6))
    tv7, tv1 = fusion.tensor_inputs
    tv6, tv5 = (e.output for e in fusion.exprs)
    assert ops_of(fusion) == ["neg", "mul"]
    assert str(tv7.domain) == "[i4, b1] from [i4]"
    assert tv7.domain.transforms == (NewBroadcast(1),)
    assert str(tv6.domain) == "[i4, b1]"  # type: ignore[union-attr]
    assert fusion.exprs[1].inputs == (tv6, tv1)
    assert str(tv5.domain) == "[i4, i6]"  # type: ignore[union-attr]
    assert all(d.kind is not IterKind.BROADCAST for d in tv5.domain.logical)  # type: ignore[union-attr]
    assert fold_broadcasts(fusion) is fusion


def test_the_example_as_a_program(golden: Callable[[str, str], None]) -> None:
    golden("issue_3366.fusion", f"{fold_broadcasts(issue_3366(4, 6))}\n")


def test_the_example_binds_a_tensor_of_the_roots_rank(device: torch.device) -> None:
    x, y = torch.randn(4, device=device), torch.randn(4, 6, device=device)
    strided = torch.randn(8, device=device)[::2]
    for fusion in (issue_3366(4, 6), fold_broadcasts(issue_3366(4, 6))):
        (found,) = CompiledFusion(fusion)([x, y])
        assert torch.equal(found, -x[:, None] * y)
    (found,) = CompiledFusion(fusion)([strided, y])
    assert torch.equal(found, -strided[:, None] * y)


@pytest.mark.parametrize("fold", [False, True])
def test_a_wrong_rank_is_refused(fold: bool) -> None:
    fusion = fold_broadcasts(issue_3366(4, 6)) if fold else issue_3366(4, 6)
    with pytest.raises(FuserValueError, match=r"T0, to be bound to a tensor of rank 1, but got a"):
        CompiledFusion(fusion)([torch.zeros(4, 1), torch.zeros(4, 6)])


def test_a_wrong_rank_is_told_what_the_input_makes_of_the_right_one() -> None:
    fusion = fold_broadcasts(issue_3366(4, 6))
    with pytest.raises(FuserValueError, match=r"\[i4, b1\] from \[i4\]"):
        CompiledFusion(fusion)([torch.zeros(4, 1), torch.zeros(4, 6)])


def test_the_example_of_full_size_is_one_kernel_that_reads_each_element_once() -> None:
    plan = CompiledFusion(issue_3366(8192, 8192)).plan()
    assert (plan.kernels, plan.bytes, plan.bytes_ideal) == (1, 536_903_680, 536_903_680)
    assert plan.segments[0].operations == ("neg", "mul")


# ---- where it fires


def test_it_goes_through_casts_permutations_and_several_operands() -> None:
    b = FusionBuilder()
    x, y = b.tensor([4, 6], DataType.BFloat16), b.tensor([6], F32)
    total = op(b, "add", b.cast(x, F32), y)
    turned = b.permute(op(b, "exp", total), [1, 0])
    wide = b.broadcast_in_dim(turned, [6, 5, 4, 3], [0, 2])
    b.output(op(b, "mul", wide, b.tensor([6, 5, 4, 3], F32)))
    before = b.build()
    after = verify(fold_broadcasts(before), "folded")
    assert ops_of(after) == ["cast", "add", "exp", "permute", "mul"]
    first, second, _ = after.tensor_inputs
    assert [d.size for d in first.domain.root] == [4, 6]
    assert sorted(int(d.size) for d in first.domain.logical) == [3, 4, 5, 6]
    assert [d.size for d in second.domain.root] == [6]
    inputs = [torch.randn(4, 6).bfloat16(), torch.randn(6), torch.randn(6, 5, 4, 3)]
    check_same_results(before, after, inputs)
    (ours,) = CompiledFusion(after)(inputs)
    (plain,) = CompiledFusion(before)(inputs)
    assert torch.equal(ours, plain)


def test_broadcasts_of_broadcasts_are_one_insertion() -> None:
    b = FusionBuilder()
    row = b.broadcast(b.tensor([4], F32), [True, False])
    cube = b.expand(b.broadcast(op(b, "neg", row), [False, True, False]), [3, 5, 4])
    b.output(op(b, "add", cube, b.tensor([3, 5, 4], F32)))
    fusion = b.build()
    after = fold_broadcasts(fusion)
    assert "broadcast" not in ops_of(after)
    assert str(after.tensor_inputs[0].domain) == "[b1, b1, i4] from [i4]"


def test_readers_that_all_want_the_same_dimensions_are_no_obstacle() -> None:
    b = FusionBuilder()
    x = b.tensor([4], F32)
    swish = op(b, "mul", x, op(b, "sigmoid", x))
    b.output(op(b, "add", b.broadcast(swish, [False, True]), b.tensor([4, 6], F32)))
    assert ops_of(fold_broadcasts(b.build())) == ["sigmoid", "mul", "add"]


def test_operands_of_lower_rank_get_what_lies_behind_their_first_dimension() -> None:
    b = FusionBuilder()
    x, y = b.tensor([4, 6], F32), b.tensor([6], F32)
    inner = b.broadcast(op(b, "add", x, y), [False, True, False, True])
    b.output(op(b, "mul", inner, b.tensor([4, 2, 6, 3], F32)))
    first, second, _ = fold_broadcasts(b.build()).tensor_inputs
    assert str(first.domain) == "[i4, b1, i6, b1] from [i4, i6]"
    assert str(second.domain) == "[i6, b1] from [i6]"


# ---- where it must not


def reduced(b: FusionBuilder, x: TensorView) -> TensorView:
    return op(b, "sub", x, b.broadcast(b.reduce("max", x, [1]), [False, True]))


def returned(b: FusionBuilder, x: TensorView) -> TensorView:
    half = op(b, "neg", x)
    b.output(half)
    return op(b, "exp", b.broadcast(half, [False, True, False]))


def returned_itself(b: FusionBuilder, x: TensorView) -> TensorView:
    wide = b.broadcast(op(b, "neg", x), [False, True, False])
    b.output(b.permute(wide, [1, 0, 2]))
    return op(b, "exp", wide)


def read_elsewhere(b: FusionBuilder, x: TensorView) -> TensorView:
    half = op(b, "neg", x)
    return op(b, "add", op(b, "exp", b.broadcast(half, [True, False, False])), half)


def input_read_elsewhere(b: FusionBuilder, x: TensorView) -> TensorView:
    return op(b, "add", op(b, "neg", b.broadcast(x, [True, False, False])), x)


def reshaped(b: FusionBuilder, x: TensorView) -> TensorView:
    return op(b, "neg", b.broadcast(op(b, "exp", b.reshape(x, [2, 2, 6])), [True] + [False] * 3))


def updated(b: FusionBuilder, x: TensorView) -> TensorView:
    wide = op(b, "neg", b.broadcast(x, [True, False, False]))
    b.output(op(b, "exp", b.tensor([4, 6], F32)), x)
    return wide


def cut(b: FusionBuilder, x: TensorView) -> TensorView:
    return op(b, "exp", b.broadcast(b.segment_set(op(b, "neg", x)), [True, False, False]))


def wanted_twice_at_odds(b: FusionBuilder, x: TensorView) -> TensorView:
    """x gets a dimension behind its first one, and none through the operand of lower rank."""
    square = b.tensor([4, 4], F32)
    y = b.tensor([4], F32)
    total = op(b, "add", op(b, "mul", square, y), b.permute(op(b, "mul", square, y), [1, 0]))
    b.output(op(b, "neg", x))
    return op(b, "exp", b.broadcast(total, [False, True, False]))


@pytest.mark.parametrize(
    "make",
    [
        reduced, returned, returned_itself, read_elsewhere, input_read_elsewhere, reshaped, updated,
        cut, wanted_twice_at_odds,
    ],
)  # fmt: skip
def test_broadcasts_that_stay(make: object) -> None:
    b = FusionBuilder()
    x = b.tensor([4, 6], F32)
    assert callable(make)
    b.output(make(b, x))
    fusion = b.build()
    assert fold_broadcasts(fusion) is fusion


def test_an_all_reduce_keeps_its_broadcast_and_is_one_kernel() -> None:
    b = FusionBuilder()
    x = b.tensor([64, 128], F32)
    total = b.reduce("sum", op(b, "exp", x), [1], keepdim=True)
    b.output(op(b, "div", op(b, "exp", x), total))
    plan = CompiledFusion(b.build()).plan()
    assert plan.kernels == 1
    views = [e for e in plan.fusion.exprs if isinstance(e, ViewOp)]
    assert [e.op for e in views] == ["broadcast"]
    assert all(not t.domain.transforms for t in plan.fusion.tensor_inputs)


def test_a_cut_right_behind_an_input_with_more_dimensions(device: torch.device) -> None:
    b = FusionBuilder()
    x = b.tensor([4], F32, contiguity=[False])
    wide = b.expand(b.broadcast(x, [False, True]), [4, 6])
    b.output(op(b, "exp", b.segment_set(wide)))
    data = torch.randn(8, device=device)[::2]
    (found,) = CompiledFusion(b.build())([data])
    torch.testing.assert_close(found, data[:, None].expand(4, 6).exp())


def test_a_chain_that_is_broadcast_all_along_is_not_climbed_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visits = 0
    original = _Search._operands

    def counting(self: _Search, *args: object) -> object:
        nonlocal visits
        visits += 1
        return original(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(_Search, "_operands", counting)
    b = FusionBuilder()
    x, total = b.tensor([8], F32), b.tensor([8, 8], F32)
    for _ in range(200):
        x = op(b, "neg", x)
        total = op(b, "add", total, b.broadcast(x, [False, True]))
    b.output(total)
    fold_broadcasts(b.build())
    assert 0 < visits <= 200


# ---- results


def random_broadcasts(seed: int) -> tuple[Fusion, list[torch.Tensor]]:
    """Small tensors through pointwise operations and permutations, and broadcasts on the way."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    b, inputs, outputs = FusionBuilder(), [], []

    def tensor(sizes: list[int]) -> TensorView:
        inputs.append(torch.randint(-4, 5, sizes, generator=generator).float())
        return b.tensor(sizes, F32)

    for _ in range(rng.randint(1, 3)):
        x = tensor([rng.choice((1, 2, 3)) for _ in range(rng.randint(0, 2))])
        for _ in range(rng.randint(1, 5)):
            kind = rng.choice(("unary", "lower", "permute", "twice", "wide", "wide"))
            if kind == "unary" or not x.rank:
                x = op(b, "neg", x)
            elif kind == "lower":
                x = op(b, "add", x, tensor(list(x.sizes[rng.randint(0, x.rank) :])))
            elif kind == "permute":
                x = b.permute(x, rng.sample(range(x.rank), x.rank))
            elif kind == "twice":
                x = op(b, "mul", x, op(b, "abs", x))
            if kind == "wide" and x.rank < 4:
                at = rng.randint(0, x.rank)
                x = b.broadcast(x, [k == at for k in range(x.rank + 1)])
                if rng.random() < 0.5:
                    x = b.expand(x, [2 if k == at else n for k, n in enumerate(x.sizes)])
            if rng.random() < 0.1:
                outputs.append(x)
        outputs.append(op(b, "sub", x, 1.0))
    for t in outputs:
        b.output(t)
    return b.build(), inputs


def test_results_of_random_broadcasts_stay_the_same() -> None:
    fired = 0
    for seed in range(300):
        before, inputs = random_broadcasts(seed)
        after = verify(fold_broadcasts(before), "folded")
        check_same_results(before, after, inputs)
        fired += after is not before
    assert fired > 100


def test_results_stay_the_same() -> None:
    check_on_random_fusions(fold_broadcasts)
