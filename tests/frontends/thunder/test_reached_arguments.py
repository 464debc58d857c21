"""Arguments of which only results without a gradient depend: their `.grad` is left as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import flat, jit

Program = Callable[[Tensor, Tensor, Tensor], Sequence[Tensor]]


def two_heads(x: Tensor, u: Tensor, v: Tensor) -> Sequence[Tensor]:
    h = x.sin()
    return h @ u, (h @ v).relu(), h


def with_detached(x: Tensor, u: Tensor, v: Tensor) -> Sequence[Tensor]:
    return (x @ u).detach(), u * 2, x @ v + u.detach(), u.argmax(-1)


def arguments_returned(x: Tensor, u: Tensor, v: Tensor) -> Sequence[Tensor]:
    return u, u[0], x * v, u


def updated(x: Tensor, u: Tensor, v: Tensor) -> Sequence[Tensor]:
    """An update gives the views of what it updates a gradient."""
    y, z = torch.zeros(4, 4), x * 2
    row = y[0]
    y[:2] += u[:2]
    z[1:].mul_(v[1:])
    return row.exp(), z, y[3] * u[3]


def of_several_results(x: Tensor, u: Tensor, v: Tensor) -> Sequence[Tensor]:
    values, _ = (x @ u).topk(2)
    return *torch.min(u * v, 1), values, v.cumsum(0)


def of_unknown_functions(x: Tensor, u: Tensor, v: Tensor) -> Sequence[Tensor]:
    return torch.logcumsumexp(u, 0), nn.functional.gelu(v), torch.cdist(x, v)


def written_where_autograd_does_not_look(x: Tensor, u: Tensor, v: Tensor) -> Sequence[Tensor]:
    """Updates through a detached name give the others no gradient."""
    y, z, w = torch.zeros(4, 4), x * 2, torch.zeros(4, 4).detach()
    y.detach().copy_(u)
    z.detach()[1:].mul_(u[1:])
    w.copy_(v)
    return y + x, z * 3, w, w[0] * x


PROGRAMS = [
    *(two_heads, with_detached, arguments_returned, updated),
    *(of_several_results, of_unknown_functions, written_where_autograd_does_not_look),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_each_result_alone(program: Program) -> None:
    """The gradients of each result, and of all, are None where eager code's are."""
    given = [torch.randn(4, 4, dtype=torch.float64) for _ in range(3)]
    run = jit(program)
    for k in (None, *range(len(program(*given)))):
        gradients = []
        for call in (run, program):
            leaves = [x.clone().requires_grad_() for x in given]
            found = [y for y in call(*leaves)]  # noqa: C416
            chosen = [y for j, y in enumerate(found) if y.requires_grad and k in (j, None)]
            if chosen:
                torch.stack([y.square().sum() for y in chosen]).sum().backward()
            gradients.append([x.grad for x in leaves])
        torch.testing.assert_close(*gradients)
    assert thunder.cache_misses(run) == 1


def test_an_updated_argument_has_its_gradient() -> None:
    def program(x: Tensor, u: Tensor, v: Tensor) -> Sequence[Tensor]:
        x.mul_(u)
        return u * 2, v * x.detach()

    gradients = []
    for call in (jit(program), program):
        u, v = (torch.full((3,), k, requires_grad=True) for k in (2.0, 3.0))
        x = torch.ones(3)
        call(x, u, v)
        x.sum().backward()
        gradients.append([u.grad, v.grad])
    assert all(x is None or x.count_nonzero() == 0 for x in (gradients[0][1], gradients[1][1]))
    torch.testing.assert_close(gradients[0][0], gradients[1][0])


class Pooled(nn.Module):
    """A model whose loss does not depend on all of its parameters, like BERT with a pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.pooler, self.head = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> dict[str, Any]:
        h = self.layer(x).relu()
        return {"logits": self.head(h), "pooled": (self.pooler(h[:, 0]).tanh(), None), "last": h}


@pytest.mark.parametrize("keeps_zeros", [True, False])
def test_weight_decay_leaves_a_pooler_alone(keeps_zeros: bool) -> None:
    """Zeroed gradients stay, as in eager code: `zero_grad(set_to_none=False)`."""
    models = [Pooled(), Pooled()]
    models[1].load_state_dict(models[0].state_dict())
    for model, run in zip(models, (jit(models[0]), models[1]), strict=True):
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
        for step in range(3):
            found = run(torch.ones(2, 3, 4) * step)
            name = "pooled" if step == 1 else "logits"
            torch.stack([y.sum() for y in flat(found[name])]).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=not keeps_zeros)
    for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_an_argument_that_the_only_result_does_not_depend_on() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        z = x * 2
        z.detach().copy_(y)
        return z * 3

    x, y = (torch.randn(4, requires_grad=True) for _ in range(2))
    jit(program)(x, y).sum().backward()
    assert torch.equal(x.grad, torch.full((4,), 6.0))
    assert y.grad is None
