"""What the tests of the executor share: compile, run, differentiate, compare with the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import thunder
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import thunder_fuser
from thunder_fuser.frontends.thunder import FusionReport, fusions

Program = Callable[..., Any]


def jit(program: Program, **options: Any) -> Program:
    """`program` compiled with our executor and torch's."""
    return thunder.jit(program, executors=[thunder_fuser.executor], **options)


def primitives(report: FusionReport) -> list[str]:
    """The names of what a fusion computes, in order."""
    return [expr.origin.symbol for expr in report.fusion.exprs]


def fake(*shapes: Sequence[int], dtype: torch.dtype, grad: bool = False) -> list[torch.Tensor]:
    """CUDA tensors that need no GPU."""
    with FakeTensorMode():
        return [torch.empty(s, dtype=dtype, device="cuda", requires_grad=grad) for s in shapes]


def traced(program: Program, *inputs: Any, **options: Any) -> tuple[FusionReport, ...]:
    """The fusions of a program compiled for fake inputs, forward then backward."""
    compiled = jit(program, **options)
    thunder.compile_data(compiled).get_computation_and_inputs(*inputs)
    return fusions(compiled)


def as_double(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    exact = {True: torch.complex128, False: torch.float64}[x.is_complex()]
    inexact = x.is_floating_point() or x.is_complex()
    return (x.detach().to(exact) if inexact else x.detach().clone()).requires_grad_(x.requires_grad)


def flat(outputs: Any) -> list[torch.Tensor]:
    """Tensors in nested tuples, lists and dicts, in order."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    if isinstance(outputs, dict):
        outputs = list(outputs.values())
    return [t for item in outputs for t in flat(item)] if isinstance(outputs, (tuple, list)) else []


def assert_as_good_as_eager(
    ours: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor, what: str, factor: float = 2.0
) -> None:
    """Same shape, dtype and device; not further from the truth than eager is, up to rounding."""
    assert (ours.shape, ours.dtype, ours.device) == (eager.shape, eager.dtype, eager.device), what
    if not (ours.is_floating_point() or ours.is_complex()):
        assert torch.equal(ours, eager), what
        return
    ours, eager, truth = ours.detach(), eager.detach(), truth.detach()
    wide = truth.dtype
    finite = truth.isfinite()
    assert torch.equal(ours.isnan(), eager.isnan()), what
    assert torch.equal(ours[~finite].nan_to_num(), eager[~finite].nan_to_num()), what
    eps = torch.finfo(ours.dtype).eps
    size = truth[finite].abs()
    allowed = factor * (eager[finite].to(wide) - truth[finite]).abs() + 4 * eps * size
    # Where results cancel, eager's own worst error is the measure.
    worst = (eager[finite].to(wide) - truth[finite]).abs().max() if bool(finite.any()) else 0.0
    if ours.dtype == wide and bool(finite.any()):
        # Nothing is wider: eager is the truth, and what it lost in between does not show.
        worst = 4 * eps * size.max().clamp(min=1)
    error = (ours[finite].to(wide) - truth[finite]).abs()
    assert bool((error <= allowed + factor * worst + torch.finfo(ours.dtype).tiny).all()), (
        f"{what}: off by {error.max().item():.3g}, eager by {float(worst):.3g}"
    )


def check(
    program: Program,
    *inputs: Any,
    fusion_count: int | None = None,
    device: torch.device | None = None,
    **options: Any,
) -> Program:
    """Runs a program and, where inputs require it, its gradients; compares with float64.

    `device` is where the inputs are put first.  Returns the compiled program.
    """
    inputs = tuple(_leaf(x, device) for x in inputs)
    eager = [_leaf(x, device) for x in inputs]
    truths = [as_double(x) for x in inputs]
    compiled = jit(program, **options)
    runs = ((compiled, inputs), (program, eager), (program, truths))
    results = [flat(function(*arguments)) for function, arguments in runs]
    for k, (ours, theirs, truth) in enumerate(zip(*results, strict=True)):
        assert_as_good_as_eager(ours, theirs, truth.to(as_double(theirs).dtype), f"output {k}")
    leaves = [k for k, x in enumerate(inputs) if isinstance(x, torch.Tensor) and x.requires_grad]
    if leaves:
        seeds = [torch.randn(t.shape, dtype=torch.float64).to(t.device) for t in results[1]]
        gradients = []
        for outputs, (_, arguments) in zip(results, runs, strict=True):
            roots = [(t, s.to(t.dtype)) for t, s in zip(outputs, seeds, strict=True) if t.grad_fn]
            sources = [arguments[k] for k in leaves]
            outs, outs_seeds = [t for t, _ in roots], [s for _, s in roots]
            gradients.append(torch.autograd.grad(outs, sources, outs_seeds))
        for k, *found in zip(leaves, *gradients, strict=True):
            assert_as_good_as_eager(*found, f"gradient of input {k}")
    if fusion_count is not None:
        assert len(fusions(compiled)) == fusion_count
    return compiled


def _leaf(x: Any, device: torch.device | None) -> Any:
    """A copy that autograd takes for an input."""
    if not isinstance(x, torch.Tensor):
        return x
    copy = x.detach().clone() if device is None else x.detach().to(device, copy=True)
    return copy.requires_grad_(x.requires_grad)
