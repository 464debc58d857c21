"""Which symbols go together: devices, forward and backward, order, fuel, names."""

from __future__ import annotations

from typing import Any

import pytest
import thunder
import torch
from thunder.core import prims
from thunder.extend import FUEL_LEVEL

import thunder_fuser
from tests.frontends.thunder.programs import check, fake, jit, primitives, traced
from thunder_fuser.config import options
from thunder_fuser.errors import FuserValueError
from thunder_fuser.frontends.thunder import fusions, refusals


def codes(compiled: Any) -> list[str]:
    return [refusal.code for refusal in refusals(compiled)]


# ---- what is worth a fusion


def test_views_alone_stay_with_torch() -> None:
    compiled = check(lambda x: x.t().reshape(-1)[2:], torch.randn(3, 4), fusion_count=0)
    assert codes(compiled) == ["shape-only"]


def test_new_tensors_alone_stay_with_torch() -> None:
    compiled = check(lambda x: torch.zeros(3, device=x.device), torch.ones(2), fusion_count=0)
    assert codes(compiled) == ["shape-only"]


def test_views_around_an_operation_join_it() -> None:
    compiled = check(lambda x: (x.t() * 2).reshape(-1), torch.randn(3, 4), fusion_count=1)
    (report,) = fusions(compiled)
    assert primitives(report) == ["transpose", "mul", "reshape"]


def test_an_operation_that_is_not_claimed_separates() -> None:
    compiled = check(
        lambda x: torch.sin(torch.sin(x).logcumsumexp(0)), torch.randn(3, 4), fusion_count=2
    )
    first, second = fusions(compiled)
    assert (first.name, second.name) == ("fuser0", "fuser1")
    assert [r.code for r in first.refusals] == ["unclaimed"]
    assert first.refusals == second.refusals
    assert "logcumsumexp" in first.refusals[0].subject


# ---- devices


def test_a_cpu_scalar_joins_a_cuda_region() -> None:
    (x,) = fake((3, 4), dtype=torch.float32)
    with x.fake_mode:
        s = torch.empty((), device="cpu")
    (report,) = traced(lambda x, s: x * s + s, x, s)
    assert [v.is_cpu for v in report.fusion.tensor_inputs] == [False, True]
    assert report.plan.bytes == 2 * 12 * 4


@pytest.mark.gpu
def test_a_cpu_scalar_is_read_at_every_call() -> None:
    compiled = jit(lambda x, s: x * s + s)
    x = torch.randn(3, 4, device="cuda")
    for s in (torch.tensor(2.0), torch.tensor(-3.0)):
        torch.testing.assert_close(compiled(x, s), x * s + s)
    assert len(fusions(compiled)) == 1


def test_cpu_and_cuda_regions_do_not_mix() -> None:
    (x,) = fake((3, 4), dtype=torch.float32)
    with x.fake_mode:
        y = torch.empty(5)
    reports = traced(lambda x, y: (torch.sin(x), torch.sin(y), torch.cos(x)), x, y)
    assert [str(r.outputs[0].device.type) for r in reports] == ["cuda", "cpu"]


def test_cpu_scalars_alone_stay_with_torch_in_a_cuda_program() -> None:
    (x,) = fake((3, 4), dtype=torch.float32)
    with x.fake_mode:
        s = torch.empty(())
    (report,) = traced(lambda x, s: (torch.sin(x), s * 2 + 1), x, s)
    assert primitives(report) == ["sin"]
    check(lambda s: s * 2 + 1, torch.tensor(3.0), fusion_count=1)


def test_cuda_can_be_left_alone() -> None:
    (x,) = fake((3, 4), dtype=torch.float32)
    with options(target="host"):
        assert traced(torch.sin, x) == ()
    assert len(traced(torch.sin, x)) == 1


# ---- order


@pytest.mark.parametrize("kind", ["consecutive", "dataflow"])
def test_thunders_option_chooses_the_grouping(kind: str) -> None:
    def program(x: Any, w: Any) -> Any:
        a = torch.sin(x).sum(1, keepdim=True)
        b = torch.cos(x @ w)
        return a * 2, (b @ w) + a

    inputs = [torch.randn(4, 4) for _ in range(2)]
    check(program, *inputs, fusion_type=kind, fusion_count={"consecutive": 3, "dataflow": 2}[kind])
    check(program, *(x.requires_grad_() for x in inputs), fusion_type=kind)


def test_forward_and_backward_are_never_one_fusion() -> None:
    compiled = check(lambda x: torch.sin(x) * 2, torch.randn(3, requires_grad=True))
    names = [report.name for report in fusions(compiled)]
    traces = (thunder.last_traces(compiled)[-1], thunder.last_backward_traces(compiled)[-1])
    for k, trace in enumerate(traces):
        assert [name in str(trace) for name in names] == [k == 0, k == 1]


def test_where_a_relu_is_zero_is_found_by_what_asks() -> None:
    """Thunder's rule compares before it asks for the gradient."""

    def program(x: Any, w: Any) -> Any:
        return torch.relu(x @ w)

    inputs = fake((256, 64), (64, 512), dtype=torch.bfloat16, grad=True)
    _, backward = traced(program, *inputs)
    assert primitives(backward)[:2] == ["le", "where"]
    assert (backward.plan.kernels, backward.plan.bytes) == (1, 3 * 256 * 512 * 2)
    check(program, *(torch.randn(n, 4, dtype=torch.float64).requires_grad_() for n in (3, 4)))


# ---- numbers that are known late


def test_a_number_that_is_computed_is_an_input() -> None:
    compiled = check(lambda x: x * x.sum().item() + 1, torch.randn(5, dtype=torch.float64))
    report = fusions(compiled)[-1]
    assert [v.name[0] for v in report.fusion.inputs] == ["T", "S"]


def test_symbolic_values_are_refused_with_the_way_out() -> None:
    with pytest.warns(UserWarning, match="experimental"):
        compiled = jit(lambda x, w: torch.relu(x * w), cache="symbolic values")
    for shapes in (((4, 8), (4, 8)), ((6, 8), (1, 8)), ((6, 8), (6, 1))):
        x, w = (torch.randn(s) for s in shapes)
        torch.testing.assert_close(compiled(x, w), torch.relu(x * w))
    assert fusions(compiled) == ()
    refused = [r for r in refusals(compiled) if r.code == "symbolic-shape"]
    assert refused
    assert "constant values" in refused[0].text


# ---- fuel


def chain(x: Any) -> Any:
    return torch.sin(torch.sin(torch.sin(x) @ x) @ x)


def test_fuel_counts_fusions() -> None:
    executor = thunder_fuser.executor
    x = torch.randn(3, 3)
    try:
        for fuel in (0, 1, 2, 5):
            executor.set_fuel(fuel)
            compiled = jit(chain)
            torch.testing.assert_close(compiled(x), chain(x))
            assert len(fusions(compiled)) == min(fuel, 3)
            without = [n for refusal, n in refusals(compiled).items() if refusal.code == "fuel"]
            assert sum(without) == max(3 - fuel, 0)
        executor.set_fuel(1)
        assert [executor.get_fuel(), executor.get_fuel()] == [True, False]
    finally:
        executor.set_fuel(FUEL_LEVEL.UNLIMITED)
    assert executor.get_fuel(1000)


def test_fuel_from_the_options_is_a_tank_for_each_block() -> None:
    for _ in range(2):
        with options(fuel=2):
            compiled = jit(chain)
            compiled(torch.randn(3, 3))
        assert len(fusions(compiled)) == 2


def test_fuel_is_a_count() -> None:
    with pytest.raises(FuserValueError, match="fuel"):
        thunder_fuser.executor.set_fuel(-1)


# ---- symbols


def test_parts_stay_flat_primitives() -> None:
    compiled = jit(lambda x: torch.nn.functional.gelu(x))
    compiled(torch.randn(4))
    (fused,) = [b for b in thunder.last_traces(compiled)[-1].bound_symbols if b.sym.is_fusion]
    assert all(isinstance(part.sym.id, prims.PrimIDs) for part in fused.subsymbols)
    assert fused.sym.executor is thunder_fuser.executor
    line = fused.python(0, print_depth=1)
    assert len(line) == 1
    assert line[0].startswith(f"[{fused.output[0].name}] = fuser0(")


# ---- gradients that are what they were computed from


def test_a_gradient_that_needs_no_arithmetic_takes_no_kernel() -> None:
    """Thunder's rules widen it to fp32 and narrow it again."""
    x, y = fake((64, 64), (64, 64), dtype=torch.bfloat16, grad=True)
    forward, backward = traced(lambda x, y: x.t() + y, x, y)
    assert (forward.plan.kernels, backward.plan.kernels) == (1, 0)
    leaves = [torch.randn(8, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]
    check(lambda x, y: x.t() + y, *leaves)


def test_an_output_is_new_memory_where_its_values_are_an_inputs() -> None:
    x = torch.randn(5, dtype=torch.bfloat16)
    (same,) = (jit(lambda x: x.float().bfloat16())(x),)
    assert torch.equal(same, x)
    assert same.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("budget", [None, 0.5])
def test_gradients_that_are_constants(budget: float | None) -> None:
    """No backward of them reads what comes to it, which Thunder's call of it must pass."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.sign(x)
        return torch.nn.functional.softsign(y), y

    options = {} if budget is None else {"memory_budget": budget}
    compiled = thunder.jit(function, executors=[thunder_fuser.executor], **options)
    x = torch.randn(4, 3, requires_grad=True)
    found = compiled(x)
    for ours, theirs in zip(found, function(x), strict=True):
        assert torch.equal(ours, theirs)
    (gradient,) = torch.autograd.grad(found, [x], [torch.ones_like(y) for y in found])
    assert torch.equal(gradient, torch.zeros_like(x))
