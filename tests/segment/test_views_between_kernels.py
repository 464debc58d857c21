"""Views between kernels: none goes through memory, none is launched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support.building import op
from tests.zoo.arithmetic import Arithmetic
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.reference import evaluate

Float, BFloat16 = DataType.Float, DataType.BFloat16
Chain = Callable[[FusionBuilder, TensorView], TensorView]


def sliced_twice(b: FusionBuilder, x: TensorView) -> TensorView:
    return b.slice(b.slice(x, [0, 3], [24, 29]), [1, 2], [24, 21])


def reshaped(b: FusionBuilder, x: TensorView) -> TensorView:
    return b.reshape(b.permute(x, [1, 0]), [96, 8])


def expanded(b: FusionBuilder, x: TensorView) -> TensorView:
    one = b.slice(x, [0, 5], [24, 6])
    return b.expand(b.broadcast(one, [False, True, False]), [24, 3, 1])


def cut_again(b: FusionBuilder, x: TensorView) -> TensorView:
    return b.segment_set(b.slice(b.segment_set(b.reshape(x, [8, 96])), [2, 0], [8, 50]))


CHAINS = pytest.mark.parametrize("chain", [sliced_twice, reshaped, expanded, cut_again])


def across(chain: Chain) -> Fusion:
    b = FusionBuilder()
    cut = b.segment_set(op(b, "relu", b.tensor([24, 32], Float)))
    b.output(op(b, "neg", chain(b, cut)))
    return b.build()


@CHAINS
def test_what_is_stored_is_what_was_computed(chain: Chain) -> None:
    plan = CompiledFusion(across(chain)).plan()
    kernels = [s for s in plan.segments if s.kernels]
    assert [s.operations[-1] for s in kernels] == ["relu", "neg"]
    (boundary,) = plan.boundaries
    assert boundary.bytes == 24 * 32 * 4
    # A kernel behind views reads no more than they show.
    (result,) = plan.fusion.outputs
    assert kernels[1].bytes_read <= result.bytes
    assert kernels[0].bytes == 2 * boundary.bytes


def test_what_several_views_show_is_read_once(b: FusionBuilder) -> None:
    y = op(b, "exp", b.tensor([100], Float))
    b.output(y)
    ends = [b.segment_set(b.slice(y, [first], [first + 80])) for first in (0, 20)]
    b.output(op(b, "add", *ends))
    plan = CompiledFusion(b.build()).plan()
    (boundary,) = plan.boundaries
    assert boundary.tensor is plan.segments[0].outputs[0]
    assert plan.segments[-1].bytes_read == boundary.bytes == 400


@CHAINS
def test_numbers(chain: Chain, device: torch.device) -> None:
    fusion = across(chain)
    x = torch.randn(24, 32, device=device)
    (got,) = CompiledFusion(fusion)([x])
    assert torch.equal(got, evaluate(fusion, [x], device=device).outputs[0])


def test_views_of_what_is_stored_may_be_results(device: torch.device) -> None:
    """They share its memory, and outlive its last reader."""
    b = FusionBuilder()
    cut = b.segment_set(op(b, "relu", b.tensor([24, 32], Float)))
    b.output(sliced_twice(b, cut))
    b.output(b.permute(cut, [1, 0]))
    b.output(op(b, "neg", cut))
    compiled = CompiledFusion(b.build())
    plan = compiled.plan()
    assert [s.kind for s in plan.segments] == ["pointwise", "alias", "alias", "pointwise"]
    x = torch.randn(24, 32, device=device)
    part, turned, other = compiled([x])
    assert part.untyped_storage().data_ptr() == turned.untyped_storage().data_ptr()
    assert torch.equal(turned, x.relu().t())
    assert torch.equal(part, x.relu()[:, 3:29][1:, 2:21])
    assert torch.equal(other, -x.relu())


# ---- RoPE, cut where nvFuser cut it


def rope_of_queries(b: FusionBuilder, batch: int, time: int) -> tuple[TensorView, TensorView]:
    """The queries of NVIDIA/Fuser #2577, with its own names for the tensors that its kernels left
    in memory: a slice (T15), and a slice of that (T16).
    """
    operations = Arithmetic(b)
    x = b.tensor([batch, time, 768], BFloat16)
    cos, sin = (b.tensor([time, 8], BFloat16) for _ in range(2))
    heads = b.permute(b.reshape(x, [batch, time, 4, 6, 32]), [0, 2, 3, 1, 4])
    heads = b.slice(heads, [0] * 5, [batch, 4, 4, time, 32])
    query = b.reshape(heads, [batch, 16, time, 32])
    t15 = b.segment_set(part(b, query, 0, 8))
    t16 = b.segment_set(part(b, t15, 0, 4))
    rotated = b.cat([operations.narrow(operations.neg(part(b, t15, 4, 8))), t16], -1)
    turned = operations.add(operations.mul(t15, cos), operations.mul(rotated, sin))
    b.output(b.cat([operations.narrow(turned), part(b, query, 8, 32)], -1))
    return t15, t16


def part(b: FusionBuilder, x: TensorView, first: int, last: int) -> TensorView:
    return b.slice(x, [0, 0, 0, first], [*x.sizes[:3], last])


def test_a_slice_of_what_is_stored_launches_nothing_and_shares_its_memory() -> None:
    b = FusionBuilder()
    rope_of_queries(b, 2, 1024)
    plan = CompiledFusion(b.build()).plan()
    assert [s.kind for s in plan.segments] == ["pointwise", "alias", "pointwise"]
    (boundary,) = {v.tensor for v in plan.boundaries}
    # The slice itself is stored, and not the queries that it is a part of.
    assert boundary.bytes == 2 * 16 * 1024 * 8 * 2
    (view,) = plan.segments[1].views
    assert (plan.placement.root(view.base), view.sizes[-1], view.offset) == (boundary, 4, 0)
    read = 2 * 1024 * 4 * 4 * 32 * 2 + 2 * (1024 * 8 * 2)
    assert plan.bytes == read + 2 * boundary.bytes + 2 * 16 * 1024 * 32 * 2


def test_numbers_of_rope_with_cuts(device: torch.device) -> None:
    b = FusionBuilder()
    rope_of_queries(b, 2, 5)
    fusion = b.build()
    inputs = [torch.randn(t.sizes, device=device).bfloat16() for t in fusion.tensor_inputs]
    (got,) = CompiledFusion(fusion)(inputs)
    (exact,) = evaluate(fusion, inputs, double=True, device=device).outputs
    torch.testing.assert_close(got.double(), exact.double(), rtol=1e-2, atol=1e-2)
