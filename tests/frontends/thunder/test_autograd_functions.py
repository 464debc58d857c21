"""Autograd functions of the user: contexts, and what they ask of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import check, flat, jit
from tests.support.shares import each_value


class Doubled(torch.autograd.Function):
    """`x * factor`, with twice its gradient."""

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x.sin() * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        x, ctx.factor = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, output = ctx.saved_tensors
        return 2 * gradient * x.cos() * ctx.factor + 0 * output, None


class Product(torch.autograd.Function):
    """A product whose backward computes what is needed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        needs_x, needs_y = ctx.needs_input_grad
        return gradient * y if needs_x else None, gradient * x * 3 if needs_y else None


class Sum(torch.autograd.Function):
    """`x * y + z`, with gradients for two of three tensors, and None for an option."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, z: Tensor, options: dict[str, int]) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y + z * options["factor"]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        return gradient * y, gradient * x, None, None


@pytest.mark.parametrize(
    "apply",
    [
        lambda x, y: Product.apply(x, x),
        lambda x, y: Product.apply(x.sin(), y) + Product.apply(y, y),
        lambda x, y: Sum.apply(x, x, x, {"factor": 2}),
        lambda x, y: Sum.apply(x, y, x, {"factor": 2}),
        lambda x, y: Sum.apply(y, x, x, {"factor": 2}),
        lambda x, y: (lambda z: Sum.apply(z, z, y, {"factor": 2}))(x.cos()),
    ],
    ids=["both", "two calls", "all", "first and last", "the last two", "computed"],
)
def test_tensors_that_are_given_twice(apply: Callable[[Tensor, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    given = torch.randn(2, 3, 4, dtype=torch.float64)
    runs = []
    for run in (jit(apply), apply):
        x, y = (t.clone().requires_grad_() for t in given)
        found = run(x, y)
        gradients = torch.autograd.grad(found.sum(), (x, y), allow_unused=True)
        runs.append((found, *(torch.zeros_like(x) if g is None else g for g in gradients)))
    torch.testing.assert_close(*runs)


def test_contexts() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return Product.apply(Doubled.apply(x, 0.5) + 1, y)

    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 4, dtype=torch.float64)
    for needs in ((True, False), (True, True), (False, True)):
        inputs = [t.clone().requires_grad_(need) for t, need in zip((x, y), needs, strict=True)]
        wanted = [t for t in inputs if t.requires_grad]
        runs = [(run(*inputs), wanted) for run in (jit(program), program)]
        torch.testing.assert_close(*(found for found, _ in runs))
        gradients = [torch.autograd.grad(found.sum(), of) for found, of in runs]
        torch.testing.assert_close(*gradients)


class SumAndProduct(torch.autograd.Function):
    """Two results, with a wrong gradient for one of the operands."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx: Any, product: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return product * y + total, product * x + total * 3


class Marked(torch.autograd.Function):
    """Integers, and a tensor through which no gradient goes."""

    @staticmethod
    def forward(x: Tensor, factor: float) -> tuple[Tensor, ...]:
        return x * factor, x.argmax(-1), x * 3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, ...]) -> None:
        ctx.factor = inputs[1]
        ctx.mark_non_differentiable(output[1], output[2])

    @staticmethod
    def backward(ctx: Any, scaled: Tensor, places: Tensor, tripled: Tensor) -> tuple[Tensor, None]:
        return scaled * ctx.factor + tripled * 100, None


class Rows(torch.autograd.Function):
    """One result a row, whose gradients are not materialized."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(row * 2 for row in x.unbind(0))

    @staticmethod
    def backward(ctx: Any, *rows: Tensor | None) -> Tensor:
        return torch.stack([torch.zeros(4) if row is None else row * 5 for row in rows])


class Reversed(torch.autograd.Function):
    """A gradient reversal layer: its argument itself, with the negated gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -2 * gradient


class ReversedView(Reversed):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)


class ReversedContiguous(Reversed):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.contiguous()


class Passed(torch.autograd.Function):
    """A result, and both arguments."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(y)
        return y, x * y, x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        first, product, last = gradients
        (y,) = ctx.saved_tensors
        return first * y + 2 * product + 3 * last, first - product


REVERSED: dict[str, Callable[[Any, Tensor], Any]] = {
    "alone": lambda apply, x: apply(x),
    "beside another": lambda apply, x: (apply(x), x * 3),
    "twice": lambda apply, x: apply(apply(x)),
    "of a sum": lambda apply, x: apply(x + 1),
    "in a sum": lambda apply, x: apply(x).sin() + x,
}


@each_value(name=list(REVERSED), kind=[Reversed, ReversedView, ReversedContiguous])
def test_a_result_that_is_an_argument(kind: type[torch.autograd.Function], name: str) -> None:
    """It has the gradient of the function, and is another tensor on the same memory."""

    def program(x: Tensor) -> Any:
        return REVERSED[name](kind.apply, x)

    torch.manual_seed(0)
    check(program, torch.randn(3, 4, dtype=torch.float64, requires_grad=True))
    x = torch.randn(3, 4, requires_grad=True)
    first = flat(jit(program)(x))[0]
    assert first is not x
    assert first.grad_fn is not None


def test_arguments_among_several_results() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 4, dtype=torch.float64)
    for needs in ((True, False), (True, True), (False, True)):
        inputs = [t.clone().requires_grad_(need) for t, need in zip((x, y), needs, strict=True)]
        check(lambda x, y: Passed.apply(x, y), *inputs)


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "two": lambda x: SumAndProduct.apply(x, x.sin()),
    "first": lambda x: SumAndProduct.apply(x, x.sin())[0] * 2,
    "second": lambda x: SumAndProduct.apply(x, x.sin())[1] * 2,
    "nested": lambda x: SumAndProduct.apply(*SumAndProduct.apply(x, x * 2)),
    "marked": lambda x: [y * x for y in Marked.apply(x, 0.5)[::2]],
    "integers": lambda x: [y * 2 for y in Marked.apply(x, 0.5)],
    "rows": lambda x: [row * 2 for row in Rows.apply(x)],
    "one row": lambda x: Rows.apply(x)[1] * 2,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_several_results(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64)
    check(PROGRAMS[name], x.clone().requires_grad_())
    check(PROGRAMS[name], x)


class MaskedSoftmax(torch.autograd.Function):
    """A softmax of what a mask keeps, zeros elsewhere, as in transformers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, dim: int) -> Tensor:
        ctx.dim = dim
        y = torch.softmax(x.masked_fill(~mask, -1e30), dim)
        y.masked_fill_(~mask, 0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (y,) = ctx.saved_tensors
        return gradient * y - y * (gradient * y).sum(ctx.dim, keepdim=True), None, None


class Overwritten(torch.autograd.Function):
    """Reads memory before and after it is updated, also through a view, in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x * 2
        y.add_(1)
        y.view(-1)[:2].mul_(3)
        product = y * x
        y.sin_()
        ctx.save_for_backward(x, y)
        return product + y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        found = gradient * y
        found.add_(x)
        found[0].mul_(2)
        return found


class Filled(torch.autograd.Function):
    """Two results, of which one is filled element by element; one gradient is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.zeros_like(x)
        found[..., 0] = x[..., 0]
        found += y
        return found, found * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, of_twice: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.zeros_like(gradient)
        found[..., 0] = (gradient + 2 * of_twice)[..., 0]
        return found, gradient + 2 * of_twice


def softmax_of_updated(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.add_(1)
    z = MaskedSoftmax.apply(y, x > -0.3, -1)
    y.mul_(3)
    return z, y


UPDATING: dict[str, Callable[[Tensor], Any]] = {
    "softmax": lambda x: MaskedSoftmax.apply(x, x > -0.3, -1),
    "softmax, 16 bits": lambda x: MaskedSoftmax.apply(x.bfloat16(), x > -0.3, -1).float(),
    "softmax of what is updated": softmax_of_updated,
    "result is updated": lambda x: Overwritten.apply(x.sin()).mul_(2) * x,
    "overwritten": lambda x: Overwritten.apply(x.sin()) * 2,
    "of an argument": lambda x: Overwritten.apply(x),
    "two results": lambda x: Filled.apply(x, x.cos()),
    "given twice": lambda x: Filled.apply(x, x)[1],
}


@pytest.mark.parametrize("name", UPDATING)
def test_a_function_that_updates_what_it_makes(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    runs = []
    for run in (jit(UPDATING[name]), UPDATING[name]):
        leaf = x.clone().requires_grad_()
        found = flat(run(leaf))
        sum((y * torch.arange(12.0).view(3, 4)).sum() for y in found).backward()
        runs.append((found, leaf.grad))
        with torch.no_grad():
            runs[-1] += (flat(run(x)),)
    torch.testing.assert_close(*runs)


class Negated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.neg_()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


class Dirty(Negated):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.neg_()


@pytest.mark.parametrize(
    ("kind", "message"), [(Negated, "Negated, an auto"), (Dirty, "mark_dirty")]
)
def test_a_function_that_updates_its_argument_is_refused(kind: Any, message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        jit(lambda x: kind.apply(x * 2))(torch.ones(3, requires_grad=True))


class KeepsAttributes(torch.autograd.Function):
    """Keeps what it computes as attributes of the context, beside what it saves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = x.exp()
        ctx.save_for_backward(x)
        ctx.kept, ctx.factor = (result, x * 3), 2
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        first, second = ctx.kept
        return gradients[0] * first * x * ctx.factor + second


class KeepsInContext(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)
        ctx.x, ctx.doubled = inputs[0], output * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        return gradients[0] * result * ctx.x + ctx.doubled


@pytest.mark.parametrize("function", [KeepsAttributes, KeepsInContext])
def test_tensors_that_are_attributes_of_the_context(function: Any) -> None:
    x = torch.arange(1.0, 5.0, requires_grad=True)
    for program in (function.apply, lambda x: function.apply(x * 1) * 3):
        (found,) = torch.autograd.grad(jit(program)(x).sum(), x)
        (expected,) = torch.autograd.grad(program(x).sum(), x)
        torch.testing.assert_close(found, expected)
