"""`torch.vmap` in a compiled function: one call of torch, with the gradients of eager code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn import functional as F

from tests.frontends.thunder.programs import check, jit

WEIGHT = torch.randn(4, 3, dtype=torch.float64)


def outer_product(x: Tensor) -> Tensor:
    return torch.vmap(lambda a: torch.vmap(lambda b: (a * b).sum())(x))(x)


def several_results(x: Tensor) -> dict[str, Any]:
    def of_row(row: Tensor) -> dict[str, Any]:
        return {"sum": row.sum(-1), "pair": (row.t(), row.cos() @ WEIGHT.to(row.dtype))}

    return torch.vmap(of_row, out_dims=1)(x)


PROGRAMS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Any]]] = {
    "scaled": ((3, 4), lambda x: torch.vmap(lambda row: row * 2)(x)),
    "closure": ((3, 4), lambda x: torch.vmap(lambda row: (row * x.sum()).sin())(x) + 1),
    "global": ((3, 4), lambda x: torch.vmap(lambda row: row @ WEIGHT.to(row.dtype))(x).relu()),
    "norm": ((3, 5, 4), lambda x: torch.vmap(lambda y: F.layer_norm(y, (4,)).relu())(x)),
    "nested": ((3, 5), outer_product),
    "several": ((3, 5, 4), several_results),
    "chunks": ((3, 5, 2), lambda x: torch.vmap(torch.sin, in_dims=1, chunk_size=2)(x)),
    "keyword": ((3, 5), lambda x: torch.vmap(lambda y, k: y * k)(x, k=x.sum())),
    "two": ((3, 5), lambda x: torch.func.vmap(torch.dot, in_dims=(0, -1))(x, x.t())),
    "constant": ((3, 4), lambda x: torch.vmap(lambda row: x[0])(x) + x),
    "operand": ((3, 4), lambda x: torch.vmap(lambda row: row)(x).exp()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients(name: str) -> None:
    shape, program = PROGRAMS[name]
    check(program, torch.randn(shape, requires_grad=True))


def mask_of_images(image: Tensor, x: Tensor) -> Tensor:
    """As transformers makes the mask of Gemma 3 with images."""

    def reads(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) | ((image[b, q] == image[b, k]) & (image[b, k] > 0))

    mapped: Callable[..., Tensor] = reads
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None)):
        mapped = torch.vmap(mapped, in_dims=dims)
    mapped = torch.vmap(mapped, in_dims=(0, None, None, None))
    places = torch.arange(image.shape[1])
    with TransformGetItemToIndex():
        mask = mapped(torch.arange(image.shape[0]), torch.arange(1), places, places)
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def test_a_mask_of_places() -> None:
    image = torch.tensor([[0, 1, 1, 0, 2], [1, 1, 0, 0, 0]])
    check(lambda x: mask_of_images(image, x), torch.randn(2, 1, 5, 4, requires_grad=True))


class Ensemble(nn.Module):
    """Layers with one set of parameters each, which one module is called with."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"weight": (5, 3, 4), "bias": (5, 3)}
        self.each = nn.ParameterDict(
            {k: nn.Parameter(torch.randn(s, generator=torch.Generator())) for k, s in sizes.items()}
        )
        self.__dict__["layer"] = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        def member(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            found: Tensor = torch.func.functional_call(self.layer, parameters, (x,))
            return found

        return torch.vmap(member, in_dims=(0, None))(dict(self.each.items()), x).mean(0)


def test_an_ensemble() -> None:
    model, x = Ensemble(), torch.randn(6, 4)
    found: list[Sequence[Tensor]] = []
    for call in (model, jit(model)):
        model.zero_grad()
        result = call(x)
        result.square().sum().backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        assert len(gradients) == 2
        found.append([result.detach(), *gradients])
    torch.testing.assert_close(*found)


def test_what_is_read_is_read_at_each_call() -> None:
    held = [torch.ones(4)]
    compiled = jit(lambda x: torch.vmap(lambda row: row * held[0])(x))
    for _ in range(2):
        x = torch.randn(3, 4)
        assert torch.equal(compiled(x), x * held[0])
        held[0] = held[0] + 1


def test_random_numbers_are_drawn_as_the_caller_allows() -> None:
    def program(x: Tensor, randomness: str) -> Tensor:
        return torch.vmap(lambda row: row + torch.rand_like(row), randomness=randomness)(x)

    x = torch.zeros(3, 4)
    same = jit(program)(x, "same")
    assert torch.equal(same, same[:1].expand(3, 4))
    different = jit(program)(x, "different")
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        jit(program)(x, "error")


KEPT: list[Tensor] = []


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda x: torch.vmap(lambda row: row.add_(1))(x * 1), "updates a tensor that it does"),
        (lambda x: torch.vmap(lambda row: (row * 2).add_(1))(x), "in place, in a program with"),
        (lambda x: torch.vmap(lambda row: row.detach() * row)(x), "without gradients"),
        (lambda x: torch.vmap(lambda row: KEPT.append(row) or row)(x), "changes a container"),
    ],
)
def test_refusals(program: Callable[[Tensor], Tensor], reason: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"^torch.vmap .*{reason}.*call it outside"):
        jit(program)(torch.randn(3, 4, requires_grad=True))
    assert not KEPT


def test_errors_are_those_of_torch() -> None:
    with pytest.raises(ValueError, match="Got in_dim=4 for some input"):
        jit(lambda x: torch.vmap(torch.sin, in_dims=4)(x))(torch.randn(3))
    with pytest.raises(IndexError, match="Dimension out of range"):
        jit(lambda x: torch.vmap(torch.sum, out_dims=3)(x))(torch.randn(3, 4))
