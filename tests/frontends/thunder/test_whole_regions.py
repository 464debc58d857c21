"""Calls that Thunder knows by name only, or binds without parts: they cut no region."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import thunder
import torch

from tests.frontends.thunder.programs import fake, jit, traced
from tests.zoo.rope import rope, turned
from thunder_fuser.frontends.thunder import fusions, refusals

Function = Callable[[torch.Tensor], torch.Tensor]

# Each lies between what is fused before and after it.
CALLS: dict[str, Function] = {
    "zeros": lambda x: x + torch.zeros(4, 4),
    "ones": lambda x: x + torch.ones(4, 4),
    "full": lambda x: x + torch.full((4, 4), 3.0),
    "zeros_like": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "ones_like": lambda x: torch.where(x > 0, x, torch.ones_like(x)),
    "full_like": lambda x: torch.where(x > 0, x, torch.full_like(x, 2.0)),
    "arange": lambda x: x * torch.arange(4),
    "new_zeros": lambda x: x + x.new_zeros(4, 4),
    "new_zeros of a tuple": lambda x: x + x.new_zeros((4,)),
    "new_ones": lambda x: x * x.new_ones(4),
    "new_full": lambda x: x * x.new_full((4, 4), 2.5),
    "to": lambda x: x.to(torch.bfloat16),
    "to a device": lambda x: x.to("cpu"),
    "to another": lambda x: x.to(x),
    "cpu": lambda x: x.cpu(),
    "half": lambda x: x.half(),
    "double": lambda x: x.double(),
    "bool": lambda x: x * (x > 0).bool(),
    "function": lambda x: x * torch.Tensor.int(x),
    "mask": lambda x: x.masked_fill(torch.ones(4, 4).bool().triu(1), -1e9),
    "narrow": lambda x: x.narrow(1, -3, 2),
    "detach": lambda x: x + torch.detach(x),
    "straight through": lambda x: x + (x.round() - x).detach(),
    "flip": lambda x: torch.flip(x, (0, -1)),
    "flip of a transpose": lambda x: x.t().flip(1),
    "flip of nothing": lambda x: x[:, :1].flip(1),
    "multiply": lambda x: torch.multiply(x, x).absolute(),
    "clip": lambda x: x.clip(0, 1),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "roll": lambda x: torch.roll(x, 1, 1),
    "roll of all elements": lambda x: x.roll(-5),
    "roll of windows": lambda x: torch.roll(x, shifts=(-2, 5), dims=(0, -1)),
    "roll by nothing": lambda x: torch.roll(x, (4, 0), (0, 1)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "with gradients"])
def test_one_region(name: str, grad: bool) -> None:
    call = CALLS[name]
    compiled = jit(lambda x: torch.cos(call(torch.sin(x))) * 2)
    x = torch.randn(4, 4, requires_grad=grad)
    # Nothing is compiled: what is looked at is the trace.
    thunder.compile_data(compiled).get_computation_and_inputs(x)
    assert len(fusions(compiled)) == 1 + grad
    assert refusals(compiled) == {}


def test_they_compute_what_torch_does() -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        y = torch.sin(x)
        return [call(y) * 1 for call in CALLS.values()]

    # Between two tensors nothing rounds twice, so most agree to the last bit.
    x = torch.randn(4, 4, dtype=torch.float64)
    for found, expected in zip(jit(program)(x), program(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_unusual_arguments_stay_with_torch() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.multiply(x, other=x) + torch.narrow(x, dim=0, start=0, length=1)

    x = torch.randn(4, 4)
    torch.testing.assert_close(jit(program)(x), program(x))
    with pytest.raises(Exception, match="exceeds dimension size"):
        jit(lambda x: torch.sin(x).narrow(0, 3, 2))(x)
    with pytest.raises(Exception, match="shifts and dimensions must align"):
        jit(lambda x: torch.roll(x, (1, 2), 0))(x)
    empty = torch.ones(0, 3)
    torch.testing.assert_close(jit(lambda x: torch.roll(x, 1, 0))(empty), empty)


def test_the_gradient_of_rotary_embeddings_is_one_kernel() -> None:
    """LitGPT's, whose values nobody reads, of one sequence: the gradient of the queries is summed
    over the batch, that of the keys over the batch and the queries that share a key, that of the
    values is zeros; all of them are written where the projection's gradient has them.
    """
    (qkv,) = fake((1, 8192, 8 * 6 * 128), dtype=torch.bfloat16, grad=True)
    tables = fake((8192, 128), (8192, 128), dtype=torch.bfloat16)
    program = partial(rope, groups=8, per_group=4, values=False)
    plan = traced(lambda *tensors: program(*tensors), qkv, *tables)[-1].plan
    assert (plan.kernels, plan.bytes) == (1, 239_075_328)
    assert plan.bytes == plan.bytes_ideal


def test_rotary_embedding_of_two_thirds_of_a_projection() -> None:
    """LitGPT's attention up to its product, where nobody reads the values: autograd puts zeros in
    the place of their gradient.
    """

    def program(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        qkv = qkv.view(2, 6, 3, 2, 8).permute(0, 2, 3, 1, 4)
        q, k, _ = qkv.split((1, 1, 1), dim=1)
        return turned(q, cos, sin) * turned(k, cos, sin)

    inputs = [torch.randn(2, 6, 48, dtype=torch.float64, requires_grad=True)]
    inputs += [torch.randn(6, 8, dtype=torch.float64) for _ in range(2)]
    compiled = jit(program)
    (found,) = torch.autograd.grad(compiled(*inputs).sum(), inputs[0])
    (expected,) = torch.autograd.grad(program(*inputs).sum(), inputs[0])
    torch.testing.assert_close(found, expected)
    assert len(fusions(compiled)) == 2
    assert refusals(compiled) == {}
