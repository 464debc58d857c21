"""Arithmetic of several calls in fp32 and fp64: rounded after each call, bit for bit as eager code.

An FMA of one call's product and another call's sum would round once, and a difference of equal
products would be their rounding error.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import thunder
import torch
from torch import Tensor
from torch.nn import functional as F

import thunder_fuser
from tests.support.shares import each_value

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
Program = Callable[[Tensor, Tensor], Tensor]
PROGRAMS: dict[str, Program] = {
    "difference of squares": lambda x, y: x * x - y * y,
    "powers": lambda x, y: x.pow(2) - y**2,
    "cubes": lambda x, y: x**3 - y**3,
    "square": lambda x, y: torch.square(x) - torch.square(y),
    "sum": lambda x, y: x * y + x,
    "rsub": lambda x, y: torch.rsub(x * y, y),
    "alpha": lambda x, y: torch.add(x * y, y, alpha=3),
    "negation": lambda x, y: -(x * y) + y * x,
    "number": lambda x, y: x * 0.1 + y,
    "quotient": lambda x, y: x / 3 - y / 3,
    "addcmul": lambda x, y: torch.addcmul(x * y, x, y),
    "lerp": lambda x, y: torch.lerp(x * y, y * x, 0.3),
    "choice": lambda x, y: torch.where(x > 0, x * y, y) - y,
    "view": lambda x, y: ((x * y).view(10, -1) + y.view(10, -1)).t(),
    "cat": lambda x, y: torch.cat([x * y, x]) - torch.cat([y, y]),
    "in place": lambda x, y: (x * 1).mul_(y).add_(y),
    "an input in place": lambda x, y: x.mul_(y).sub_(y),
    "a view in place": lambda x, y: (x * 1).view(-1, 4).mul_(3.1).sub_(y.view(-1, 4)),
    "rounded between": lambda x, y: (x * y).to(x.dtype) + y,
    "a call's end": lambda x, y: F.leaky_relu(x, 0.3) - F.leaky_relu(y, 0.3),
    "threshold": lambda x, y: F.relu(x * y) - y * x,
    "maximum": lambda x, y: torch.maximum(x * y, y) - y,
    "few": lambda x, y: (x * y).view(-1, 2)[:, 0] + (x * y).view(-1, 2)[:, 1],
}


def compared(program: Program, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    compiled = thunder.jit(program, executors=[thunder_fuser.executor])
    ours = compiled(x.clone(), y.clone())
    assert thunder_fuser.fusions(compiled)
    return ours, program(x.clone(), y.clone())


@each_value(name=list(PROGRAMS), dtype=[torch.float32, torch.float64])
def test_each_call_is_rounded(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x, y = (3 * torch.randn(1000, dtype=dtype) for _ in range(2))
    for other in (x, y):
        ours, eager = compared(PROGRAMS[name], x, other)
        assert torch.equal(ours, eager)


def test_a_root_of_equal_products_is_no_nan() -> None:
    x = torch.randn(4096)
    ours, _ = compared(lambda x, y: (x * x - y * y).sqrt(), x, x)
    assert not ours.count_nonzero()


@DTYPES
def test_recomputed_products_are_rounded_in_the_backward(dtype: torch.dtype) -> None:
    """The gradient of a maximum asks which operand is the maximum, of values computed again."""
    x = torch.randn(4096, dtype=dtype)

    def program(x: Tensor, y: Tensor) -> Tensor:
        return torch.maximum(x * x - y * y, y * 0)

    def gradient(f: Program) -> Tensor:
        a, b = (x.clone().requires_grad_() for _ in range(2))
        f(a, b).sum().backward()
        assert a.grad is not None
        return a.grad

    compiled = thunder.jit(program, executors=[thunder_fuser.executor])
    assert torch.equal(gradient(compiled), gradient(program))


def test_one_call_may_be_contracted() -> None:
    """torch's kernel of addcmul is contracted, too."""
    compiled = thunder.jit(torch.addcmul, executors=[thunder_fuser.executor])
    compiled(*torch.randn(3, 64))
    (kernel,) = thunder_fuser.fusions(compiled)[0].kernels
    assert "mul_rn" not in kernel.source


@pytest.mark.parametrize("name", ["difference of squares", "powers", "sum", "view", "few"])
def test_each_call_is_rounded_where_gradients_are_wanted(name: str) -> None:
    torch.manual_seed(1)
    x, y = (3 * torch.randn(1000, requires_grad=True) for _ in range(2))
    ours, eager = compared(PROGRAMS[name], x.detach().requires_grad_(), y.detach().requires_grad_())
    assert torch.equal(ours, eager)


def test_parts_of_a_call_may_be_contracted() -> None:
    """A layer norm's weight and bias, also where its grad transform records the parts."""
    compiled = thunder.jit(F.layer_norm, executors=[thunder_fuser.executor])
    x, w, b = (torch.randn(*sizes, requires_grad=True) for sizes in ((8, 64), (64,), (64,)))
    compiled(x, (64,), w, b)
    (kernel,) = thunder_fuser.fusions(compiled)[0].kernels
    assert "mul_rn" not in kernel.source


def test_fast_precision_contracts() -> None:
    def source(**options: str) -> str:
        with thunder_fuser.options(**options):  # type: ignore[arg-type]
            compiled = thunder.jit(lambda x, y: x * y + x, executors=[thunder_fuser.executor])
            compiled(*torch.randn(2, 64))
            (kernel,) = thunder_fuser.fusions(compiled)[0].kernels
            return kernel.source

    assert "mul_rn" in source()
    assert "mul_rn" not in source(precision="fast")


def random_program(seed: int) -> Program:
    """Arithmetic that IEEE 754 defines to the last bit, with operands that are often equal."""

    def program(x: Tensor, y: Tensor) -> Tensor:
        rng = random.Random(seed)
        pool = [x, y, x.clone()]
        for _ in range(rng.randint(4, 14)):
            a, b = rng.choice(pool), rng.choice(pool)
            match rng.randrange(10):
                case 0 | 1 | 2:
                    made = a * b
                case 3 | 4:
                    made = a - b
                case 5:
                    made = a + b
                case 6:
                    made = a * rng.choice((0.1, -1.0, 3.0)) + b
                case 7:
                    made = a.clamp(-9.0, 9.0).square()
                case 8:
                    made = (a * b).view(-1, 8).t().contiguous().t().reshape(-1)
                case _:
                    made = (a * 1.0).mul_(b)
            pool.append(made.clamp(-1e6, 1e6) if rng.random() < 0.2 else made)
        return torch.stack(pool[3:]).nan_to_num(7.0)

    return program


@each_value(seed=range(12), dtype=[torch.float32, torch.float64])
def test_random_arithmetic_has_the_bits_of_eager_code(seed: int, dtype: torch.dtype) -> None:
    torch.manual_seed(seed)
    x, y = (3 * torch.randn(512, dtype=dtype) for _ in range(2))
    ours, eager = compared(random_program(seed), x, y)
    assert torch.equal(ours, eager)
