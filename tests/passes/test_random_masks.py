from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from tests.passes.patterns import check_same_results, ops_of
from tests.support.shares import each_value
from thunder_fuser import passes
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir import philox
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, RandomOp, Scalar, TensorView, Val
from thunder_fuser.ir.tables import random
from thunder_fuser.passes.random_masks import random_masks

Float, Int, Bool = DataType.Float, DataType.Int, DataType.Bool
DTYPES = (Float, DataType.Half, DataType.BFloat16)
LAST = random.WORDS - 1
COMPARED = {
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
}
INTERVALS = [(0.0, 1.0), (-0.7, 1.9), (1.0, 1.001), (-3e38, 3e38), (0.0, 1e-42)]


def compared(
    op: str, constant: float, interval: tuple[float, float], dtype: DataType, swap: bool
) -> Fusion:
    b = FusionBuilder()
    seed, offset = b.scalar(None, Int), b.scalar(None, Int)
    numbers = b.random("uniform", [8, 60], interval, (seed, offset), dtype)
    operands = (constant, numbers) if swap else (numbers, constant)
    rest = b.pointwise("logical_not", b.pointwise(op, *operands))
    assert isinstance(rest, TensorView)
    b.output(rest)
    return b.build()


def accepted(fusion: Fusion) -> tuple[int, int]:
    """The first word and their count, of a fusion that returns what a mask is not."""
    negation = fusion.definitions()[fusion.outputs[0]]
    expr = fusion.definitions()[negation.inputs[0]]
    if expr.op == "full":
        (fill,) = expr.inputs
        return 0, random.WORDS * bool(isinstance(fill, Scalar) and fill.value)
    assert isinstance(expr, RandomOp)
    assert expr.op == "bernoulli"
    first, count = (v.value for v in expr.parameters if isinstance(v, Scalar))
    assert isinstance(first, int)
    assert isinstance(count, int)
    return first, count


def answers(
    words: torch.Tensor,
    op: str,
    constant: float,
    interval: tuple[float, float],
    dtype: DataType,
    swap: bool,
) -> torch.Tensor:
    """What the comparison says of the number that each word is."""
    low, high = (torch.tensor(x) for x in interval)
    row = random.lookup("uniform")
    numbers = row.reference(words[:, None, None], low, high, dtype).flatten()
    wide, other = numbers.to(dtype.torch).to(torch.float32), torch.tensor(constant)
    return COMPARED[op](*((other, wide) if swap else (wide, other)))


@each_value(dtype=DTYPES, interval=INTERVALS)
def test_words_that_pass_are_those_whose_numbers_do(
    dtype: DataType, interval: tuple[float, float]
) -> None:
    """At each end of the words that pass, at both ends of all words, and at words drawn."""
    low, high = interval
    drawn = torch.randint(0, random.WORDS, (4000,), generator=torch.Generator().manual_seed(1))
    middle = low / 2 + high / 2
    constants = (0.0, 1.0, 0.9, 1 - 0.9, 1e-10, 1 - 1e-7, low, high, middle, -1.0, 2.0, torch.nan)
    for op, constant, swap in itertools.product(COMPARED, constants, (False, True)):
        before = compared(op, constant, interval, dtype, swap)
        first, count = accepted(random_masks(before))
        ends = [n % random.WORDS for e in (first, first + count) for n in range(e - 3, e + 4)]
        near = torch.tensor([*ends, *range(4), *range(LAST - 300, LAST + 1)])
        words = torch.cat([drawn, near])
        row = random.lookup("bernoulli")
        parameters = (torch.tensor(n) for n in (first, count))
        found = row.reference(words[:, None, None], *parameters, Bool).flatten()
        wanted = answers(words, op, constant, interval, dtype, swap)
        assert torch.equal(found, wanted), (op, constant, swap)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masks_of_kernels_are_those_of_the_numbers(dtype: DataType) -> None:
    state = (-(2**60) + 7, 5)
    seed, offset = map(torch.tensor, state)
    words = philox.words(seed, torch.arange(8 * 60 // 4), offset).flatten()
    for op, constant, swap in itertools.product(COMPARED, (0.1, 0.9), (False, True)):
        before = compared(op, constant, (0.0, 1.0), dtype, swap)
        after = passes.run(before, verify=True)
        assert ops_of(after) == ["bernoulli", "logical_not"]
        check_same_results(before, after, state)
        (mask,) = CompiledFusion(before)(state, torch.device("cpu"))
        wanted = answers(words, op, constant, (0.0, 1.0), dtype, swap)
        assert torch.equal(~mask.flatten(), wanted), (op, constant, swap)


def test_a_mask_that_all_numbers_pass_is_a_constant() -> None:
    """Dropout with p = 0 draws nothing."""
    b = Program()
    b.output(b.pointwise("mul", b.x, b.pointwise("lt", b.numbers(), 1.0)))  # type: ignore[arg-type]
    assert "bernoulli" not in ops_of(passes.run(b.build(), verify=True))


class Program(FusionBuilder):
    def __init__(self) -> None:
        super().__init__()
        self.x = self.tensor([4, 6], Float)
        self.p = self.scalar(None, DataType.Double)
        self.state = (self.scalar(None, Int), self.scalar(None, Int))

    def numbers(self, op: str = "uniform", dtype: DataType = Float, high: float = 1.0) -> Val:
        return self.random(op, [4, 6], (0.0, high), self.state, dtype)


def test_a_mask_that_is_returned_is_drawn() -> None:
    b = Program()
    b.output(b.pointwise("lt", b.numbers(), 0.5))  # type: ignore[arg-type]
    assert ops_of(passes.run(b.build(), verify=True)) == ["bernoulli"]


def read_twice(b: Program, numbers: Val) -> Val:
    return b.pointwise("where", b.pointwise("lt", numbers, 0.5), numbers, b.x)


def returned(b: Program, numbers: Val) -> Val:
    b.output(numbers)  # type: ignore[arg-type]
    return b.pointwise("lt", numbers, 0.5)


OTHERS: dict[str, Callable[[Program], Val]] = {
    "read twice": lambda b: read_twice(b, b.numbers()),
    "returned": lambda b: returned(b, b.numbers()),
    "not known before": lambda b: b.pointwise("lt", b.numbers(), b.p),
    "a tensor": lambda b: b.pointwise("lt", b.numbers(), b.x),
    "words of 53 bits": lambda b: b.pointwise("lt", b.numbers(dtype=DataType.Double), 0.5),
    "another distribution": lambda b: b.pointwise("lt", b.numbers("normal"), 0.5),
    "no interval": lambda b: b.pointwise("lt", b.numbers(high=0.0), 0.5),
    "a constant that is returned": lambda b: b.pointwise("lt", b.numbers(), 2.0),
    "no neighbours": lambda b: b.pointwise("ne", b.numbers(), 0.5),
}


@pytest.mark.parametrize("define", OTHERS.values(), ids=OTHERS)
def test_other_numbers_are_drawn(define: Callable[[Program], Val]) -> None:
    b = Program()
    b.output(define(b))  # type: ignore[arg-type]
    fusion = b.build()
    assert random_masks(fusion) is fusion
