"""Calls that a compiled function cannot make raise, with the reason, and leave torch as it was."""

from __future__ import annotations

import array
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import jit
from thunder_fuser.frontends.thunder.patches.patched import UntraceableError

linear = nn.Linear(3, 3)
made_before = torch.func.grad(lambda x: x.pow(3).sum())


def a_full_backward_hook(x: Tensor) -> Tensor:
    found: Tensor = hooked(x)
    return found


hooked = nn.Linear(3, 3)
hooked.register_full_backward_hook(lambda module, inputs, outputs: None)


def a_hook(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 3)  # type: ignore[no-untyped-call]
    return y


def a_backward(x: Tensor) -> Tensor:
    y = (x * 2).sum()
    y.backward()
    return y


lazy = nn.LazyLinear(3)


def a_lazy_module(x: Tensor) -> Tensor:
    found: Tensor = lazy(x)
    return found


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "grad": lambda x: torch.func.grad(lambda y: y.pow(3).sum())(x),
    "grad_impl": lambda x: made_before(x),
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (x,))[1],
    "vjp": lambda x: torch.func.vjp(torch.sin, x)[0],
    "jacrev": lambda x: torch.func.jacrev(torch.sin)(x),
    "torch.autograd.grad": lambda x: torch.autograd.grad((x * 2).sum(), x)[0],
    "BackwardHook": a_full_backward_hook,
    "register_hook": a_hook,
    "backward": a_backward,
    "equal": lambda x: x if torch.equal(x, x * 2) else -x,
    "torch.Tensor.equal": lambda x: x if x.equal(x * 2) else -x,
    "allclose": lambda x: x if torch.allclose(x, x * 2) else -x,
    "is_nonzero": lambda x: x if x[0].is_nonzero() else -x,
    "tolist": lambda x: x * x.tolist()[0],
    "numpy": lambda x: x * x.detach().numpy()[0],
    "t_": lambda x: x.t_(),
    "resize_": lambda x: (x * 2).resize_(1),
    "_infer_parameters": a_lazy_module,
    "seed": lambda x: x * (torch.seed() % 2),
    "manual_seed": lambda x: torch.manual_seed(3) and torch.nn.functional.dropout(x),
    "get_rng_state": lambda x: x * torch.get_rng_state()[0],
    "fork_rng": lambda x: x * 2 if torch.random.fork_rng() else x,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_call_raises_before_it_begins(name: str) -> None:
    x = torch.randn(3, requires_grad=True)
    called = name.rpartition(".")[2]
    with pytest.raises(NotImplementedError, match=f"^{called} in a compiled function: "):
        jit(PROGRAMS[name])(x)
    # Inside of a transform this raises.
    torch.ones(3).requires_grad_()


def test_a_lazy_module_is_compiled_once_it_has_sizes() -> None:
    module = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    compiled, x = jit(module), torch.randn(3, 5)
    with pytest.raises(NotImplementedError, match="call the module once"):
        compiled(x)
    expected = module(x)
    assert torch.allclose(compiled(x), expected)
    assert torch.allclose(jit(module)(x), expected)


class Early(torch.nn.Module):
    """Sets an attribute before `Module.__init__`, as `nn.PReLU` does."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.nn.Linear(2, 2)(x),
        lambda x: torch.nn.PReLU()(x),
        lambda x: torch.nn.BatchNorm1d(2)(x),
        lambda x: x * torch.nn.Parameter(torch.ones(2)),
    ],
)
def test_parameters_that_a_program_makes(program: Callable[[Tensor], Tensor]) -> None:
    """The error was of a function written in C, `_make_subclass`."""
    with pytest.raises(NotImplementedError, match=r"torch.nn.Parameter in a compiled.*__init__"):
        jit(program)(torch.ones(2, 2))


def test_modules_without_parameters_that_a_program_makes() -> None:
    x = torch.tensor([[-1.0, 2.0]])
    torch.testing.assert_close(jit(lambda x: Early(3.0)(torch.nn.ReLU()(x)))(x), x.relu() * 3)


@pytest.mark.parametrize(
    ("program", "view"),
    [
        (lambda x: x.as_strided_((2,), (1,)), r"x = x\.as_strided\("),
        (lambda x: x.resize_(4), r"x = x\.reshape\("),
    ],
)
def test_the_call_that_returns_a_view_is_named(
    program: Callable[[Tensor], Tensor], view: str
) -> None:
    with pytest.raises(NotImplementedError, match=view):
        jit(lambda x: program(x * 2))(torch.ones(2, 2))


@pytest.mark.parametrize(
    ("iterator", "advance"),
    [
        (itertools.count(1), lambda x, it: x * next(it)),
        (iter([1, 2, 3]), lambda x, it: x * sum(itertools.islice(it, 2))),
        ((k for k in (1, 2)), lambda x, it: [x * k for k in it]),
    ],
)
def test_iterators_of_the_caller_are_not_advanced(iterator: Any, advance: Any) -> None:
    """Later calls kept the elements of the first one."""
    with pytest.raises(UntraceableError, match="call next outside"):
        jit(lambda x: advance(x, iterator))(torch.ones(2))
    assert next(iterator) == 1


def _add_to(x: torch.Tensor, counts: Any) -> torch.Tensor:
    counts += 1
    return x


def _write_to(x: torch.Tensor, counts: Any) -> torch.Tensor:
    counts[0] += 1
    return x


@pytest.mark.parametrize(
    ("make", "write"),
    [
        *((make, _write_to) for make in (lambda: np.zeros(1), lambda: bytearray(1))),
        (lambda: array.array("d", [0.0]), _write_to),
        (lambda: np.zeros(1), _add_to),
    ],
)
def test_arrays_of_the_caller_are_not_written_to(make: Any, write: Any) -> None:
    """The first call alone did it."""
    counts = make()
    with pytest.raises(UntraceableError, match="keep a tensor or a list"):
        jit(lambda x: write(x, counts))(torch.ones(2))
    assert counts[0] == 0

    def program(x: torch.Tensor) -> torch.Tensor:
        made = make()
        made[0] += 1
        return x * float(made[0])

    torch.testing.assert_close(jit(program)(torch.ones(2)), torch.ones(2))


def test_iterators_that_a_program_makes_and_those_in_python_advance() -> None:
    class Count:
        def __init__(self) -> None:
            self.last = 0

        def __next__(self) -> int:
            self.last += 1
            return self.last

    def program(x: torch.Tensor, kept: Count) -> torch.Tensor:
        made = zip([1, 2], (k for k in (3, 4)), strict=True)
        return x * next(kept) + sum(a * b for a, b in made) + next(iter([5]))

    compiled, (ours, theirs) = jit(program), (Count(), Count())
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(2), ours), program(torch.ones(2), theirs))
