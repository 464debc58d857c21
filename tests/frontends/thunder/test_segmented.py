"""Segments and boundaries as Thunder's proxies."""

from __future__ import annotations

from typing import Any

import pytest
import thunder
import torch
from torch.nn import functional as F

import thunder_fuser
from tests.frontends.thunder.programs import fake, jit
from thunder_fuser.errors import FuserTypeError, FuserValueError


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
    (region,) = thunder_fuser.segments(function)
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
    assert [region.name for region in thunder_fuser.segments(function)] == ["fuser0", "fuser1"]
    backward = thunder.last_backward_traces(function)[-1]
    (region,) = thunder_fuser.segments(backward)
    assert region.name == "fuser1"
    assert "plan: 1 kernel" in str(region)


def test_views_say_whose_memory_they_are() -> None:
    (x,) = fake((4, 6), dtype=torch.float32)
    (region,) = thunder_fuser.segments(compiled(lambda x: (x.sin(), x.t()), x))
    (view,) = [s for s in region.segments if s.kind == "alias"]
    assert view.alias_of is not None
    assert view.alias_of.name == "x"
    assert view.kernels == 0


def test_other_functions_are_refused() -> None:
    with pytest.raises(FuserTypeError):
        thunder_fuser.segments(lambda x: x)
    with pytest.raises(FuserValueError):
        thunder_fuser.segments(jit(torch.sin))
