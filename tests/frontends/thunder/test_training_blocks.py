"""Training of small blocks: each parameter's gradient against float64, over several steps."""

from __future__ import annotations

import copy

import pytest
import thunder
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.frontends.thunder.programs import as_double, jit
from tests.frontends.thunder.training_blocks import Gelu, Llama, batch
from tests.support.shares import each_value
from thunder_fuser.frontends.thunder import fusions, refusals
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin

BLOCKS = [Llama, Gelu]
STEPS = 3
LEFT_TO_TORCH = {
    "linear",
    "matmul",
    "take_along_dim (take_along_axis)",
    "nll_loss_backward",
    "fuser_attention_forward",
    "fuser_attention_backward",
}


def gradients(block: nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The loss, then the gradient of every parameter."""
    loss = block(*inputs)
    return [loss.detach(), *torch.autograd.grad(loss, list(block.parameters()))]


def distances(found: list[torch.Tensor], exact: list[torch.Tensor]) -> torch.Tensor:
    """Of each tensor, in its own size."""
    return torch.stack(
        [(a.double() - b).norm() / b.norm() for a, b in zip(found, exact, strict=True)]
    )


@each_value(kind=BLOCKS, dtype=[torch.float32, torch.bfloat16])
def test_gradients_are_as_good_as_in_eager(
    kind: type[nn.Module], dtype: torch.dtype, device: torch.device
) -> None:
    block = kind().to(device, dtype)
    compiled = jit(block)
    for step in range(STEPS):
        # Parameters move, sizes stay: later steps run what the first one compiled.
        inputs = batch(dtype, device)
        ours = gradients(compiled, inputs)
        eager = gradients(block, inputs)
        exact = gradients(copy.deepcopy(block).double(), [as_double(x) for x in inputs])
        for found, theirs in zip(ours, eager, strict=True):
            assert (found.shape, found.dtype) == (theirs.shape, theirs.dtype)
        errors, reference = distances(ours, exact), distances(eager, exact)
        assert errors[0] <= torch.finfo(dtype).eps + reference[0]
        names = [name for name, _ in block.named_parameters()]
        # A sum may be right to the last bit by luck.
        far = (errors > 2 * reference + torch.finfo(torch.float32).eps / 2)[1:].tolist()
        assert not any(far), (
            step,
            [name for name, is_far in zip(names, far, strict=True) if is_far],
        )
        assert errors[1:].norm() <= 1.25 * reference[1:].norm()
        with torch.no_grad():
            for parameter, gradient in zip(block.parameters(), ours[1:], strict=True):
                parameter -= 0.1 * gradient
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (1, STEPS - 1)
    assert {r.code for r in refusals(compiled)} == {"unclaimed", "shape-only"}
    assert {r.subject for r in refusals(compiled) if r.code == "unclaimed"} <= LEFT_TO_TORCH


@pytest.mark.nvrtc
@pytest.mark.parametrize("kind", BLOCKS)
def test_a_gpus_kernels_compile(kind: type[nn.Module]) -> None:
    try:
        torch.set_default_dtype(torch.bfloat16)
        with FakeTensorMode(), torch.device("cuda"):
            block, inputs = kind(), batch(torch.bfloat16, "cuda")
    finally:
        torch.set_default_dtype(torch.float32)
    compiled = jit(block)
    thunder.compile_data(compiled).get_computation_and_inputs(*inputs)
    kernels = {k.name: k for report in fusions(compiled) for k in report.kernels}
    cubin = compile_cubin(list(kernels.values()), "sm_90")
    assert set(cubin.resources) == set(kernels)
    assert not any(resources.spills for resources in cubin.resources.values())
