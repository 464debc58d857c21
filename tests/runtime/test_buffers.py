"""What a call allocates is what its plan says, and goes when the plan says so."""

from __future__ import annotations

import weakref

import pytest
import torch

from tests.building import op
from tests.cuts import with_cuts
from tests.generator import random_case
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime import steps
from thunder_fuser.runtime.dispatch import CompiledFusion
from thunder_fuser.runtime.executable import Executable

Float = DataType.Float


class Allocations:
    """Bytes of tensors that live at a time, and the most that did."""

    def __init__(self) -> None:
        self.alive = self.peak = 0

    def empty(
        self, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        made = torch.empty_strided(sizes, strides, dtype=dtype)
        size = made.numel() * made.element_size()
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(made, self._freed, size)
        return made

    def _freed(self, size: int) -> None:
        self.alive -= size


@pytest.fixture
def allocations(monkeypatch: pytest.MonkeyPatch) -> Allocations:
    """Of tensors, on the host; what a launch works with besides does not count."""
    recorded = Allocations()
    plain = steps.allocator(torch.device("cpu"))
    for name in ("scratch", "counter"):
        real = getattr(steps, name)
        monkeypatch.setattr(steps, name, lambda a, b, _, real=real: real(a, b, plain))
    monkeypatch.setattr(steps, "allocator", lambda device: recorded.empty)
    return recorded


def test_a_boundary_goes_after_its_last_reader(b: FusionBuilder, allocations: Allocations) -> None:
    x = b.tensor([1000], Float)
    first = b.segment_set(op(b, "exp", x))
    y = first
    for _ in range(4):
        y = b.segment_set(op(b, "sin", y))
    b.output(op(b, "add", b.segment_set(op(b, "add", y, first)), 1.0))
    run = CompiledFusion(b.build())
    plan = run.plan()
    assert [(n.first, n.last) for n in plan.buffers] == [
        (0, 5),
        *((k, k + 1) for k in range(1, 6)),
        (6, None),
    ]
    assert plan.peak_bytes == 3 * 4000
    run([torch.randn(1000)])
    assert allocations.peak == plan.peak_bytes
    assert allocations.alive == 0


def test_what_others_see_stays(b: FusionBuilder, allocations: Allocations) -> None:
    """Results, and the memory of results that are views."""
    y = op(b, "exp", b.tensor([10, 100], Float))
    b.output(b.slice(y, [0, 0], [5, 100]))
    b.output(y)
    b.output(op(b, "sin", b.segment_set(y)))
    run = CompiledFusion(b.build())
    assert [n.last for n in run.plan().buffers] == [None, None]
    outputs = run([torch.randn(10, 100)])
    assert allocations.alive == allocations.peak == run.plan().peak_bytes
    del outputs
    assert allocations.alive == 0


def test_a_plan_says_its_buffers(b: FusionBuilder) -> None:
    b.output(op(b, "neg", b.segment_set(op(b, "exp", b.tensor([100], Float)))))
    assert list(map(str, CompiledFusion(b.build()).plan().buffers)) == [
        "buffer T1 (400 B): segment 0 to segment 1",
        "buffer T3 (400 B): segment 1 to the caller",
    ]


@pytest.mark.parametrize("reductions", [False, True])
def test_random_calls_use_as_much_memory_as_planned(
    allocations: Allocations, reductions: bool
) -> None:
    cut = 0
    for seed in range(30):
        case = random_case(seed, reductions=reductions)
        run = CompiledFusion(with_cuts(case.fusion, seed))
        inputs = case.fresh_inputs()
        plan = run.plan(inputs)
        allocations.peak = allocations.alive
        assert allocations.alive == 0
        outputs = run(inputs)
        assert allocations.peak == plan.peak_bytes, f"seed {seed}\n{plan}"
        del outputs
        cut += any(buffer.last is not None for buffer in plan.buffers)
    assert cut > 10


def test_a_call_that_fails_keeps_nothing(
    b: FusionBuilder, allocations: Allocations, monkeypatch: pytest.MonkeyPatch
) -> None:
    b.output(op(b, "neg", b.segment_set(op(b, "exp", b.tensor([100], Float)))))
    run = CompiledFusion(b.build())
    run([torch.randn(100)])
    (executable,) = run.executables

    def fail(values: steps.Values) -> None:
        raise MemoryError

    monkeypatch.setattr(executable, "_steps", (*executable._steps[:-1], fail))
    assert isinstance(executable, Executable)
    with pytest.raises(MemoryError):
        run([torch.randn(100)])
    assert allocations.alive == 0
