"""Order of calls that run as the program says: kernels are cut so that it exists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from thunder_fuser import FusionDefinition
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.segment.plan import SegmentedFusion

Call = Callable[[FusionDefinition, Any, Any], Any]


def reduced(fd: FusionDefinition, x: Any, _: Any) -> Any:
    return fd.ops.all_reduce(x, axis=0, size=2, span=2, op=0)


def dropped(fd: FusionDefinition, x: Any, other: Any) -> Any:
    return fd.ops.sdpfa_fwd(x, other, other, dropout_p=0.5)[0]


CALLS = pytest.mark.parametrize(
    ("call", "shape"), [(reduced, [8]), (dropped, [1, 1, 8, 8])], ids=["collective", "draw"]
)


def calls(plan: SegmentedFusion) -> list[str]:
    return [s.operations[0] for s in plan.segments if s.kind == "opaque"]


@CALLS
def test_a_reader_of_the_second_call_is_apart_from_the_operand_of_the_first(
    call: Call, shape: list[int]
) -> None:
    """As one kernel, which both read `x` for, the first call would wait for the second one."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=shape, contiguity=True) for _ in range(2))
        first, second = call(fd, fd.ops.exp(x), y), call(fd, y, y)
        fd.add_output(first)
        fd.add_output(second * x)
    plan = CompiledFusion(fd.fusion).plan()
    assert [s.operations for s in plan.segments if s.kernels] == [("exp",), ("mul",)]
    assert len(calls(plan)) == 2


@CALLS
def test_calls_of_inputs_cut_nothing(call: Call, shape: list[int]) -> None:
    """No kernel is before the first call: whatever reads the second one may be one kernel."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=shape, contiguity=True) for _ in range(2))
        first, second = call(fd, x, y), call(fd, y, y)
        fd.add_output(first * x)
        fd.add_output(second * x)
    plan = CompiledFusion(fd.fusion).plan()
    assert [s.operations for s in plan.segments if s.kernels] == [("mul", "mul")]


@CALLS
def test_order_holds_through_kernels_and_calls_between(call: Call, shape: list[int]) -> None:
    """The reader of a product of the last call, and what the first one reads."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=shape, contiguity=True) for _ in range(2))
        first = call(fd, fd.ops.exp(x), y)
        between = call(fd, fd.ops.sin(y), y)
        last = call(fd, y, y)
        product = fd.ops.matmul(last, last)
        for tensor in (first, between, fd.ops.relu(product) * x):
            fd.add_output(tensor)
    plan = CompiledFusion(fd.fusion).plan()
    before = next(s.index for s in plan.segments if "matmul" in s.operations)
    kernels = [(s.index < before, s.operations) for s in plan.segments if s.kernels]
    assert (False, ("relu", "mul")) in kernels
    assert all(is_before for is_before, names in kernels if names != ("relu", "mul"))


@CALLS
def test_equal_calls_are_two(call: Call, shape: list[int]) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=shape, contiguity=True)
        fd.add_output(call(fd, x, x) * fd.ops.exp(call(fd, x, x)))
    assert len(calls(CompiledFusion(fd.fusion).plan())) == 2


def test_a_collective_runs_though_nobody_reads_it() -> None:
    """Others wait in it, who may read theirs; it draws nothing that a later call would get."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[1, 1, 8, 8], contiguity=True) for _ in range(2))
        reduced(fd, fd.ops.exp(x), y)
        dropped(fd, x, y)
        fd.add_output(fd.ops.sin(y))
    plan = CompiledFusion(fd.fusion).plan()
    assert calls(plan) == ["all_reduce"]
    (sent,) = (s for s in plan.segments if s.kind == "opaque")
    assert sent.awaited_by == -1
    # What it reads and makes is in memory until the end.
    ends = {b.tensor: b.last for b in plan.buffers if b.last is not None}
    assert ends == dict.fromkeys((*sent.inputs, *sent.outputs), len(plan.segments) - 1)
