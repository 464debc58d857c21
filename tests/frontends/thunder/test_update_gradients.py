"""Gradients through updates in place: whichever view is updated, and whichever is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch

import thunder_fuser
from tests.frontends.thunder.aliasing import ARGUMENTS, gradients, interpreted
from tests.frontends.thunder.aliasing_programs import random_aliasing_program
from tests.frontends.thunder.programs import flat, jit
from tests.support.shares import each_value
from thunder_fuser.frontends.thunder.symbol import call_of


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


def view_of_a_view_of_an_argument(a: Any) -> Any:
    a.t()[1:].t().mul_(2)
    return a * a


def views_are_returned(a: Any) -> Any:
    v = a[1:]
    a.mul_(2)
    return v, a[0], a.t()


def argument_without_gradients(a: Any) -> Any:
    with torch.no_grad():
        a.mul_(2)
    return a * a


def filled_by_its_sum(a: Any) -> Any:
    a.copy_(a.sum())
    return a * a


def transposed_attribute(a: Any) -> Any:
    v = a.mT
    v.mul_(2)
    a.sin_()
    return v * a.T


def repeated_view(a: Any) -> Any:
    row = a.select(1, 1)
    y = row.repeat(2, 1)
    row.mul_(0.5)
    y.add_(1)
    return y, a * 1


def zeroed(a: Any) -> Any:
    a.zero_()
    a.add_(1)
    return a


def view_of_constants(a: Any) -> Any:
    v = a[0]
    a.fill_(2)
    return v, a, a.t() * 2


def copied_broadcast(a: Any) -> Any:
    c = a * 1
    c[0].copy_(-1)
    c.copy_(c[0] * 2)
    c[:, 1].copy_(a[0, :1].sum())
    a[:, 1].copy_(2.5)
    return c * a


def updated_by_its_new_name(a: Any) -> Any:
    v = a[:, ::2]
    v += v
    a.zero_()
    v.add_(1)
    v *= 2
    return v * a[:, :2]


def source_that_a_view_updates(a: Any) -> Any:
    b, c = a * 1, a.sin()
    b[1].mul_(2)
    c.add_(b)
    b[0].mul_(3)
    c[:1] *= b[1]
    return c * b


def overwritten_after_a_sine(a: Any) -> Any:
    """Its backward reads what was saved, and no gradient."""
    a.t().contiguous()[..., 1].sin_()
    v = a.reshape(-1, 1)
    v.t()[0, 1:].sin_()
    a.zero_()
    return v, a


def every_other_row(a: Any) -> Any:
    a[::2] = a[1::2] * 3
    a[:, 1:] += a[:, :-1] * 2
    a[..., 0] = 1
    a[1, 1:] *= 3
    return a * a


def rounded_quotient(a: Any) -> Any:
    b = a * 1
    b.div_(a + 3, rounding_mode="trunc")
    return a * b


PROGRAMS = [
    *(row, base_of_a_view, two_views, steps, without_gradients, two_memories, repeated),
    *(written_over, filled_by_rows, selected_and_narrowed, view_of_a_view, returned, argument),
    *(argument_that_is_returned, activation, sum_into_an_argument, view_of_an_argument),
    *(row_of_an_argument, argument_without_gradients, views_are_returned),
    *(view_of_a_view_of_an_argument, filled_by_its_sum, transposed_attribute, repeated_view),
    *(zeroed, view_of_constants, copied_broadcast, every_other_row, rounded_quotient),
    *(updated_by_its_new_name, source_that_a_view_updates, overwritten_after_a_sine),
]


@each_value(program=PROGRAMS, arguments=["results", "views"])
def test_the_gradient_is_that_of_eager_code(program: Any, arguments: str) -> None:
    """Of results, and of what the caller makes of an updated argument after the call."""
    x = torch.linspace(-1, 1.5, 6).reshape(2, 3)
    for reads_arguments in (False, True):
        asked: dict[str, Any] = {"reads_arguments": reads_arguments, "arguments": arguments}
        eager = gradients(program, x, **asked)
        with interpreted():
            ours = gradients(jit(program), x, **asked)
        for found, wanted in zip(ours, eager, strict=True):
            torch.testing.assert_close(found, wanted)


ACTIVATIONS = ["silu", "elu", "celu", "selu", "hardswish", "mish", "hardsigmoid", "leaky_relu"]


@each_value(name=ACTIVATIONS, cache=["constant values", "symbolic values"])
def test_an_activation_in_place_that_is_not_fused(name: str, cache: str) -> None:
    """What the backward reads of before the update is copied in the forward."""

    def program(a: torch.Tensor) -> torch.Tensor:
        return getattr(torch.nn.functional, name)(a * 2, inplace=True).sin()

    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    eager = gradients(program, x)
    with thunder_fuser.options(fuel=0):
        ours = gradients(jit(program, cache=cache), x)
    for found, wanted in zip(ours, eager, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_gradient_of_what_is_not_fused(program: Any) -> None:
    x = torch.linspace(-1, 1.5, 6).reshape(2, 3)
    eager = gradients(program, x, reads_arguments=True)
    with thunder_fuser.options(fuel=0):
        ours = gradients(jit(program), x, reads_arguments=True)
    for found, wanted in zip(ours, eager, strict=True):
        torch.testing.assert_close(found, wanted)


def reshaped(a: Any) -> Any:
    v = a.reshape(-1)
    a.mul_(2)
    return v * v, a


def reshaped_and_updated(a: Any) -> Any:
    v = a.t().reshape(-1)
    v.mul_(2)
    return v.sum() + a


def contiguous(a: Any) -> Any:
    v = a.contiguous()
    v.mul_(2)
    return v * a


def contiguous_of_a_result(a: Any) -> Any:
    b = a * 2
    v = b.t().contiguous()
    v.sin_()
    return v * v.sum() + b.t()


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "row-major": lambda: torch.arange(6.0).reshape(2, 3),
    "transposed": lambda: torch.arange(6.0).reshape(3, 2).t(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "program", [reshaped, reshaped_and_updated, contiguous, contiguous_of_a_result]
)
def test_strides_decide_what_is_a_view(program: Any, layout: str) -> None:
    x = LAYOUTS[layout]()
    with interpreted():
        ours = gradients(jit(program), x, reads_arguments=True)
    torch.testing.assert_close(ours, gradients(program, x, reads_arguments=True))


def test_strides_that_decide_otherwise_are_refused() -> None:
    compiled = jit(reshaped)
    with interpreted():
        compiled(torch.ones(3, 2).requires_grad_() * 1)
        x = torch.ones(2, 3).t().requires_grad_() * 1
        with pytest.raises(ValueError, match="reshape gives a view or a copy"):
            compiled(x)
        assert torch.equal(x, torch.ones(3, 2))
        compiled(torch.ones(3, 4).requires_grad_()[:, 1:3] * 1)


@pytest.mark.parametrize("fuel", [None, 0], ids=["fused", "not fused"])
def test_the_gradient_of_a_number_that_nothing_depends_on(fuel: int | None) -> None:
    def program(a: torch.Tensor) -> torch.Tensor:
        c = a * 1
        number = c[0, 0]
        c.mul_(2)
        return c if number is not None else number

    x = torch.linspace(-1, 1.5, 6).reshape(2, 3)
    with thunder_fuser.options(fuel=fuel):
        torch.testing.assert_close(gradients(jit(program), x), gradients(program, x))


def read_and_updated(a: Any) -> Any:
    c = a * 1
    part = c.narrow(1, 2, 1)
    c.mul_(2)
    return c, part


def filled_with_a_sum(a: Any) -> Any:
    c = a * 1
    c.copy_(c.sum())
    return c * 2


def filled_by_a_mask(a: Any) -> Any:
    c = a * 1
    c[c > 0] = c.sum()
    return c * 2


@pytest.mark.parametrize("program", [read_and_updated, filled_with_a_sum, filled_by_a_mask])
def test_the_gradient_with_symbolic_values(program: Any) -> None:
    """Sizes are read in the forward, and the rules are those of constant values."""
    x = torch.linspace(-1, 1.5, 6).reshape(2, 3)
    compiled = jit(program, cache="symbolic values")
    torch.testing.assert_close(gradients(compiled, x), gradients(program, x))
    backward = thunder.last_backward_traces(compiled)[-1]
    assert not any(s.sym.name == "shape" for s in backward.bound_symbols)


def product(a: Any, b: Any) -> Any:
    c = torch.zeros_like(a).add_(1)
    return a * b * c


@each_value(
    program=[
        lambda a, b: (a, a.mul_(b)),
        lambda a, b: (a.mul_(b), a),
        lambda a, b: (a, a.mul_(b).mul_(b), a),
        lambda a, b: (a.mul_(b), a * 1, a),
        lambda a, b: (a.mul_(b).view(6), a),
        lambda a, b: (b * 2, a, a.copy_(b * 3), a[0]),
        lambda a, b: (a[0].add_(b[0]), a, b.exp_()),
        lambda a, b: (a, b, a.add_(b), b.mul_(2), a),
    ],
    required=[True, False],
)
def test_an_argument_returned_beside_what_its_update_returned(program: Any, required: bool) -> None:
    """One tensor in two places: the gradient was that of the other place, zero."""
    found = []
    for function in (jit(program), program):
        q = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3).requires_grad_(required)
        p = torch.linspace(1, 2, 6, dtype=torch.float64).reshape(2, 3).requires_grad_()
        results = function(q * 1, p * 1)
        total = sum(((k + 1) * r.sin()).sum() for k, r in enumerate(results))
        found.append(torch.autograd.grad(total, [p, q][: 1 + required]))
        found[-1] += tuple(results)
    for ours, eager in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager)


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


def both(p: Any, x: Any) -> Any:
    x.mul_(2)
    y = x @ x.t()
    p[0].mul_(2)
    return y * p.sum()


def unseen(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x[0]


REFUSED: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], Any], str]] = {
    "a leaf": (argument, lambda x: x, "^a leaf Variable that requires"),
    "its row": (row_of_an_argument, lambda x: x, "leaf Variable that requires grad is being used"),
    "a view of it": (view_of_a_view_of_an_argument, lambda x: x, "^a view of a leaf Variable"),
    "given as a view": (argument, lambda x: x[0], "^a view of a leaf Variable"),
    "one of several views": (argument, lambda x: (x * 1).unbind(0)[1], "^Output 1 of UnbindBackw"),
    "a view that autograd does not know": (argument, lambda x: unseen(x * 1), "no_grad mode"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_autograd_does_not_let_be_updated_is_not(case: str) -> None:
    program, made, message = REFUSED[case]
    for function in (program, jit(program)):
        x = torch.linspace(-1, 1, 6).reshape(2, 3).clone().requires_grad_()
        given = made(x)
        before = given.detach().clone()
        with interpreted(), pytest.raises(RuntimeError, match=message):
            function(given)
        assert torch.equal(given.detach(), before)


def test_nothing_is_overwritten_before_a_leaf_is_refused() -> None:
    """Eager code has updated `x` by then."""
    p, x = torch.ones(2, 2).requires_grad_(), torch.ones(2, 2)
    with interpreted(), pytest.raises(RuntimeError, match=r"^a view of a leaf Variable"):
        jit(both)(p, x)
    assert torch.equal(x, torch.ones(2, 2))


def test_leaves_and_others_share_a_compilation() -> None:
    compiled = jit(argument)
    with interpreted():
        for _ in range(2):
            x = torch.linspace(-1, 1, 6).requires_grad_()
            compiled(x * 1).sum().backward()
            with pytest.raises(RuntimeError, match="leaf"):
                compiled(x)
    assert thunder.cache_misses(compiled) == 1


def detached(a: Any) -> Any:
    a.detach().mul_(2)
    return a * a


def test_a_leaf_is_updated_through_a_detached_view() -> None:
    found = []
    for program in (jit(detached), detached):
        p = torch.arange(3.0, requires_grad=True)
        with interpreted():
            program(p).sum().backward()
        assert p.is_leaf
        found.append((p.detach(), p.grad))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("program", [activation, argument])
def test_the_update_of_an_argument_is_one_kernel(program: Any) -> None:
    compiled = jit(program)
    x = torch.linspace(-1, 1.5, 6).requires_grad_()
    with interpreted():
        compiled(x * 1)
    (symbol,) = [s for s in thunder.last_traces(compiled)[-1].bound_symbols if s.sym.is_fusion]
    call = call_of(symbol)
    assert call is not None
    assert len(call.fusion.updates) == 1
    assert call.plan().kernels == 1


def test_a_backward_of_what_was_overwritten_raises() -> None:
    for program in (jit(argument), argument):
        x = torch.linspace(-1, 1.5, 6).requires_grad_()
        given = x * 1
        before = given.sin()
        with interpreted():
            program(given)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            before.sum().backward()


def into_a_buffer(buffer: Any, x: Any) -> Any:
    buffer[0] = x[1]
    buffer.t()[1].add_(1)
    return buffer * 2, buffer


def scaled(buffer: Any, x: Any) -> Any:
    buffer.mul_(x)


def teacher(buffer: Any, x: Any) -> Any:
    buffer.mul_(0.9).add_(x.detach().mean())
    return x * buffer


@pytest.mark.parametrize("program", [into_a_buffer, scaled, teacher])
def test_a_buffer_has_the_gradient_of_what_is_written(program: Any) -> None:
    """It requires gradients from then on, if what is written does."""
    found = []
    for function in (jit(program), program):
        x = torch.linspace(-1, 1.5, 6).reshape(2, 3).requires_grad_()
        buffer = torch.ones(2, 3)
        with interpreted():
            results = flat(function(buffer, x))
        read = [y for y in (*results, buffer) if isinstance(y, torch.Tensor)]
        sum((k + 1) * y.sin().sum() for k, y in enumerate(read)).backward()  # type: ignore[union-attr]
        found.append([*(y.detach() for y in read), x.grad, torch.tensor(buffer.requires_grad)])
    torch.testing.assert_close(*found)


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
    "Unknown attribute",
    "Shapes were expected",
    "gradients take for",
    "Detected a cycle while swapping",
    "refers to a single memory location",
)
"""Errors of what Thunder does not trace."""


MODES: dict[str, dict[str, Any]] = {
    **{f"fused, {name}": {"arguments": name} for name in ARGUMENTS},
    "not fused": {"fuel": 0},
}


@pytest.mark.parametrize(
    ("mode", "seeds"),
    [
        # A plain run has every other program in one mode, and a campaign all of them in each.
        *(pytest.param(m, range(k, 73, 2 * len(MODES) + 1), id=m) for k, m in enumerate(MODES)),
        *(
            pytest.param(m, range(73), id=f"{m}, all seeds", marks=pytest.mark.campaign)
            for m in MODES
        ),
    ],
)
def test_gradients_of_random_programs(mode: str, seeds: range) -> None:
    """Programs that eager code differentiates have its gradients, or raise what is known."""
    found: Counter[str] = Counter()
    options = {"arguments": "results", "fuel": None, "cache": "constant values", **MODES[mode]}
    for seed in seeds:
        program = random_aliasing_program(seed)
        asked = {"reads_arguments": bool(seed % 2), "arguments": options["arguments"]}
        try:
            eager = gradients(program.function, *program.inputs(), **asked)
        except RuntimeError:
            continue
        try:
            with interpreted(), thunder_fuser.options(fuel=options["fuel"]):
                compiled = jit(program.function, cache=options["cache"])
                ours = gradients(compiled, *program.inputs(), **asked)
        except (RuntimeError, AttributeError) as error:
            if any(text in str(error) for text in KNOWN):
                continue
            raise
        found["right"] += 1
        for a, b in zip(ours, eager, strict=True):
            torch.testing.assert_close(a, b, msg=f"{seed}\n{program.source}")
    assert found["right"] >= len(seeds) // 4
