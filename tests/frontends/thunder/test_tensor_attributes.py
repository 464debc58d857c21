"""Attributes and methods of tensors, as code of models asks for them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.aliasing import differences
from tests.frontends.thunder.programs import check, jit

WEIGHT = torch.nn.Parameter(torch.ones(4))


def filled(wrap: bool, repeats: int) -> Callable[[Tensor], Tensor]:
    def program(x: Tensor) -> Tensor:
        y = torch.cat([x] * repeats) * 2
        y.fill_diagonal_(3.0, wrap)
        return y * x.sum()

    return program


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "plus": lambda x: [(+x) * 2, +x],
    "broadcast_to": lambda x: [x[0].broadcast_to(3, 4) * 2, x[0].broadcast_to((2, 3, 4)) + x],
    "hardshrink": lambda x: x.hardshrink() + x.hardshrink(0.1),
    "diagonal": filled(False, 1),
    "tall diagonal": filled(False, 4),
    "wrapped diagonal": filled(True, 4),
    "cube": lambda x: (x.expand(3, 3, 4)[..., :3] * 2).fill_diagonal_(1.0) + x[:, :3],
    "devices": lambda x: x * 2 if x.is_cpu and not x.is_meta and not x.is_mps else x,
    "shape": lambda x: x / x.shape.numel() + x.size().numel() + x.size(0) + x.size(dim=1),
    "kind of shape": lambda x: x * 2 if isinstance(x.shape, torch.Size) else x,
    "parts of shape": lambda x: x.reshape(*x.shape[:-1], 2, 2).reshape((*x.shape[:1], -1)),
    "key": lambda x: x * {(3, 4): 2.0}[x.shape],
    "a new type": lambda x: type("Doubled", (), {"of": staticmethod(lambda y: y * 2)}).of(x),
    "type": lambda x: x * 2 if type(x) is Tensor and type(x + 1) is Tensor else x,
    "type of parameter": lambda x: x * 2 if type(WEIGHT) is torch.nn.Parameter else x,
    "flag": lambda x: x * 2 if (x * 2).requires_grad and x[0].requires_grad else x,
    "flag of detached": lambda x: x * 2 if (x.detach() * 2).requires_grad else x * 3,
    "flag of integers": lambda x: x * 2 if x.argmax(-1).requires_grad else x * 3,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_attributes(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64)
    check(PROGRAMS[name], x.clone().requires_grad_())
    check(PROGRAMS[name], x)


def test_flags_without_gradients() -> None:
    def program(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * 2
        return x * 2 if y.requires_grad else x * 3

    check(program, torch.ones(3, requires_grad=True))
    check(
        lambda x: (x * 2).requires_grad_() + (x.detach() * 2).requires_grad_(False),
        torch.ones(3, requires_grad=True),
    )
    with pytest.raises(NotImplementedError, match="before the compiled function"):
        jit(lambda x: x.requires_grad_() * 2)(torch.ones(3))


def test_a_flag_that_an_update_changes() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        y = x * 2
        before = y.requires_grad
        y.add_(w)
        return y * 3 if y.requires_grad and not before else y * 5

    for requires_grad in (True, False):
        check(program, torch.ones(3), torch.ones(3, requires_grad=requires_grad))


def test_views_are_views() -> None:
    def program(x: Tensor) -> list[Tensor]:
        return [+x, x[0].broadcast_to(2, 4)]

    x, y = torch.ones(3, 4), torch.ones(3, 4)
    assert not list(differences([*jit(program)(x), x], [*program(y), y]))


def test_results_have_shapes() -> None:
    found = jit(lambda x: (x.shape, x.size(), f"{x.shape}", x * 1))(torch.ones(3, 4))
    expected = torch.Size([3, 4])
    assert found[:3] == (expected, expected, str(expected))
    assert type(found[0]) is type(found[1]) is torch.Size


def test_bools_have_no_sign() -> None:
    with pytest.raises(RuntimeError, match="bool tensor"):
        jit(lambda x: +(x > 0))(torch.ones(3))


DRAWS: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "uniform_": (lambda x: x.uniform_(1.0, 3.0), 2.0, 1 / 3**0.5),
    "uniform_ by keyword": (lambda x: x.uniform_(to=2.0), 1.0, 1 / 3**0.5),
    "normal_": (lambda x: x.normal_(2.0, std=3.0), 2.0, 3.0),
    "bernoulli_": (lambda x: x.bernoulli_(0.25), 0.25, 3**0.5 / 4),
    "exponential_": (lambda x: x.exponential_(2.0), 0.5, 0.5),
    "geometric_": (lambda x: x.geometric_(0.5), 2.0, 2**0.5),
    "log_normal_": (lambda x: x.log_normal_(0.0, 0.5), 1.133, 0.604),
}


@pytest.mark.parametrize("name", DRAWS)
def test_updates_with_random_numbers(name: str) -> None:
    """Means and deviations, of arguments and of what the program computes; no gradients."""
    draw, mean, deviation = DRAWS[name]

    def program(x: Tensor, buffer: Tensor) -> list[Tensor]:
        noise = draw(torch.empty_like(x))
        return [draw(buffer) * 1, noise, x * noise, draw(x * 2)]

    x, buffer = torch.ones(100, 500, requires_grad=True), torch.zeros(100, 500)
    fixed, noise, scaled, drawn = jit(program)(x, buffer)
    assert torch.equal(fixed, buffer)
    for found in (fixed, noise, drawn):
        assert abs(found.mean() - mean) < 0.05
        assert abs(found.std() - deviation) < 0.05
    assert torch.equal(torch.autograd.grad(scaled.sum(), x)[0], noise)
    assert not torch.equal(noise, drawn)


def test_cauchy_numbers() -> None:
    """They have no mean; their quartiles are at one scale from the median."""
    drawn = jit(lambda x: x.cauchy_(2.0, 3.0))(torch.zeros(100_000))
    quartiles = drawn.quantile(torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(quartiles, torch.tensor([-1.0, 2.0, 5.0]), atol=0.1, rtol=0)


def test_generators_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="default generator"):
        jit(lambda x, g: (x * 2).normal_(generator=g))(torch.ones(3), torch.Generator())


def test_power_in_float64() -> None:
    """`float_power_` computes in float64, and does not round to what it updates."""
    x = torch.rand(3, dtype=torch.float64)
    expected = x**3
    assert torch.equal(jit(lambda x: x.float_power_(3))(x), expected)
    with pytest.raises(RuntimeError, match=r"expected a base of dtype torch\.float64.*use pow_"):
        jit(lambda x: x.float_power_(3))(torch.rand(3))


def test_update_of_an_operator_with_numbers() -> None:
    """`aten::ldexp` has an overload of numbers only."""
    x = torch.tensor([1.0, 3.0])
    jit(lambda x: x.ldexp_(torch.tensor([2, 3])))(x)
    assert x.tolist() == [4.0, 24.0]


UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "&=": operator.iand,
    "|=": operator.ior,
    "^=": operator.ixor,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
}


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_operators_that_update(name: str, dtype: torch.dtype) -> None:
    if dtype is torch.bool and name not in ("&=", "|=", "^="):
        return

    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        z = x + x
        exec_update(name, z[0], y)
        exec_update(name, x, 1 if dtype is not torch.bool else True)
        return [z, UPDATES[name](x, y), x * 1]

    x = torch.tensor([[5, 2, 0], [3, 7, 1]]).to(dtype)
    y = torch.tensor([1, 2, 3]).to(dtype)
    ours, theirs = x.clone(), x.clone()
    for found, expected in zip(jit(program)(ours, y), program(theirs, y), strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(ours, theirs)


def exec_update(name: str, x: Tensor, y: Any) -> None:
    if name == "&=":
        x &= y
    elif name == "|=":
        x |= y
    elif name == "^=":
        x ^= y
    elif name == "<<=":
        x <<= y
    elif name == ">>=":
        x >>= y
    elif name == "//=":
        x //= y
    else:
        x %= y


def test_a_product_by_an_operator_is_no_update() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        x @= y
        return x

    x, y = torch.randn(2, 3), torch.randn(3, 4)
    kept = x.clone()
    torch.testing.assert_close(jit(program)(x, y), kept @ y)
    assert torch.equal(x, kept)


def test_new_tensors_by_an_old_method() -> None:
    def program(x: Tensor) -> Any:
        return x.new([1, 2]) + x[0, 0], x.new(2, 3).zero_(), x.new().sum(), x.new(x) * 2

    check(program, torch.randn(2, 3, dtype=torch.float64, requires_grad=True))
