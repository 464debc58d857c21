"""Changes of a tensor's shape in place: all who hold the tensor see them, as in eager code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.frontends.thunder.aliasing import interpreted
from tests.frontends.thunder.programs import flat, jit


def asked_before(x: Tensor) -> Any:
    y = x * 2
    before = y.shape, y.ndim
    y.unsqueeze_(-1)
    return y + torch.ones(3), before, y.shape, y.ndim


def held_elsewhere(x: Tensor) -> Any:
    y = x * 2
    other, held = y, [y]
    y.transpose_(0, 1)
    y.add_(1)
    return other, held[0].shape, other is y, y.t()


def of_a_temporary(x: Tensor) -> Any:
    column = torch.linspace(0, 1, 5).unsqueeze_(-1)
    return (column * x.sum()).squeeze_(), x.mul(2).t_().contiguous()


def twice(x: Tensor) -> Any:
    y = x * 2
    y.unsqueeze_(0).unsqueeze_(dim=0)
    z = y.squeeze_(0)
    return z @ torch.ones(4, 2), y, z is y


def of_a_view(x: Tensor) -> Any:
    y = x * 2
    flat = y.view(-1)
    flat.unsqueeze_(0)
    return flat * 3, y


def of_indices(x: Tensor) -> Any:
    index = (x > 0.5).int().argmax(1)
    return x.gather(1, index.unsqueeze_(-1)), index


def unbound(x: Tensor) -> Any:
    y = x * 2
    torch.Tensor.swapaxes_(y, 0, 1)
    return y.swapdims_(0, 1), y.swapdims_(0, 1)


PROGRAMS = (asked_before, held_elsewhere, of_a_temporary, twice, of_a_view, of_indices, unbound)


@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_results_are_those_of_eager(program: Callable[[Tensor], Any], differentiated: bool) -> None:
    def run(function: Callable[[Tensor], Any]) -> Any:
        x = torch.arange(12.0).view(3, 4).div(10).requires_grad_(differentiated)
        found = flat(function(x))
        if differentiated:
            tensors = [t for t in found if isinstance(t, Tensor) and t.requires_grad]
            sum((t * torch.arange(t.numel()).view(t.shape)).sum() for t in tensors).backward()
            found.append(x.grad)
        return found

    with interpreted():
        for ours, eager in zip(run(jit(program)), run(program), strict=True):
            assert ours == eager if not isinstance(eager, Tensor) else torch.equal(ours, eager)
            if isinstance(eager, Tensor):
                assert (ours.stride(), ours.requires_grad) == (eager.stride(), eager.requires_grad)


def test_a_view_of_an_argument_is_updated() -> None:
    def program(x: Tensor) -> Any:
        row = x.view(-1)
        row.unsqueeze_(0)
        row.mul_(3)
        return row, x * 1

    given = torch.randn(3, 4), torch.randn(3, 4)
    given[1].copy_(given[0])
    ours, eager = jit(program)(given[0]), program(given[1])
    assert all(map(torch.equal, (*ours, given[0]), (*eager, given[1])))


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "an argument": lambda x: x.unsqueeze_(0) * 2,
    "an updated argument": lambda x: x.add_(1).unsqueeze_(0) * 2,
    "an argument that is converted to its own dtype": lambda x: x.float().unsqueeze_(0) * 2,
    "an updated tensor": lambda x: (x * 2).add_(1).t_(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tensor_with_other_names_is_refused(name: str) -> None:
    with pytest.raises(NotImplementedError, match="_ in a compiled function: it gives "):
        jit(REFUSED[name])(torch.randn(3, 4))


class Inner(nn.Module):
    """A module that needs the numbers of tensors after a change of a shape."""

    def __init__(self, *, changes_operand: bool) -> None:
        super().__init__()
        self.changes_operand = changes_operand
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        if self.changes_operand:
            x.unsqueeze_(0)
        mask = (x > 0).any(-1)
        mask.unsqueeze_(-1)
        return x * self.scale * mask if mask.any() else x * self.scale


class Outer(nn.Module):
    def __init__(self, *, changes_operand: bool) -> None:
        super().__init__()
        self.inner = Inner(changes_operand=changes_operand)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * 2
        return self.inner(y) + y.sum()  # type: ignore[no-any-return]


def test_a_module_that_stays_with_torch_changes_its_own_tensors() -> None:
    model, x = Outer(changes_operand=False), torch.randn(3, 4)
    assert torch.allclose(jit(model)(x), model(x))


def test_a_module_that_stays_with_torch_changes_no_tensor_of_others() -> None:
    with pytest.raises(NotImplementedError):
        jit(Outer(changes_operand=True))(torch.randn(3, 4))
