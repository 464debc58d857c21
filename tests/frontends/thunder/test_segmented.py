"""Segments and boundaries as Thunder's proxies."""

from __future__ import annotations

from typing import Any

import pytest
import thunder
import torch
from torch import Tensor
from torch.nn import functional as F

import thunder_fuser
from tests.frontends.thunder.memory import held
from tests.frontends.thunder.programs import fake, jit
from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.frontends.thunder.plans.segmented import (
    SegmentedRegion,
    SegmentedTrace,
    TraceSegment,
)


def normalised_twice(x: Any) -> Any:
    """Of columns, then of rows: two kernels, with sums between them."""
    y = x / x.sum(0)
    return y / y.sum(1, keepdim=True)


def compiled(program: Any, *inputs: Any) -> Any:
    function = jit(program)
    thunder.compile_data(function).get_computation_and_inputs(*inputs)
    return function


def names(proxies: Any) -> list[str]:
    return [p.name for p in proxies]


def test_boundaries_are_proxies_of_the_trace() -> None:
    (x,) = fake((64, 4096), dtype=torch.float32)
    function = compiled(normalised_twice, x)
    (whole,) = thunder_fuser.segments(function)
    (region,) = whole.steps
    assert region.name == "fuser0"
    assert region.kernels == len([s for s in region.segments if s.kernels]) == 2
    trace = thunder.last_traces(function)[-1]
    (fusion,) = [b for b in trace.bound_symbols if b.sym.is_fusion]
    inner = {p.name: p for b in fusion.subsymbols for p in b.flat_proxy_outs}
    assert sorted(b.bytes for b in region.boundaries) == [4096 * 4]
    for boundary in region.boundaries:
        assert inner[boundary.tensor.name] is boundary.tensor
        assert boundary.bytes == boundary.tensor.numel * 4
        assert boundary.reason
        assert boundary.tensor.name in names(region.segments[boundary.producer].outputs)
        for k in boundary.consumers:
            assert boundary.tensor.name in names(region.segments[k].inputs)
    assert names(region.segments[0].inputs) == names(fusion.args)
    assert names(region.segments[-1].outputs) == names(fusion.output)
    assert sum(s.bytes_read + s.bytes_written for s in region.segments) == region.bytes


def test_forward_then_backward_and_of_one_trace() -> None:
    x, w = fake((64, 256), (256,), dtype=torch.bfloat16, grad=True)
    function = compiled(lambda x, w: F.rms_norm(x, (256,), w), x, w)
    names = [r.name for trace in thunder_fuser.segments(function) for r in trace.regions]
    assert names == ["fuser0", "fuser1"]
    backward = thunder.last_backward_traces(function)[-1]
    (trace,) = thunder_fuser.segments(backward)
    (region,) = trace.steps
    assert region.name == "fuser1"
    assert "plan: 1 kernel" in str(region)


def both(x: Any) -> Any:
    return x.sin(), x.t()


def test_views_say_whose_memory_they_are() -> None:
    (x,) = fake((4, 6), dtype=torch.float32)
    ((region,),) = (t.regions for t in thunder_fuser.segments(compiled(both, x)))
    (view,) = [s for s in region.segments if s.kind == "alias"]
    assert view.alias_of is not None
    assert view.alias_of.name == "x"
    assert view.kernels == 0


def test_other_functions_are_refused() -> None:
    with pytest.raises(FuserTypeError):
        thunder_fuser.segments(lambda x: x)
    with pytest.raises(FuserValueError):
        thunder_fuser.segments(jit(torch.sin))


# ---- the whole trace


def layers(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(2):
        x = x + torch.relu(F.layer_norm(x, (8,)) @ w) @ w
    return x


def heads(x: Tensor, w: Tensor) -> Tensor:
    """Attention, whose result lies by heads, which are merged without a copy."""
    q = F.linear(x, w).view(2, 4, 2, 4).transpose(1, 2)
    y = F.scaled_dot_product_attention(q, q * 2, q, is_causal=True)
    return F.linear(y.transpose(1, 2).reshape(8, 8), w) * x


def one_image(x: Tensor, w: Tensor) -> Tensor:
    """Attention of as few dimensions as it may have."""
    return F.scaled_dot_product_attention(x @ w, w, w) * 2


def views(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = torch.sin(x)
    return y.t(), x[2:], (y @ w)[:, :3] * 2, y


def same(x: Tensor, w: Tensor) -> Tensor:
    """Torch's cast to the dtype that a tensor has is the tensor, and nothing else names torch."""
    return x.type_as(w)


def copies(x: Tensor, w: Tensor) -> Tensor:
    """Of a transpose there is no view that is flat."""
    return torch.cumsum(torch.sin((x @ w).t().reshape(64)), 0) * 2


def updates(x: Tensor, w: Tensor) -> Tensor:
    x.mul_(2)
    y = x @ w
    x.sub_(y.mean(1, keepdim=True))
    return torch.sin(y)


_STATE = 16 + 8 * 4
"""Bytes that a plan has for attention's random state and logsumexp, which a CPU may leave out."""


def compare(plan: SegmentedTrace, measured: list[tuple[str, int]]) -> None:
    """Bytes in memory when each step is done, beside those that the plan has."""
    known = {s.name if isinstance(s, SegmentedRegion) else s.call for s in plan.steps}
    found = [(name, real) for name, real in measured if name in known]
    assert len(found) == len(plan.steps)
    for step, planned, (name, real) in zip(plan.steps, plan.held, found, strict=True):
        assert name == (step.name if isinstance(step, SegmentedRegion) else step.call)
        # A fusion may hold more between its kernels
        is_more = isinstance(step, SegmentedRegion) and step.kernels > 1
        state = _STATE * any(name.startswith("fuser_attention") for name, _ in found)
        assert planned >= real if is_more else real <= planned <= real + state, name


@pytest.mark.parametrize("program", [layers, heads, one_image, views, same, copies, updates])
def test_a_plan_of_a_trace_has_what_is_in_memory(program: Any) -> None:
    """In each step, forward and backward, as storages are counted while the traces run."""
    grad = program not in (updates, same)
    inputs = [torch.randn(8, 8, requires_grad=grad) for _ in range(2)]
    function = jit(program)
    function(*inputs)
    plans = thunder_fuser.segments(function)
    assert [plan.name for plan in plans] == ["forward", "backward"][: len(plans)]
    forward = thunder.last_traces(function)[-1]
    arguments = dict(zip([p.name for p in forward.args], inputs, strict=True))
    values: dict[str, Any] = dict(arguments)
    compare(plans[0], held(forward, values))
    assert plans[0].argument_bytes == 2 * 8 * 8 * 4
    if not grad:
        return
    results, (saved, others) = forward.bound_symbols[-1].args
    outputs = {p.name: values[p.name] for p in results["flat_output"] if hasattr(p, "name")}
    kept = {p.name: values[p.name] for p in saved}
    own = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept.values()}
    for tensor in (*arguments.values(), *outputs.values()):
        own.pop(tensor.untyped_storage().data_ptr(), None)
    state = _STATE if program in (heads, one_image) else 0
    assert 0 <= plans[0].saved_bytes - sum(own.values()) <= state
    given = {
        **{n: t for n, t in (arguments | outputs).items() if n in kept},
        "saved_for_backward": [list(kept.values()), list(others)],
        "cotangents": [torch.randn_like(t) for t in outputs.values()],
    }
    backward = thunder.last_backward_traces(function)[-1]
    compare(plans[1], held(backward, given))


def test_a_plan_of_a_trace_has_torchs_calls() -> None:
    x, w = fake((512, 256), (256, 256), dtype=torch.bfloat16, grad=True)
    forward, backward = thunder_fuser.segments(compiled(lambda x, w: torch.relu(x @ w), x, w))
    product, activation = forward.steps
    assert isinstance(product, TraceSegment)
    assert (product.kind, product.call, product.kernels) == ("opaque", "matmul", 0)
    assert product.flops == 2 * 512 * 256 * 256
    assert (product.bytes_read, product.bytes_written) == (x.nbytes + w.nbytes, x.nbytes)
    assert product.seconds > 0
    assert forward.seconds == product.seconds + activation.seconds
    (boundary,) = forward.boundaries
    assert (boundary.producer, boundary.consumers, boundary.bytes) == (0, (1,), x.nbytes)
    assert boundary.reason == "torch's matmul gives it"
    assert backward.flops == 2 * product.flops
    assert forward.kernels == 1
    # The result tells where it was positive: nothing else is saved.
    assert forward.saved_bytes == 0
    assert forward.peak_bytes == w.nbytes + 3 * x.nbytes
    assert "torch's matmul(x, w)" in str(forward)
