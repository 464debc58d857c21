"""Attributes of tensors that a program sets, and gradients that it reads, are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import jit

_DATA = r"sets x.data of a tensor: .*x.data.copy_\(y\)"
_GRAD = "sets x.grad of a tensor: gradients are accumulated after the call"
_OTHER = "sets x.tag of a tensor: .* set it outside"
_FLAG = r"requires_grad_\("
_READ = "reads x.grad of a tensor"


class Momentum(nn.Module):
    """An encoder and its moving average."""

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow = nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)


def in_a_loop(m: Momentum, x: Tensor) -> Any:
    for slow, fast in zip(m.slow.parameters(), m.fast.parameters(), strict=True):
        slow.data = slow.data * 0.5 + fast.data * 0.5
    return m.slow(x)


def by_name(m: Momentum, x: Tensor) -> Any:
    m.slow.weight.data = m.fast.weight.data * 2
    return m.slow(x)


def by_function(m: Momentum, x: Tensor) -> Any:
    setattr(m.slow.weight, "data", x[:3, :3])  # noqa: B010
    return m.slow(x)


def of_a_result(m: Momentum, x: Tensor) -> Any:
    y = m.fast(x)
    y.data = x * 2
    return y


def gradient(m: Momentum, x: Tensor) -> Any:
    m.fast.weight.grad = None
    return m.fast(x)


def tag(m: Momentum, x: Tensor) -> Any:
    for p in m.parameters():
        p.tag = 1
    return m.fast(x)


def flag_of_a_parameter(m: Momentum, x: Tensor) -> Any:
    y = m.slow(x)
    m.slow.weight.requires_grad = True
    return y + m.slow(x)


def flag_of_a_result(m: Momentum, x: Tensor) -> Any:
    y = m.fast(x)
    y.requires_grad = False
    return y


def read(m: Momentum, x: Tensor) -> Any:
    return x if m.fast.weight.grad is None else x + m.fast.weight.grad


CASES = [
    *((program, _DATA) for program in (in_a_loop, by_name, by_function, of_a_result)),
    *((gradient, _GRAD), (tag, _OTHER), (read, _READ)),
    *((flag_of_a_parameter, _FLAG), (flag_of_a_result, _FLAG)),
]


@pytest.mark.parametrize(("program", "message"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_a_change_is_refused(program: Callable[..., Any], message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        jit(program)(Momentum(), torch.ones(4, 3))


def test_what_is_asked_to_be_written_runs() -> None:
    def program(m: Momentum, x: Tensor) -> Any:
        for slow, fast in zip(m.slow.parameters(), m.fast.parameters(), strict=True):
            slow.data.copy_(slow.data * 0.5 + fast.data * 0.5)
        y = m.slow(x)
        y.scale = 2
        m.slow.weight.requires_grad = False
        return y * y.scale

    ours, theirs, x = Momentum(), Momentum(), torch.randn(4, 3)
    theirs.load_state_dict(ours.state_dict())
    run = jit(program)
    for _ in range(2):
        torch.testing.assert_close(run(ours, x), program(theirs, x))
        torch.testing.assert_close([*ours.parameters()], [*theirs.parameters()])


def test_parts_of_complex_numbers_are_written() -> None:
    """They were left out, silently, where the tensor is computed."""

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = y * 2
        z.real = x.imag
        z.imag = z.real + 1
        x.imag = x.real
        return z, x.sum()

    inputs = [torch.randn(4, dtype=torch.complex64) for _ in range(2)]
    copies = [x.clone() for x in inputs]
    found, expected = jit(program)(*inputs), program(*copies)
    torch.testing.assert_close((*found, *inputs), (*expected, *copies))
