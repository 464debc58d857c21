"""Complex numbers through Thunder: where torch's kernels convert, multiply and divide, which says
what is infinite and what is NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch

import thunder_fuser
from tests.frontends.thunder.programs import check
from tests.support.shares import each_value

Function = Callable[..., torch.Tensor]
INF, NAN = float("inf"), float("nan")
REAL = [0.0, -0.0, 1.0, -2.5, INF, -INF, NAN]
DTYPES = [torch.complex64, torch.float32, torch.int64, torch.bool]

FUNCTIONS: dict[str, tuple[int, Function]] = {
    "div": (2, torch.div),
    "mul": (2, torch.mul),
    "add, alpha": (2, lambda a, b: torch.add(a, b, alpha=3)),
    "sub, alpha": (2, lambda a, b: torch.sub(a, b, alpha=2)),
    "addcmul": (3, torch.addcmul),
    "addcmul, value": (3, lambda a, b, c: torch.addcmul(a, b, c, value=10)),
    "addcdiv": (3, torch.addcdiv),
    "addcdiv, value": (3, lambda a, b, c: torch.addcdiv(a, b, c, value=10)),
    "reciprocal": (1, torch.reciprocal),
    "number / tensor": (1, lambda a: 3.0 / a),
    "complex number / tensor": (1, lambda a: (1 + 2j) / a),
    "true_divide of a number": (1, lambda a: torch.true_divide(3.0, a)),
    "tensor / number": (1, lambda a: a / (0.5 + 0j)),
    "number + tensor": (1, lambda a: torch.add(a, 2 + 1j, alpha=2)),
}


def special(dtype: torch.dtype) -> list[Any]:
    """Numbers of a dtype among which are those that a product or a quotient makes NaN of."""
    if dtype.is_complex:
        return [complex(re, im) for re, im in itertools.product(REAL, REAL)]
    if dtype.is_floating_point:
        return REAL
    return [False, True] if dtype is torch.bool else [0, 1, -3]


def same(found: torch.Tensor, exact: torch.Tensor) -> bool:
    """Equal but for roundings; NaN, infinities and their signs stand where torch has them."""
    assert found.dtype == exact.dtype
    parts = (torch.view_as_real(x) if x.is_complex() else x for x in (found, exact))
    return torch.allclose(*parts, rtol=1e-5, atol=1e-6, equal_nan=True)


def operands(dtypes: tuple[torch.dtype, ...]) -> list[torch.Tensor]:
    """Every combination of special numbers, as many elements of each operand; of three complex
    ones some.
    """
    grids = list(itertools.product(*map(special, dtypes)))
    grids = grids[:: max(1, len(grids) // 4001)]
    return [
        torch.tensor([grid[k] for grid in grids], dtype=dtype) for k, dtype in enumerate(dtypes)
    ]


@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_infinities_and_nan_are_where_torch_has_them(name: str, both: bool) -> None:
    """both: two dtypes in either order; a plain run has every pair in one of them"""
    count, function = FUNCTIONS[name]
    compiled = thunder.jit(function, executors=[thunder_fuser.executor])
    checked = 0
    for places in itertools.product(range(len(DTYPES)), repeat=count):
        dtypes = tuple(DTYPES[k] for k in places)
        if torch.complex64 not in dtypes:
            continue
        if count == 2 and not both and (places[0] < places[1]) == (sum(places) % 2 == 0):
            continue
        # Of three dtypes any two are together; all three, with a value or without one.
        if count == 3 and sum(places) % 2 != ("value" in name):
            continue
        data = operands(dtypes)
        # Kernels of torch on vectors and on what is left of them round in the same way here.
        try:
            exact = function(*data)
        except RuntimeError:
            continue
        assert same(compiled(*data), exact), dtypes
        checked += 1
    assert checked


@pytest.mark.parametrize("divide", [torch.addcdiv, torch.addcmul])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_beside_complex_is_converted_first(divide: Function, dtype: torch.dtype) -> None:
    """A program of the fuzzer: the product of value and a complex quotient by zero was NaN."""
    a = torch.randn(3, 4).to(dtype)
    b = torch.complex(torch.randn(3, 4), torch.randn(3, 4))
    c = torch.zeros(3, 4, dtype=torch.bool)
    function = lambda a, b, c: divide(a, b, c, value=10)  # noqa: E731
    found = thunder.jit(function, executors=[thunder_fuser.executor])(a, b, c)
    assert same(found, function(a, b, c))


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


@each_value(op=list(OPERATORS), number=[2, 2.5, 1 + 2j, INF, 0.0])
def test_numbers_beside_complex_tensors(op: str, number: complex) -> None:
    z = operands((torch.complex64,))[0]
    apply = OPERATORS[op]
    for function in (lambda z: apply(z, number), lambda z: apply(number, z)):
        found = thunder.jit(function, executors=[thunder_fuser.executor])(z)
        assert same(found, function(z))


CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "var": lambda z: z.var(1, keepdim=True) * z.abs(),
    "std": lambda z: z.std(),
    "var_mean": lambda z: torch.stack(torch.var_mean(z, 0, correction=0)),
    "logsumexp": lambda z: torch.logsumexp(z, (0, 1)),
    "logsumexp, keepdim": lambda z: torch.logsumexp(z, 1, keepdim=True),
    "cov": lambda z: torch.cov(z, fweights=torch.arange(4)),
    "corrcoef": torch.corrcoef,
    "normalize": lambda z: torch.nn.functional.normalize(z, p=0.0, dim=-1),
    "conv1d": lambda z: torch.nn.functional.conv1d(z, z[None, :, :2], padding="same"),
    "svd": lambda z: torch.linalg.svdvals(z),
    "linspace": lambda z: z + torch.linspace(1, 3 - 2j, 4),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_and_their_gradients(name: str) -> None:
    torch.manual_seed(0)
    check(CALLS[name], torch.randn(3, 4, dtype=torch.complex64, requires_grad=True))
