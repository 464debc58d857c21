"""Numbers beside tensors, fills, softmaxes and maxima, with the results and the errors of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.frontends.thunder.programs import jit
from tests.support.shares import each_value
from thunder_fuser import options

Program = Callable[..., "Tensor | tuple[Tensor, ...]"]

MASK = torch.tensor([True, False])
INTEGERS = torch.tensor([1, 0, 5])
BOOLS = torch.tensor([[True, False], [False, False], [True, True]])
NAN = torch.tensor([1.0, math.nan, math.inf, -math.inf])


def assert_equal(program: Program, *given: Tensor) -> None:
    """Same dtypes, shapes and bits; a fallback to torch fails."""
    with options(strict=True):
        ours = jit(program)(*given)
    theirs = program(*given)
    pairs = zip(ours, theirs, strict=True) if isinstance(theirs, tuple) else [(ours, theirs)]
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def assert_both_raise(program: Program, *given: Tensor) -> None:
    with pytest.raises((RuntimeError, OverflowError)):
        program(*given)
    with pytest.raises((RuntimeError, OverflowError)):
        jit(program)(*given)


def test_bools_compared_with_integers() -> None:
    """`mask < 300` was False: Thunder compares bools and numbers as int8."""
    numbers = (300, 256, -256, 128, 2, 1, 0, -1, 2**63 - 1, -(2**63))

    def compared(m: Tensor) -> tuple[Tensor, ...]:
        found = [(m < n, m <= n, m == n, m != n, m > n, m >= n, n > m) for n in numbers]
        called = [(m.eq(n), torch.gt(m, n), (m & True).ne_(n), (m | False).lt_(n)) for n in numbers]
        return tuple(t for row in (*found, *called) for t in row)

    assert_equal(compared, MASK)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32], ids=str
)
def test_a_number_divided_by_a_tensor(dtype: torch.dtype) -> None:
    """torch's operator is a reciprocal times the number; the quotient has other last bits."""
    torch.manual_seed(0)
    x = (torch.randn(4096) * 3 + 2).to(dtype)
    assert_equal(lambda x: (2.0 / x, 0.3 / x, 7 / x, True / x), x)


def test_what_a_number_divided_by_a_tensor_saves() -> None:
    """The reciprocal, and not x, which may be changed before the backward."""

    def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
        x = torch.linspace(1, 2, 5, requires_grad=True)
        y = x * 1.0
        result = function(y)
        with torch.no_grad():
            y.zero_()
        return torch.autograd.grad(result.sum(), x)[0]

    ours = gradient(jit(lambda x: 2.0 / x, save_like_torch=True))
    torch.testing.assert_close(ours, gradient(lambda x: 2.0 / x))


_OPERATIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "+": lambda x, n: x + n,
    "r+": lambda x, n: n + x,
    "r-": lambda x, n: n - x,
    "/": lambda x, n: x / n,
    "r/": lambda x, n: n / x,
    "==": lambda x, n: x == n,
    "//": lambda x, n: x // n,
    "%": lambda x, n: x % n,
    "**": lambda x, n: x**n,
    "&": lambda x, n: x & n,
    "add": torch.add,
    "mul": lambda x, n: x.mul(n),
    "clamp": lambda x, n: x.clamp(max=n),
    "alpha": lambda x, n: torch.add(x, x, alpha=n),
    "full_like": torch.full_like,
}


@pytest.mark.parametrize("name", _OPERATIONS)
def test_integers_of_more_than_64_bits(name: str) -> None:
    """Python's integers have no end; `x + 2**64` was x."""
    operation = _OPERATIONS[name]
    for number in (2**64, -(2**63) - 1):
        assert_both_raise(lambda x, number=number: operation(x, number), INTEGERS)


def test_unsigned_integers_of_64_bits() -> None:
    """Beside integers they wrap around, as the factors of hashes do; floats hold them."""
    hashed = 0x9E3779B97F4A7C15

    def wrapped(x: Tensor) -> tuple[Tensor, ...]:
        return x * hashed, x // 2**63, x % hashed, x == hashed, x / hashed, hashed / x, hashed ^ x

    try:
        wrapped(INTEGERS)
    except RuntimeError as error:
        pytest.skip(f"this version of torch takes none: {error}")
    assert_equal(wrapped, INTEGERS)
    assert_equal(lambda x: x + hashed, NAN)
    for name in ("+", "==", "**", "clamp"):
        assert_both_raise(lambda m, name=name: _OPERATIONS[name](m, 2**63), MASK)


def test_fills_are_converted() -> None:
    """A float for integers is cut off; Thunder refused it."""

    def filled(x: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.full((2,), 1.5, dtype=torch.int64),
            torch.full((2,), -1.9, dtype=torch.bool),
            torch.full((2,), 0.1, dtype=torch.bfloat16),
            torch.full((2,), 1 + 2j),
            torch.full_like(x, -1.5, dtype=torch.int32),
            torch.full_like(x.long(), 1.7),
            x.long().new_full((2,), 2.9),
            torch.full((2,), 3),
            torch.full((2,), True),
        )

    assert_equal(filled, torch.ones(3))


@pytest.mark.parametrize(
    ("number", "dtype"),
    [(300, torch.uint8), (1e300, torch.float32), (70000.0, torch.float16)],
    ids=str,
)
def test_fills_that_do_not_fit(number: float, dtype: torch.dtype) -> None:
    assert_both_raise(lambda x: torch.full((2,), number, dtype=dtype) + x, torch.ones(2))


FILLS: Mapping[str, Callable[[Tensor, float], Tensor]] = {
    "full": lambda x, n: torch.full(x.shape, n, dtype=x.dtype) + x,
    "full_like": lambda x, n: torch.full_like(x, n) + x,
    "new_full": lambda x, n: x.new_full(x.shape, n) + x,
    "scalar_tensor": lambda x, n: torch.scalar_tensor(n, dtype=x.dtype) + x,
    "fill_": lambda x, n: (x * 2).fill_(n),
}


@each_value(name=list(FILLS), number=[1e30, -1e30, 100_000, 1e300])
def test_an_element_that_is_alone_may_be_too_large(name: str, number: float) -> None:
    """Torch fills a tensor of one element on a CPU with infinity, where it refuses two."""
    fill = FILLS[name]
    for shape in ((), (1,), (1, 1), (2,)):
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            x = torch.ones(shape, dtype=dtype)
            try:
                fill(x, number)
            except RuntimeError:
                assert_both_raise(lambda x: fill(x, number), x)
            else:
                assert_equal(lambda x: fill(x, number), x)


def test_nan_to_num_by_keyword() -> None:
    def replaced(x: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.nan_to_num(x, nan=1.0),
            torch.nan_to_num(x, posinf=2.0, neginf=3),
            torch.nan_to_num(input=x, nan=None, posinf=1.0),
            x.nan_to_num(2.0, posinf=1.0),
            x.nan_to_num(nan=1e300),
            x.bfloat16().nan_to_num(nan=3),
        )

    assert_equal(replaced, NAN)


def test_maxima_of_bools() -> None:
    def extremes(b: Tensor) -> tuple[Tensor, ...]:
        return (
            *torch.max(b, -1),
            *b.max(0, True),
            *torch.min(b, -1),
            *b.min(dim=0, keepdim=True),
            *torch.cummax(b, 0),
            b.max(),
            torch.amax(b, 0),
            torch.amin(b, 1),
        )

    assert_equal(extremes, BOOLS)


@pytest.mark.parametrize(
    "softmax",
    [
        lambda x: torch.softmax(x, -1),
        lambda x: F.softmax(x.float(), -1, dtype=torch.int32),
        lambda x: x.log_softmax(-1),
        lambda x: F.softmin(x, -1),
    ],
    ids=["softmax", "softmax to int32", "log_softmax", "softmin"],
)
def test_softmax_of_integers(softmax: Callable[[Tensor], Tensor]) -> None:
    """They were rounded to integers: zeros."""
    assert_both_raise(softmax, INTEGERS)


ROW, CLASSES = INTEGERS[None], torch.zeros(1, dtype=torch.int64)
ONE = torch.ones(1, 1)


@pytest.mark.parametrize(
    ("call", "x"),
    [
        (lambda x: F.cross_entropy(x, CLASSES), ROW),
        (lambda x: F.cross_entropy(x, CLASSES, label_smoothing=0.1), ROW),
        (lambda x: F.nll_loss(x, CLASSES), ROW),
        (lambda x: F.nll_loss(x, CLASSES - 1), ROW.float()),
        (lambda x: torch.mean(x, 0, dtype=torch.int32), ONE),
        (lambda x: x.mean(dtype=torch.int64), ONE),
        (lambda x: torch.nansum(x, dtype=torch.int64), ONE),
        (lambda x: torch.norm(x, dim=(0, 1, 2)), ONE[None]),
        (lambda x: torch.linalg.norm(x, dim=(0, 1, 2)), ONE[None]),
        (lambda x: F.group_norm(x, 1), ONE),
        (lambda x: F.batch_norm(x, None, None, training=True), ONE),
        (lambda x: F.instance_norm(x), ONE[None]),
        (lambda x: F.rrelu(x, 0.5, 0.1), ONE),
        (lambda x: torch.rrelu(x, 0.1, math.inf), ONE),
        (lambda x: torch.rrelu(x, 0.1, math.nan, training=True), ONE),
        (lambda x: F.cosine_embedding_loss(x.sum(), x.sum(), x.sum()), ONE),
        (lambda x: F.cosine_embedding_loss(x, x, x), torch.ones(1)),
        (lambda x: F.cosine_embedding_loss(x, x, x.sum()), torch.ones(2, 3)),
        (lambda x: F.cosine_embedding_loss(x, x, x[:, :1]), torch.ones(2, 3)),
        (lambda x: F.soft_margin_loss(x, x), torch.ones(2, requires_grad=True)),
    ],
)
def test_calls_that_torch_refuses(call: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """They were computed, or rounded to integers."""
    for function in (call, jit(call)):
        with pytest.raises((RuntimeError, ValueError, IndexError)):
            function(x)


def test_a_loss_of_classes_takes_torchs_arguments() -> None:
    """Of which the fourth is not `ignore_index`; a class of -1 is an error, and none to ignore."""

    def losses(x: Tensor, classes: Tensor) -> tuple[Tensor, ...]:
        return (
            F.nll_loss(x, classes, None, None, 1),
            F.nll_loss(x, classes, None, False),
            F.nll_loss(x, classes, reduce=False),
            F.nll_loss(x, torch.where(classes == 1, -100, classes)),
        )

    assert_equal(losses, torch.tensor([[-1.0, -2.0], [-4.0, -8.0]]), torch.tensor([0, 1]))


def test_softmax_of_integers_as_floats() -> None:
    def softmaxes(x: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.softmax(x, -1, torch.float32),
            F.softmax(x, -1, dtype=torch.float64),
            x.log_softmax(-1, torch.float32),
            F.softmin(x, -1, dtype=torch.float32),
            torch.nn.Softmin(-1)(x.float()),
        )

    ours, theirs = jit(softmaxes)(INTEGERS), softmaxes(INTEGERS)
    torch.testing.assert_close(ours, theirs)


def test_softmax_of_no_elements() -> None:
    """Its rows have no maximum to subtract, and the sum of none is 0."""

    def softmaxes(wide: Tensor, tall: Tensor) -> tuple[Tensor, ...]:
        sums = (torch.logsumexp(wide, 1), wide.logsumexp(-1, True), torch.logsumexp(tall, 0))
        logs = (torch.log_softmax(wide, 1), F.log_softmax(tall.long(), 0), torch.softmax(wide, 1))
        return *sums, *logs, torch.logsumexp(tall, 1)

    assert_equal(softmaxes, torch.ones(3, 0), torch.ones(0, 3))
    assert_both_raise(lambda x: torch.logsumexp(x, ()), torch.ones(3, 2))
    for log_softmax in (jit(lambda x: torch.log_softmax(x, 2)), lambda x: torch.log_softmax(x, 2)):
        with pytest.raises(IndexError):
            log_softmax(torch.ones(3, 0))


def test_max_norm_of_an_embedding_is_refused() -> None:
    table = torch.ones(4, 3)
    with pytest.raises(NotImplementedError, match="embedding_renorm_"):
        jit(lambda w, i: F.embedding(i, w, max_norm=1.0))(table, torch.tensor([1, 2]))
    assert torch.equal(table, torch.ones(4, 3))


@pytest.mark.parametrize("given", [INTEGERS, MASK, NAN], ids=["integers", "bools", "floats"])
def test_a_factor_of_a_sum_with_a_float(given: Tensor) -> None:
    assert_equal(lambda n: torch.add(0.25, n, alpha=0.5), given)
    assert_equal(lambda n: torch.add(n, 0.25, alpha=0.5), given)


SHORT = torch.tensor([-2.5, 0.0, 3.0], dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("program", "given"),
    [
        (lambda x: x // 10, (SHORT,)),
        (lambda x: x // 10.0, (SHORT.half(),)),
        (lambda x: 10 // (x + 0.25), (SHORT,)),
        (lambda x, y: y // (x + 0.25), (SHORT, INTEGERS)),
        (lambda x, y: x // (y + 1), (SHORT, SHORT + 2)),
        (lambda x, y: x // (y + 1), (SHORT, INTEGERS.float())),
        (lambda x: torch.floor_divide(x, torch.tensor(3.0)), (SHORT,)),
        (lambda x: torch.div(x, 3, rounding_mode="floor"), (SHORT,)),
        (lambda x: torch.div(x, 3, rounding_mode="trunc"), (SHORT,)),
        (lambda x: x % 3, (SHORT,)),
        (lambda x: F.threshold(x, 0.5, -1.5), (INTEGERS,)),
        (lambda x: F.threshold(x, 0.5, -1.5), (SHORT,)),
    ],
)
def test_the_dtype_that_a_program_sees(program: Program, given: tuple[Tensor, ...]) -> None:
    """While it is traced: what is computed of a quotient is given operands of this dtype."""
    seen: list[torch.dtype] = []

    def traced(*args: Tensor) -> Tensor:
        found = program(*args)
        assert isinstance(found, Tensor)
        seen.append(found.dtype)
        return found * 1

    assert_equal(traced, *given)
    assert seen[0] == seen[1]
