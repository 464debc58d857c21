"""Gradients through updates in place: whichever view is updated, and whichever is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch

import thunder_fuser
from tests.frontends.thunder.aliasing import interpreted
from tests.frontends.thunder.aliasing_programs import random_aliasing_program
from tests.frontends.thunder.programs import flat, jit


def row(a: Any) -> Any:
    c = a * 1
    c[0].mul_(2)
    return c * c


def base_of_a_view(a: Any) -> Any:
    c = a * 1
    v = c.view(-1)
    c.mul_(2)
    return v * v


def two_views(a: Any) -> Any:
    c = a * 1
    v, w = c[:, 1:], c.t()
    v.mul_(3)
    return (w * w).sum() + v.sum()


def steps(a: Any) -> Any:
    c = a * 1
    c[:, ::2].mul_(2)
    c.sin_()
    c[1].add_(c[0])
    return c.exp()


def without_gradients(a: Any) -> Any:
    c = a * 1
    with torch.no_grad():
        c[0].mul_(2)
    return c * c


def two_memories(a: Any) -> Any:
    c = a * 1
    d = c * 2
    c[0].mul_(2)
    d[1].mul_(3)
    return c * d + c.t().sum()


def repeated(a: Any) -> Any:
    b = a.repeat(2, 1)
    b[0].mul_(2)
    return b * b


def written_over(a: Any) -> Any:
    c = a * 1
    c[0].copy_(a[1])
    return c * c


def filled_by_rows(a: Any) -> Any:
    c = torch.zeros(2, 3, dtype=a.dtype)
    c[0].add_(a[1])
    return c * c


def selected_and_narrowed(a: Any) -> Any:
    c = a * 1
    c.select(1, 1).mul_(2)
    c.narrow(1, 1, 2).sin_()
    return c.unsqueeze(0) * c


def view_of_a_view(a: Any) -> Any:
    c = a * 1
    v = c[0]
    v[1:].mul_(5)
    return v * v.sum() + c.sum()


def returned(a: Any) -> Any:
    c = a * 1
    v = c[0]
    c.mul_(2)
    return v, c


def argument(a: Any) -> Any:
    a.mul_(2)
    return a * a


def argument_that_is_returned(a: Any) -> Any:
    return a.mul_(2)


def activation(a: Any) -> Any:
    return torch.nn.functional.relu(a, inplace=True) * a


def sum_into_an_argument(a: Any) -> Any:
    a += a.sum()
    return a.exp()


def view_of_an_argument(a: Any) -> Any:
    v = a.view(3, 2)
    a.sin_()
    return v * v


def row_of_an_argument(a: Any) -> Any:
    a[0] = 2.0
    return a


def argument_without_gradients(a: Any) -> Any:
    with torch.no_grad():
        a.mul_(2)
    return a * a


PROGRAMS = [
    *(row, base_of_a_view, two_views, steps, without_gradients, two_memories, repeated),
    *(written_over, filled_by_rows, selected_and_narrowed, view_of_a_view, returned, argument),
    *(argument_that_is_returned, activation, sum_into_an_argument, view_of_an_argument),
    *(row_of_an_argument, argument_without_gradients),
]


def gradients(
    program: Callable[..., Any], *inputs: torch.Tensor, reads_arguments: bool = False
) -> list[torch.Tensor]:
    """Values of results and arguments, then the gradients of leaves that arguments are made of."""
    leaves = [x.double().requires_grad_() for x in inputs]
    given = [x * 1 for x in leaves]
    results = [x for x in flat(program(*given)) if isinstance(x, torch.Tensor)]
    read = [x for x in (*results, *(given if reads_arguments else ())) if x.requires_grad]
    values = [x.detach().clone() for x in (*results, *given)]
    if read:
        weights = [torch.arange(1, x.numel() + 1).reshape(x.shape) for x in read]
        sum((x * w).sum() for x, w in zip(read, weights, strict=True)).backward()  # type: ignore[union-attr]
    return [*values, *(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)]


@pytest.mark.parametrize("reads_arguments", [False, True], ids=["results", "arguments too"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_gradient_is_that_of_eager_code(program: Any, reads_arguments: bool) -> None:
    """Of results, and of what the caller makes of an updated argument after the call."""
    x = torch.linspace(-1, 1.5, 6).reshape(2, 3)
    eager = gradients(program, x, reads_arguments=reads_arguments)
    ours = gradients(jit(program), x, reads_arguments=reads_arguments)
    for found, wanted in zip(ours, eager, strict=True):
        torch.testing.assert_close(found, wanted)


def product(a: Any, b: Any) -> Any:
    c = torch.zeros_like(a).add_(1)
    return a * b * c


@pytest.mark.parametrize(
    "call",
    [
        lambda f, q: f(q, q),
        lambda f, q: f(q, q.detach()),
        lambda f, q: f(q.detach(), q),
        lambda f, q: f(q, q.view(6)[:6].view(2, 3)),
    ],
    ids=["twice", "first", "second", "a view"],
)
def test_an_argument_twice_beside_an_update(call: Any) -> None:
    q = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3).requires_grad_()
    found = []
    for program in (jit(product), product):
        (gradient,) = torch.autograd.grad(call(program, q).sum(), q)
        found.append(gradient)
    torch.testing.assert_close(*found)


def test_a_leaf_is_not_overwritten() -> None:
    x = torch.linspace(-1, 1, 6).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf"):
        jit(argument)(x)
    assert torch.equal(x.detach(), torch.linspace(-1, 1, 6))


def momentum(p: Any, m: Any, g: Any) -> Any:
    with torch.no_grad():
        m.mul_(0.9).add_(g)
        p.add_(m, alpha=-0.1)
    return (p * 2).sum()


@pytest.mark.parametrize("wanted", [True, False], ids=["gradients", "no_grad"])
def test_a_leaf_is_updated_where_gradients_are_off(wanted: bool) -> None:
    """In the function, or around the call: what optimizers do."""
    found = []
    for program in (jit(momentum), momentum):
        p, m = torch.arange(3.0, requires_grad=True), torch.zeros(3)
        with torch.set_grad_enabled(wanted):
            loss = program(p, m, torch.ones(3))
        if wanted:
            loss.backward()
            assert p.grad is not None
        assert p.is_leaf
        found.append([p.detach(), m, *([p.grad] if wanted else [])])
    torch.testing.assert_close(*found)


def test_an_argument_is_updated_where_gradients_are_off() -> None:
    compiled = jit(argument)
    x = torch.arange(3.0, requires_grad=True)
    with torch.no_grad():
        assert compiled(x).tolist() == [0, 4, 16]
    assert x.tolist() == [0, 2, 4]
    assert x.is_leaf


@pytest.mark.parametrize("program", [argument, argument_that_is_returned])
def test_results_and_calls_as_one_node_of_autograd(program: Any) -> None:
    """As thunderfx connects them, which says for each result whether it has a gradient."""
    options = {"thunderfx_disable_split_autograd": True, "is_differentiable_outputs": (True,)}
    x = torch.linspace(-1, 1.5, 6).reshape(2, 3)
    compiled = thunder.jit(program, executors=[thunder_fuser.executor], **options)
    ours = gradients(compiled, x, reads_arguments=True)
    torch.testing.assert_close(ours, gradients(program, x, reads_arguments=True))


def diagonal_of_a_parameter(p: Any) -> Any:
    with torch.no_grad():
        p.diagonal().mul_(2)
    return p * 2


@pytest.mark.parametrize("wanted", [True, False], ids=["gradients", "no_grad"])
def test_a_gathered_view_is_a_view_where_gradients_are_off(wanted: bool) -> None:
    found = []
    for program in (jit(diagonal_of_a_parameter), diagonal_of_a_parameter):
        p = torch.arange(9.0).reshape(3, 3).requires_grad_()
        with torch.set_grad_enabled(wanted):
            found.append((program(p).detach(), p.detach()))
    torch.testing.assert_close(*found)


def diagonal(a: Any) -> Any:
    c = a * 1
    c.diagonal().mul_(2)
    return c


def diagonal_of_the_updated(a: Any) -> Any:
    c = a * 1
    d = c.diagonal()
    c.mul_(2)
    return d * 2


@pytest.mark.parametrize("program", [diagonal, diagonal_of_the_updated])
def test_updates_that_a_gathered_view_shows_are_refused(program: Any) -> None:
    """With gradients; without, torch makes the view."""
    x = torch.linspace(-1, 1.5, 6).reshape(2, 3)
    with pytest.raises(NotImplementedError, match="diagonal"):
        jit(program)(x.clone().requires_grad_())
    torch.testing.assert_close(jit(program)(x), program(x))


KNOWN = (
    "leaf Variable",
    "created in no_grad mode",
    "Unknown attribute",
    "Shapes were expected",
    "gradients take for",
)
"""Errors of what Thunder does not trace, or of views of an argument that torch finds detached."""


@pytest.mark.parametrize("first", [0, 35])
def test_gradients_of_random_programs(first: int) -> None:
    """Programs that eager code differentiates have its gradients, or raise what is known."""
    found: Counter[str] = Counter()
    for seed in range(first, first + 35):
        program = random_aliasing_program(seed)
        try:
            eager = gradients(program.function, *program.inputs())
        except RuntimeError:
            continue
        try:
            with interpreted():
                compiled = thunder.jit(program.function, executors=[thunder_fuser.executor])
                ours = gradients(compiled, *program.inputs())
        except (RuntimeError, AttributeError) as error:
            if any(text in str(error) for text in KNOWN):
                continue
            raise
        found["right"] += 1
        if "contiguous" in program.source:
            # It may be a copy or not, which no trace says.
            continue
        for a, b in zip(ours, eager, strict=True):
            torch.testing.assert_close(a, b, msg=f"{seed}\n{program.source}")
    assert found["right"] >= 8
