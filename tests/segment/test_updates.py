"""Updates of inputs: written in place where no thread can overwrite what another still reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.support import oracle
from tests.support.batch import Batch, Guarded, allocations, executable
from tests.support.inputs import copy_of
from thunder_fuser.analysis.layout import declared_layout
from thunder_fuser.compile import compile_plan
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.runtime.host.debug import OrderName

Float = DataType.Float
Define = Callable[[FusionBuilder, "Ops"], None]
N = 72
"""So that an input is shared by two blocks on the host and by six on a GPU."""


class Ops:
    """Shorthand: inputs of [N, N], and operations on them."""

    def __init__(self, b: FusionBuilder) -> None:
        self.b = b

    def input(self, *sizes: int) -> TensorView:
        return self.b.tensor(sizes or (N, N), Float)

    def __getattr__(self, op: str) -> Callable[..., TensorView]:
        def call(*operands: object) -> TensorView:
            made = self.b.pointwise(op, *operands)  # type: ignore[arg-type]
            assert isinstance(made, TensorView)
            return made

        return call


@dataclass(frozen=True, slots=True)
class Update:
    """`in_place` of all updates are; the others are copied when everything else has run."""

    name: str
    define: Define
    updates: int
    in_place: int

    @property
    def fusion(self) -> Fusion:
        b = FusionBuilder()
        self.define(b, Ops(b))
        return b.build()


CASES: list[Update] = []


def case(updates: int, in_place: int) -> Callable[[Define], Define]:
    def register(define: Define) -> Define:
        CASES.append(Update(define.__name__, define, updates, in_place))
        return define

    return register


# ---- safe


@case(1, 1)
def reads_what_it_overwrites(b: FusionBuilder, op: Ops) -> None:
    x = op.input()
    b.output(op.add(x, 1.0), x)


@case(1, 1)
def nobody_reads_the_target(b: FusionBuilder, op: Ops) -> None:
    x, y = op.input(), op.input()
    b.output(op.mul(y, 2.0), x)


@case(1, 1)
def another_output_reads_it_at_the_same_point(b: FusionBuilder, op: Ops) -> None:
    x = op.input()
    b.output(op.exp(x))
    b.output(op.add(x, 1.0), x)


@case(2, 2)
def two_targets_read_by_both(b: FusionBuilder, op: Ops) -> None:
    x, y = op.input(), op.input()
    b.output(op.add(x, y), x)
    b.output(op.sub(y, x), y)


@case(1, 1)
def a_value_that_is_returned_too(b: FusionBuilder, op: Ops) -> None:
    x = op.input()
    value = op.add(x, 1.0)
    b.output(value)
    b.output(value, x)


@case(1, 1)
def a_single_element(b: FusionBuilder, op: Ops) -> None:
    x = op.input(1)
    b.output(op.add(x, 1.0), x)


@case(1, 1)
def a_single_element_that_another_output_reads(b: FusionBuilder, op: Ops) -> None:
    """By the thread that overwrites it, though one element is worth no shared part otherwise."""
    x = op.input(1)
    b.output(op.exp(x))
    b.output(op.add(x, 1.0), x)


@case(1, 1)
def a_single_element_and_an_output_that_does_not_read_it(b: FusionBuilder, op: Ops) -> None:
    x, y = op.input(1), op.input()
    b.output(op.neg(y))
    b.output(op.add(x, 1.0), x)


@case(1, 1)
def other_inputs_are_read_at_any_point(b: FusionBuilder, op: Ops) -> None:
    x, y = op.input(), op.input()
    b.output(op.add(x, b.permute(y, [1, 0])), x)


@case(1, 1)
def a_cut_before_the_update(b: FusionBuilder, op: Ops) -> None:
    x, y = op.input(), op.input()
    b.output(op.add(x, b.segment_set(op.exp(y))), x)


@case(3, 3)
def an_optimizer(b: FusionBuilder, op: Ops) -> None:
    p, g, m, v = (op.input() for _ in range(4))
    new_m = op.lerp(m, g, 0.1)
    new_v = op.lerp(v, op.mul(g, g), 0.05)
    step = op.truediv(new_m, op.add(op.sqrt(op.abs(new_v)), 1e-3))
    b.output(op.sub(p, op.mul(step, 0.1)), p)
    b.output(new_m, m)
    b.output(new_v, v)


@case(1, 1)
def a_value_that_is_read_behind_a_cut(b: FusionBuilder, op: Ops) -> None:
    """From the memory of the target, whose strides are other than a new tensor's."""
    x = b.tensor([N, N], Float, allocation=[1, 0])
    value = op.add(b.set(op.input()), 1.0)
    b.output(op.exp(b.segment_set(value)))
    b.output(value, x)


# ---- unsafe


@case(1, 0)
def only_another_output_reads_the_target(b: FusionBuilder, op: Ops) -> None:
    x, y = op.input(), op.input()
    b.output(op.exp(x))
    b.output(op.mul(y, 2.0), x)


@case(1, 0)
def it_reads_the_target_at_other_points(b: FusionBuilder, op: Ops) -> None:
    x = op.input()
    b.output(op.neg(b.permute(x, [1, 0])), x)


@case(1, 0)
def it_exchanges_halves_of_the_target(b: FusionBuilder, op: Ops) -> None:
    x = op.input()
    upper, lower = b.slice(x, [0, 0], [N // 2, N]), b.slice(x, [N // 2, 0], [N, N])
    b.output(b.cat([lower, upper], 0), x)


@case(1, 0)
def it_reads_the_target_at_its_point_and_beside_it(b: FusionBuilder, op: Ops) -> None:
    x = op.input()
    before = b.pad(b.slice(x, [0, 0], [N, N - 1]), [1, 0])
    b.output(op.add(x, before), x)


@case(1, 0)
def another_output_reads_it_at_other_points(b: FusionBuilder, op: Ops) -> None:
    x = op.input()
    b.output(op.neg(b.slice(x, [0, 1], [N, N - 1])))
    b.output(op.add(x, 1.0), x)


@case(1, 0)
def another_output_reads_it_in_another_order(b: FusionBuilder, op: Ops) -> None:
    x = op.input()
    b.output(b.stride_order(op.exp(x), [0, 1]))
    b.output(op.add(x, 1.0), x)


@case(1, 0)
def another_output_repeats_it(b: FusionBuilder, op: Ops) -> None:
    x, y = op.input(1), op.input()
    b.output(op.mul(y, x))
    b.output(op.add(x, 1.0), x)


@case(1, 0)
def a_view_of_the_target_is_returned(b: FusionBuilder, op: Ops) -> None:
    x = op.input()
    b.output(b.slice(x, [2, 0], [5, N]))
    b.output(op.add(x, 1.0), x)


@case(1, 1)
def the_target_is_returned_as_it_was(b: FusionBuilder, op: Ops) -> None:
    x = op.input()
    b.output(x)
    b.output(op.add(x, 1.0), x)


@case(1, 0)
def the_target_is_returned_from_behind_a_cut(b: FusionBuilder, op: Ops) -> None:
    x, y = op.input(), op.input()
    b.output(b.segment_set(x))
    b.output(op.neg(y), x)


@case(1, 0)
def a_view_of_the_value_is_returned(b: FusionBuilder, op: Ops) -> None:
    x = op.input()
    value = op.add(x, 1.0)
    b.output(b.slice(value, [2, 0], [5, N]))
    b.output(value, x)


@case(1, 0)
def the_value_is_returned_from_behind_a_cut(b: FusionBuilder, op: Ops) -> None:
    x = op.input()
    value = op.add(x, 1.0)
    b.output(b.segment_set(value))
    b.output(value, x)


@case(2, 0)
def two_inputs_are_exchanged(b: FusionBuilder, op: Ops) -> None:
    x, y = op.input(), op.input()
    b.output(op.neg(y), x)
    b.output(op.neg(x), y)


@case(2, 0)
def one_value_for_two_targets(b: FusionBuilder, op: Ops) -> None:
    x, y = op.input(), op.input()
    value = op.add(x, y)
    b.output(value, x)
    b.output(value, y)


@case(1, 0)
def an_input_is_copied(b: FusionBuilder, op: Ops) -> None:
    x, y = op.input(), op.input()
    b.output(op.exp(x))
    b.output(y, x)


@case(1, 0)
def the_target_is_read_before_a_cut(b: FusionBuilder, op: Ops) -> None:
    x = op.input()
    b.output(op.add(b.segment_set(op.exp(x)), 1.0), x)


@case(2, 1)
def one_of_two_is_safe_because_the_other_is_copied(b: FusionBuilder, op: Ops) -> None:
    """y is read beside its point, but is overwritten only when all have read it."""
    x, y = op.input(), op.input()
    b.output(op.add(x, b.permute(y, [1, 0])), x)
    b.output(op.add(y, x), y)


# ---- checks


@pytest.mark.parametrize("update", CASES, ids=lambda u: u.name)
def test_updates_are_in_place_iff_that_is_safe(update: Update) -> None:
    plan = CompiledFusion(update.fusion).plan()
    assert len(plan.fusion.updates) == update.updates
    assert len(plan.placement.updates) == update.in_place
    assert plan.copies == update.updates - update.in_place
    copied = sum(
        2 * u.value.bytes for u in plan.fusion.updates if u.value not in plan.placement.updates
    )
    assert plan.bytes == sum(s.bytes for s in plan.segments) + copied


def prepared(update: Update) -> tuple[CompiledFusion, list[torch.Tensor]]:
    compiled = CompiledFusion(update.fusion)
    inputs = [
        torch.empty_strided(t.sizes, declared_layout(t).strides).normal_()
        for t in compiled.fusion.tensor_inputs
    ]
    return compiled, inputs


def check(
    update: Update, outputs: Sequence[torch.Tensor], left: Sequence[torch.Tensor], before: Any
) -> None:
    fusion = update.fusion
    targets = [left[fusion.inputs.index(u.target)] for u in fusion.updates]
    try:
        oracle.assert_close_to_reference(outputs, fusion, before, targets)
    except AssertionError as error:
        raise AssertionError(f"{update.name}: {error}") from None


def test_updates_leave_the_right_numbers(device: torch.device) -> None:
    batch = Batch(device)
    ready = []
    for update in CASES:
        compiled, before = prepared(update)
        inputs = [copy_of(x, device) for x in before]
        ready.append((update, executable(compiled, inputs, batch, device), inputs, before))
    for update, run, inputs, before in ready:
        check(update, run(inputs), inputs, before)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_no_order_of_threads_and_blocks_matters(
    monkeypatch: pytest.MonkeyPatch, order: OrderName
) -> None:
    """What is overwritten too early shows in one order or the other."""
    cpu = torch.device("cpu")
    batch = Batch(cpu, H200)
    ready = []
    for update in CASES:
        compiled, before = prepared(update)
        inputs = [copy_of(x) for x in before]
        plan = compiled.plan(inputs)
        target = Guarded(batch, plan, order, seed=1)
        target.memory += inputs
        with allocations(monkeypatch, target.memory.append):
            ready.append((update, compile_plan(plan, cpu, target), inputs, before))
    for update, run, inputs, before in ready:
        check(update, run(inputs), inputs, before)


@pytest.mark.parametrize("update", CASES, ids=lambda u: u.name)
def test_results_keep_their_numbers_when_updated_inputs_change_later(update: Update) -> None:
    """A result shares the memory of an update's target only if it is the updated value itself."""
    compiled, inputs = prepared(update)
    fusion = compiled.fusion
    outputs = compiled(inputs)
    values = {u.value for u in fusion.updates}
    copies = [x.clone() for x in outputs]
    for u in fusion.updates:
        inputs[fusion.inputs.index(u.target)].fill_(99.0)
    for view, x, copy in zip(fusion.outputs, outputs, copies, strict=True):
        assert torch.equal(x, copy) or view in values, f"{view} changed with an input"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_rows_are_written_into_an_input_that_nothing_reads(order: Sequence[int]) -> None:
    b = FusionBuilder()
    x = b.tensor((8192, 1024), Float)
    y = b.tensor((8192, 1024), Float, allocation=order)
    normed = b.pointwise("div", x, b.reduce("sum", x, [1], keepdim=True))
    assert isinstance(normed, TensorView)
    b.output(normed, y)
    plan = CompiledFusion(b.build()).dense_plan(torch.device("cpu"))
    assert plan.copies == 0
    assert plan.kernels == 1
    assert plan.bytes == plan.bytes_ideal
