from __future__ import annotations

import pytest
import torch

from tests.passes.patterns import check_on_random_fusions, ops_of
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Merge, Reorder, Resize, Split
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, PadOp, TensorView, ViewOp
from thunder_fuser.passes.dead_code import dead_code
from thunder_fuser.passes.view_chains import view_chains

F32 = DataType.Float


def folded(b: FusionBuilder, x: TensorView) -> Fusion:
    """What is left in front of a last operation, which hides `x` from the caller."""
    b.output(_exp(b, x))
    return dead_code(view_chains(b.build()))


def _exp(b: FusionBuilder, x: TensorView) -> TensorView:
    made = b.pointwise("exp", x)
    assert isinstance(made, TensorView)
    return made


def test_a_chain_becomes_one_view() -> None:
    """The queries of attention: reshape, permute, slice, reshape."""
    b = FusionBuilder()
    qkv = b.tensor([2, 1024, 768], DataType.BFloat16)
    x = b.permute(b.reshape(qkv, [2, 1024, 4, 6, 32]), [0, 2, 3, 1, 4])
    q = b.reshape(b.slice(x, [0, 0, 0, 0, 0], [2, 4, 4, 1024, 32]), [2, 16, 1024, 32])
    view, _ = folded(b, q).exprs
    assert isinstance(view, ViewOp)
    assert view.input.sizes == qkv.sizes
    assert view.output.sizes == q.sizes
    assert view.output.domain.transforms == (
        *(Split(2, 4, 192), Split(3, 6, 32), Resize(3, 0, -2)),
        *(Merge(2), Reorder((0, 2, 1, 3))),
    )


def test_views_that_cancel_disappear() -> None:
    b = FusionBuilder()
    x = b.tensor([4, 6, 8], F32)
    y = b.permute(b.set(b.permute(x, [2, 0, 1])), [1, 2, 0])
    y = b.reshape(b.reshape(y, [24, 8]), [4, 6, 8])
    y = b.squeeze(b.expand(b.broadcast(y, [True, False, False, False]), [5, 4, 6, 8]), [0], True)
    y = b.slice(b.pad(y, [2, 3]), [0, 0, 2], [4, 6, 10])
    assert ops_of(folded(b, y)) == ["exp"]


def test_equal_pads_join() -> None:
    b = FusionBuilder()
    x = b.tensor([8], F32)
    pad, _ = folded(b, b.pad(b.pad(x, [1, 2], 0.5), [3, 4], 0.5)).exprs
    assert isinstance(pad, PadOp)
    assert pad.op == "pad"
    assert pad.output.domain.transforms == (Resize(0, 4, 6),)


@pytest.mark.parametrize(
    "make",
    [
        # Two values, or two signs of zero.
        lambda b, x: b.pad(b.pad(x, [1, 1], 0.0), [1, 1], 1.0),
        lambda b, x: b.pad(b.pad(x, [1, 1], 0.0), [1, 1], -0.0),
        # The user's cut.
        lambda b, x: b.reshape(b.segment_set(b.reshape(x, [8])), [2, 4]),
        lambda b, x: b.segment_set(x),
        # One view already.
        lambda b, x: b.slice(x, [1, 0], [4, 2], [2, 1]),
        lambda b, x: b.pad(x, [0, 1]),
    ],
)
def test_chains_end_where_they_must(make: object) -> None:
    b = FusionBuilder()
    assert callable(make)
    b.output(_exp(b, make(b, b.tensor([4, 2], F32))))
    fusion = b.build()
    assert view_chains(fusion) is fusion


def test_a_cut_and_a_pad_are_one_view_that_loses_nothing() -> None:
    b = FusionBuilder()
    x = b.tensor([8], F32)
    view, _ = folded(b, b.pad(b.slice(x, [2], [8]), [2, 0])).exprs
    assert isinstance(view, PadOp)
    assert view.output.domain.transforms == (Resize(0, -2, 0), Resize(0, 2, 0))


def test_results_stay_views_of_the_same_memory() -> None:
    """A copy is a copy, and an output that is a view stays, though others read past it."""
    b = FusionBuilder()
    x = b.tensor([4, 6], F32)
    copy = b.set(x)
    b.output(b.reshape(copy, [24]))
    turned = b.permute(x, [1, 0])
    b.output(turned)
    b.output(_exp(b, b.permute(turned, [1, 0])))
    fusion = dead_code(view_chains(b.build()))
    assert ops_of(fusion) == ["set", "reshape", "permute", "exp"]
    assert fusion.exprs[-1].inputs == fusion.inputs


def test_a_view_of_a_result_needs_no_memory_of_its_own() -> None:
    """A gradient in two shapes, of values that are nowhere in this order before."""
    b = FusionBuilder()
    heads = _exp(b, b.tensor([2, 16, 64, 8], F32))
    rows = b.reshape(b.permute(heads, [0, 2, 1, 3]), [2, 64, 128])
    b.output(rows)
    b.output(b.reshape(b.reshape(rows, [128, 16, 8]), [128, 128]))
    plan = CompiledFusion(b.build()).plan()
    assert (plan.kernels, plan.bytes) == (1, 2 * rows.bytes)
    # What is computed lies in this order, and both are views of it.
    assert [s.kind for s in plan.segments] == ["pointwise", "alias", "alias"]


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_a_result_in_a_memory_order_keeps_it(order: list[int]) -> None:
    """Row-major is asked for too: the view before it is not."""
    b = FusionBuilder()
    x = b.tensor([4, 6], F32)
    ordered = b.stride_order(b.permute(_exp(b, x), [1, 0]), order)
    b.output(ordered)
    b.output(_exp(b, b.permute(ordered, [1, 0])))
    fusion = dead_code(view_chains(b.build()))
    assert ops_of(fusion) == ["exp", "permute", "stride_order", "exp"]
    assert fusion.outputs[0].domain.allocation == ((1, 0) if order == [0, 1] else (0, 1))
    # What reads it as it was reads past it.
    assert fusion.exprs[-1].inputs == (fusion.exprs[0].output,)


@pytest.mark.parametrize("strides", [(8, 2, 1), (0, 2, 1)])
def test_a_result_that_is_a_view_of_what_asks_for_memory(strides: tuple[int, ...]) -> None:
    """`x.contiguous().mT`: a view of `x` where that is dense, and of a copy where it repeats."""
    b = FusionBuilder()
    x = b.tensor([3, 4, 2], F32, contiguity=[False] * 3)
    b.output(b.permute(b.stride_order(x, [2, 1, 0]), [0, 2, 1]))
    data = torch.randn(24).as_strided((3, 4, 2), strides)
    (result,) = CompiledFusion(b.build())([data])
    assert result.stride() == (8, 1, 2)
    assert torch.equal(result, data.contiguous().mT)
    assert (result.data_ptr() == data.data_ptr()) == data.is_contiguous()


def test_a_thousand_views_fold_in_one_run() -> None:
    b = FusionBuilder()
    x = b.tensor([4, 6, 8], F32)
    y = x
    for k in range(1000):
        y = b.permute(y, [1, 2, 0]) if k % 2 else b.slice(y, [0, 0, 0], [*y.sizes[:2], y.sizes[2]])
    view, _ = folded(b, y).exprs
    assert isinstance(view, ViewOp)
    assert view.output.domain.transforms == (Reorder((2, 0, 1)),)


def test_results_stay_the_same() -> None:
    check_on_random_fusions(view_chains)
