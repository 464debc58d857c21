"""Gradients where a call's formula has an edge: norms of 0, targets of 0, numbers as operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import thunder_fuser
from tests.frontends.thunder.programs import check, jit
from tests.support.shares import each_value

Program = Callable[..., Tensor]


def gradients(program: Program, inputs: Sequence[Tensor]) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    result = program(*leaves)
    result.backward(torch.linspace(-1, 2, result.numel()).reshape(result.shape).to(result.dtype))
    return [result.detach(), *(x.grad for x in leaves if x.grad is not None)]


def same_as_eager(program: Program, *inputs: Tensor) -> None:
    """Results and gradients, also where these are NaN or infinite."""
    ours, eager = gradients(jit(program), inputs), gradients(program, inputs)
    assert len(ours) == len(eager)
    for found, expected in zip(ours, eager, strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)


ROWS = torch.tensor(
    [[0.0, 0, 0, 0], [1e-9, -1e-9, 1e-9, 0], [0.25, 0, 0, 0], [0.1, 0.2, 0.0, 0.1], [3, -1, 2, 5]],
    dtype=torch.float64,
)


@pytest.mark.parametrize("eps", [1e-8, 0.25, 0.5, 0.0])
def test_cosine_similarity_of_rows_whose_norm_is_replaced(eps: float) -> None:
    torch.manual_seed(0)
    other = torch.randn(5, 4, dtype=torch.float64)
    same_as_eager(lambda x, y: F.cosine_similarity(x, y, eps=eps), ROWS, other)
    same_as_eager(lambda x, y: F.cosine_similarity(y, x, eps=eps), ROWS, other)


def test_cosine_embedding_loss_of_no_vector() -> None:
    """Torch's eps is a number in fp32, and 1e-12 is none."""
    same_as_eager(
        lambda x: F.cosine_embedding_loss(x, x.flip(0) + 1, x.new_ones(5)), ROWS * (ROWS > 1e-4)
    )


def test_binary_cross_entropy_of_what_is_certain() -> None:
    """Logarithms are bounded in the loss, and the quotient in its gradient."""
    inputs = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.5, 1e-30, 1 - 6e-8])
    targets = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.3, 1.0, 0.2])
    same_as_eager(lambda x, t: F.binary_cross_entropy(x, t, reduction="none"), inputs, targets)


def test_gaussian_loss_of_variances_below_eps() -> None:
    same_as_eager(
        lambda x, v: F.gaussian_nll_loss(x, x * 0.5, v, eps=0.25, reduction="none"),
        ROWS,
        torch.tensor([[0.0], [0.1], [0.25], [1.0], [3.0]], dtype=torch.float64),
    )


def test_a_smooth_loss_without_a_smooth_part() -> None:
    """It is fused, as the loss of distances is."""
    x = torch.tensor([0.0, 1.0, -2.0, math.inf])
    same_as_eager(lambda x, y: F.smooth_l1_loss(x, y, beta=0.0), x, x.flip(0))
    compiled = jit(lambda x, y: F.smooth_l1_loss(x, y, beta=0.0))
    compiled(x, x.flip(0))
    assert not thunder_fuser.refusals(compiled)


def test_a_cross_entropy_lies_in_memory_as_its_probabilities() -> None:
    x, t = torch.rand(2, 3, 4, 5), torch.rand(2, 4, 3, 5).transpose(1, 2)
    for given in ((x, t), (t, x)):
        program = partial(F.binary_cross_entropy, reduction="none")
        assert jit(program)(*given).stride() == program(*given).stride()


@each_value(reduction=["none", "mean", "sum", "batchmean"], is_log=[False, True])
def test_kl_div_of_targets_without_a_logarithm(reduction: str, is_log: bool) -> None:
    targets = torch.tensor([[0.0, -0.0, 1.0, 0.5], [-1.0, math.inf, -math.inf, math.nan]])
    logits = torch.tensor([[-1.0, -0.5, -2.0, 0.0], [-1.0, -0.5, -2.0, 0.0]])
    same_as_eager(
        lambda x, t: F.kl_div(x, t, reduction=reduction, log_target=is_log), logits, targets
    )
    # A gradient of 0 passes a logarithm that is NaN.
    same_as_eager(
        lambda x, t: F.kl_div(x, t, reduction=reduction, log_target=is_log) * x.new_zeros(4),
        logits,
        targets,
    )


@each_value(
    outer=[torch.log, torch.sqrt],
    norm=[
        lambda x: torch.linalg.vector_norm(x, 2, 1),
        lambda x: x.norm(dim=1),
        lambda x: F.pairwise_distance(x, x.flip(1), eps=0.0),
    ],
)
def test_an_infinite_gradient_of_a_norm_of_0(outer: Program, norm: Program) -> None:
    same_as_eager(lambda x: outer(norm(x)), ROWS)


LARGE, SMALL = torch.finfo(torch.float32).max, torch.finfo(torch.float32).smallest_normal / 4


@each_value(
    order=[1, 2, 3.5, 0.5, -1, math.inf, -math.inf],
    dtype=[torch.float32, torch.bfloat16, torch.float64],
)
def test_a_norm_of_one_element_is_its_size(order: float, dtype: torch.dtype) -> None:
    """Whose power over- or underflows. Torch's gradient does so, too; the truth is the sign."""
    x = torch.tensor([-LARGE, SMALL, 2.0, -3.0]).to(dtype)[:, None].requires_grad_()
    program = jit(lambda x: torch.linalg.vector_norm(x, order, 1))
    sizes = program(x)
    assert torch.equal(sizes, torch.linalg.vector_norm(x, order, 1))
    assert torch.equal(torch.autograd.grad(sizes.sum(), x)[0], x.sign())
    assert torch.equal(jit(lambda x: torch.linalg.vector_norm(x, order, 0))(x[0, 0]), x[0, 0].abs())


@pytest.mark.parametrize("order", [0.5, 1.5, 2, 3.5, math.inf, -math.inf])
def test_gradients_of_a_norm_of_nan(order: float) -> None:
    """NaN also where an element is 0, whose own power has none; 0 if the norm is an extreme."""
    x = torch.tensor([[1.0, 0.0, math.nan], [1.0, 0.0, -2.0], [0.0, -0.0, 0.0]])
    same_as_eager(lambda x: torch.linalg.vector_norm(x, order, 1), x)
    same_as_eager(lambda x: torch.linalg.vector_norm(x, order, 1), x[:, 2:])


@pytest.mark.parametrize("extreme", [torch.min, torch.max])
@pytest.mark.parametrize("first", [math.nan, math.inf, -math.inf, 1.0])
def test_extremes_of_all_share_their_gradient(extreme: Program, first: float) -> None:
    """NaNs get all of it, unlike those of `amin` and `amax`, which give NaN to all."""
    same_as_eager(lambda x: extreme(x) * 2, torch.tensor([[first, -3.0, 2.0], [first, -3.0, 2.0]]))


POINTS = torch.tensor([0.3, -1.2, 2.5, 0.7, -0.7, 1e-3, math.inf, -math.inf, math.nan])


def test_a_remainder_of_a_tensor_of_one_number() -> None:
    same_as_eager(lambda x: torch.remainder(torch.tensor(5.0), x), POINTS)


@pytest.mark.parametrize("program", [lambda x: 0.7 % x, lambda x: torch.remainder(5, x * 2)])
def test_a_remainder_of_a_number(program: Program) -> None:
    """Of which torch has no gradient, but of the tensor that holds the number."""
    x = POINTS[:6].clone().requires_grad_()
    found = jit(program)(x)
    torch.testing.assert_close(found, program(x))
    ours = torch.autograd.grad(found.sum(), x)[0]
    by = {True: -torch.floor(0.7 / x), False: -2 * torch.floor(5 / (2 * x))}
    is_first = bool((found == 0.7 % x).all())
    torch.testing.assert_close(ours, by[is_first])


def divided(mode: str) -> Program:
    return lambda x, y: torch.div(x, y, rounding_mode=mode)


STEPS: dict[str, Program] = {
    **{f.__name__: f for f in (torch.floor, torch.ceil, torch.round, torch.trunc, torch.sign)},
    "decimals": lambda x: torch.round(x, decimals=2),
    "tens": lambda x: torch.round(x, decimals=-1) + torch.round(x, decimals=0),
    "scaled": lambda x: torch.floor(x) * 0.5,
    "floor of a number": lambda x: torch.div(3.0, x, rounding_mode="floor"),
    "trunc by a number": lambda x: x.div(0.7, rounding_mode="trunc"),
}


@each_value(name=list(STEPS), dtype=[torch.float32, torch.bfloat16])
def test_steps_have_gradients_of_zeros(name: str, dtype: torch.dtype) -> None:
    same_as_eager(STEPS[name], (POINTS * 7).to(dtype))


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_a_rounded_quotient_has_gradients_of_zeros(mode: str) -> None:
    """Also where those of the quotient are infinite."""
    over = torch.tensor([0.0, -0.0, 1e-38, 3e38, math.inf, math.nan])
    same_as_eager(divided(mode), over.flip(0), over)
    same_as_eager(divided(mode), over[:, None], over)
    same_as_eager(divided(mode), over, torch.tensor([2] * 6))


def test_signs_that_are_copied() -> None:
    same_as_eager(torch.copysign, POINTS, POINTS.flip(0) * 0)
    same_as_eager(torch.copysign, POINTS[:, None], POINTS.nan_to_num())
    same_as_eager(lambda x: torch.copysign(x, -2), torch.tensor([0.0, -0.0, 1.0, -3.0]))


@pytest.mark.parametrize("base", [0, 0.0, -2.0, 2, 0.5])
def test_a_power_of_a_number(base: float) -> None:
    same_as_eager(lambda x: torch.pow(base, x), torch.tensor([0.0, -0.0, 1.0, 2.0, 3.5, -1.0]))


WRITES: dict[str, Any] = {
    "values": lambda x, v, k: x.index_put((k,), v),
    "negative": lambda x, v, k: x.index_put((k - 4,), v),
    "broadcast": lambda x, v, k: x.index_put((k,), v[0]),
    "accumulated": lambda x, v, k: torch.index_put(x, (k,), v, accumulate=True),
    "two": lambda x, v, k: x.index_put((k, k), v[:, 0]) * 2,
}


@pytest.mark.parametrize("name", WRITES)
def test_values_that_are_written_have_gradients(name: str) -> None:
    torch.manual_seed(0)
    same_as_eager(WRITES[name], torch.randn(4, 3), torch.randn(2, 3), torch.tensor([0, 2]))


def test_stacks_have_gradients() -> None:
    x = torch.randn(2, 3)
    same_as_eager(lambda x: torch.row_stack([x[0], x[1] * 2]) * 3, x)
    same_as_eager(lambda x: torch.dstack([x, x * 2]) * torch.dstack([x[0], x[0, :] + 1]), x)


SCALED: dict[str, Program] = {
    "mean": lambda x: x * x.mean(),
    "wide mean": lambda x: x * x.float().mean(),
    "deviation": lambda x: (x - x.float().mean()) / x.float().std(),
    "norm": lambda x: x / torch.linalg.vector_norm(x.float()),
    "element": lambda x: x * x.float()[0, 0] + x.amin(),
    "lerp": lambda x: torch.lerp(x.mean(), x, 0.3),
}


@each_value(name=list(SCALED), dtype=[torch.float32, torch.bfloat16])
def test_a_tensor_of_one_number_that_scales_others(name: str, dtype: torch.dtype) -> None:
    """On a CPU, too, its gradient is a sum over all that it was broadcast to."""
    torch.manual_seed(0)
    check(SCALED[name], torch.randn(3, 4).to(dtype).requires_grad_())


BOUNDED: dict[str, Program] = {
    "clamp": lambda x: x.clamp(-1, 1) * x,
    "clamp_": lambda x: (x * 1).clamp_(-1, 1) * x,
    "nan_to_num": lambda x: torch.nan_to_num(x / x, nan=2.0) * x,
    "minimum": lambda x: torch.minimum(x, x * x),
    "relu6": lambda x: F.relu6(x) * x,
    "hardtanh": lambda x: F.hardtanh(x) * x,
    "hardswish": lambda x: F.hardswish(x) * x,
    "hardsigmoid": lambda x: F.hardsigmoid(x) * x,
    "softshrink": lambda x: F.softshrink(x) * x,
    "leaky_relu": lambda x: F.leaky_relu(x) * x,
}


@pytest.mark.parametrize("name", BOUNDED)
def test_gradients_at_bounds_with_symbolic_shapes(name: str) -> None:
    """No claim takes these, and the gradients are torch's nevertheless."""
    x = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0])
    program = BOUNDED[name]
    ours = gradients(jit(program, cache="symbolic values"), [x])
    for found, expected in zip(ours, gradients(program, [x]), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_powers_of_zero() -> None:
    """By exponents in a tensor: the logarithm of 0 made gradients NaN."""
    base, exponent = torch.tensor([0.0, 0.0, 2.0, 0.0]), torch.tensor([3.0, 0.0, 0.0, 1.0])
    for x, y in ((base, exponent), (base.bfloat16(), exponent.bfloat16())):
        found = []
        for function in (jit(torch.pow), torch.pow):
            leaves = [x.clone().requires_grad_(), y.clone().requires_grad_()]
            found.append(torch.autograd.grad(function(*leaves).abs().sum(), leaves))
        for ours, eager in zip(*found, strict=True):
            torch.testing.assert_close(ours, eager, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_angles_of_points_at_the_origin(dtype: torch.dtype) -> None:
    """Also where the squares of the coordinates are too small for the dtype, or too large."""
    numbers = torch.tensor([0.0, -0.0, 1e-30, 1e25, 1.0, math.inf, math.nan], dtype=dtype)
    points = torch.cartesian_prod(numbers, numbers).unbind(1)
    found = []
    for function in (torch.atan2, jit(lambda y, x: torch.atan2(y, x))):
        y, x = (t.clone().requires_grad_() for t in points)
        function(y, x).sum().backward()
        found.append((y.grad, x.grad))
    torch.testing.assert_close(found[1], found[0], equal_nan=True)


EQUAL_AND_OTHER = torch.tensor([math.inf, -math.inf, math.inf, 1.0, math.nan, 0.0])
BESIDE = torch.tensor([math.inf, -math.inf, -math.inf, math.inf, 1.0, 0.0])


def test_logaddexp_of_equal_infinities() -> None:
    """NaN, as in torch; the gradient was that of one operand twice."""
    same_as_eager(torch.logaddexp, EQUAL_AND_OTHER, BESIDE)
    same_as_eager(torch.logaddexp, EQUAL_AND_OTHER, torch.tensor([math.inf]))
    same_as_eager(torch.logaddexp, EQUAL_AND_OTHER.bfloat16(), BESIDE.bfloat16())


@pytest.mark.parametrize("p", [math.inf, -math.inf, 2.0, 1.0, 3.0])
def test_normalize_of_rows_with_infinities(p: float) -> None:
    """By the largest element: gradients of 0 beside an infinity were NaN in torch alone."""
    rows = torch.tensor([[math.inf, 1.0, 2.0], [1.0, 2.0, 2.0], [-math.inf, 0.0, 1.0]])
    same_as_eager(lambda x: F.normalize(x, p=p), rows)
    same_as_eager(lambda x: F.pairwise_distance(x, x.flip(0).detach(), p=abs(p)), rows)
