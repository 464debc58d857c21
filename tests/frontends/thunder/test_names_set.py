"""Global names, and names of enclosing functions, that a compiled function binds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor

from tests.frontends.thunder.programs import jit

STEP: Any = 0
TOTAL: Any = None
KIND: Any = None

Program = Callable[[Tensor], Tensor]
Read = Callable[[], Any]


def a_global_number() -> tuple[Program, Read]:
    def run(x: Tensor) -> Tensor:
        global STEP
        STEP += 1
        return x * STEP

    return run, lambda: STEP


def a_global_tensor() -> tuple[Program, Read]:
    def run(x: Tensor) -> Tensor:
        global TOTAL
        TOTAL = x.detach() * 2 if TOTAL is None else TOTAL + x.detach()
        return x * TOTAL

    return run, lambda: TOTAL


def a_global_string() -> tuple[Program, Read]:
    def run(x: Tensor) -> Tensor:
        global KIND
        KIND = {None: "first", "first": "second!"}.get(KIND)
        return x if KIND is None else x * len(KIND)

    return run, lambda: len(KIND or "")


def global_bytes() -> tuple[Program, Read]:
    """A value that an epilogue does not print."""

    def run(x: Tensor) -> Tensor:
        global KIND
        KIND = bytes(n + 65 for n in x.shape)
        return x * 2

    return run, lambda: [*(KIND or b"")]


def a_global_of_a_helper() -> tuple[Program, Read]:
    return lambda x: helper(x) + helper(x), lambda: STEP


def helper(x: Tensor) -> Tensor:
    global STEP
    STEP = STEP + 2
    return x * STEP


def a_number() -> tuple[Program, Read]:
    step = 0

    def run(x: Tensor) -> Tensor:
        nonlocal step
        step += 1
        step += 1
        return x * step

    return run, lambda: step


def a_tensor() -> tuple[Program, Read]:
    total = torch.ones(3)

    def run(x: Tensor) -> Tensor:
        nonlocal total
        total = total + x.detach()
        return x * total

    return run, lambda: total


def a_name_of_an_outer_function() -> tuple[Program, Read]:
    kept: list[Any] = []

    def run(x: Tensor) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            nonlocal kept
            kept = [*kept[-1:], y.detach()]
            return y * len(kept)

        return inner(x) + inner(x * 2)

    return run, lambda: kept


MAKERS = [
    a_global_number,
    a_global_tensor,
    a_global_string,
    global_bytes,
    a_global_of_a_helper,
    a_number,
    a_tensor,
    a_name_of_an_outer_function,
]


def called(
    compile: Callable[[Program], Any], make: Callable[[], tuple[Program, Read]]
) -> list[Any]:
    """Return results, gradients, and what is bound, after each of a few calls."""
    global STEP, TOTAL, KIND
    STEP, TOTAL, KIND = 0, None, None
    program, read = make()
    function, found = compile(program), []
    for k in range(4):
        x = torch.arange(3.0).add(k).requires_grad_()
        y = function(x)
        found.append([y, torch.autograd.grad(y.sum(), x), read()])
    return found


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_names_are_bound_as_in_python(make: Callable[[], tuple[Program, Read]]) -> None:
    torch.testing.assert_close(called(jit, make), called(lambda f: f, make))


def test_a_counter_with_symbolic_values_has_one_program() -> None:
    program, read = a_number()
    compiled = jit(program, cache="symbolic values")
    for k in range(1, 4):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), x * 2 * k)
        assert read() == 2 * k
    assert thunder.cache_misses(compiled) == 1


def test_names_keep_their_values_when_a_trace_fails() -> None:
    step: Any = 0

    def run(x: Tensor) -> Tensor:
        nonlocal step
        step = x * 2
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        jit(run)(torch.randn(3))
    assert step == 0
