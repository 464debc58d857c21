"""Traces in which Thunder says sizes that a tensor has not: not fused, told, and not our bug."""

from __future__ import annotations

import pytest
import thunder
import torch

from tests.thunder.programs import Program, jit
from thunder_fuser.executor import refusals


def of_a_number(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    # The gradient of `scale` is stated as a number where it still has to be summed.
    return x.var(-1) * scale * 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_gradient_of_a_number(dtype: torch.dtype) -> None:
    x, scale = torch.randn(3, 4, requires_grad=True), torch.tensor(2.0, dtype=dtype)
    scale.requires_grad_()

    def gradients(program: Program) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(program(x, scale).sum(), (x, scale))

    compiled = jit(of_a_number)
    torch.testing.assert_close(gradients(compiled), gradients(of_a_number))
    found = [r for r in refusals(compiled) if r.code == "ill-typed"]
    # Only another dtype takes the cast that is stated wrongly.
    assert bool(found) == (dtype is torch.float64)
    for refusal in found:
        assert "says t" in refusal.text
        assert "f64[] of convert_element_type, which gives [3] of t" in refusal.text


def test_what_reads_such_a_tensor_is_not_fused_either() -> None:
    def clipped(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.vector_norm(x, 3) * x

    x = torch.randn(3, 4, dtype=torch.bfloat16, requires_grad=True)
    compiled = jit(clipped)
    for run in (compiled, thunder.jit(clipped, executors=[])):
        with pytest.raises(Exception, match="v has invalid size"):
            run(x).sum().backward()
    texts = [r.text for r in refusals(compiled) if r.code == "ill-typed"]
    assert any("whose sizes the trace that Thunder made says wrongly" in text for text in texts)
