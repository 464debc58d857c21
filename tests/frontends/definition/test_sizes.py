"""Sizes of definitions: those that are asked for, those that are computed, and their conflicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.frontends.definition.rebuilding import rebuilt
from thunder_fuser.errors import FuserError, FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.ir.integer.counts import evaluated
from thunder_fuser.ir.printer import equal
from thunder_fuser.ir.rebuild import specialise
from thunder_fuser.runtime.binding.bind import bind

Float, Int, Double = DataType.Float, DataType.Int, DataType.Double
Write = Callable[[FusionDefinition, Any], Any]


def defined(write: Write, rank: int = 1, number: bool = False) -> FusionDefinition:
    """A definition of what `write` makes of a tensor whose sizes are open, or of a number."""
    with FusionDefinition() as fd:
        x = fd.define_scalar(None, Int) if number else fd.define_tensor([-1] * rank, True, Float)
        fd.add_output(fd.ops.neg(write(fd, x)))
    return fd


def sizes_of(fd: FusionDefinition, x: torch.Tensor | int) -> list[int]:
    """The sizes of its result for this input; nothing is compiled."""
    assert equal(rebuilt(fd.fusion), fd.fusion)
    static = specialise(fd.fusion, bind(fd.fusion, [x]).sizes)
    return list(static.outputs[0].sizes)


# ---- sizes that are asked for


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda fd, x: fd.ops.reshape(x, [25]), "reshape at .* 30 elements become 25"),
        (lambda fd, x: fd.ops.reshape(x, [5, 5]), "reshape at .* 30 elements become 25"),
        (lambda fd, x: fd.ops.expand(x, [25]), r"expand at .* 30 \(.* and 25 \(stated in the"),
        (
            lambda fd, x: fd.ops.broadcast_in_dim(x, [25, 3], [0]),
            r"broadcast_in_dim at .* 30 \(dimension 0 of input 0, T0\) and 25 \(stated in the",
        ),
        (lambda fd, x: fd.ops.expand(x, [fd.define_scalar(25)]), r"expand .* 30 .* and 25"),
        (lambda fd, x: fd.ops.add(x, fd.ops.full([25], 1.0, Float)), r"add at .* 30 .* and 25"),
    ],
)
def test_sizes_that_are_stated_are_checked(write: Write, message: str) -> None:
    fd = defined(write)
    assert fd.plan().sizes is None
    with pytest.raises(FuserValueError, match=message):
        fd.execute([torch.zeros(30)])


def test_sizes_that_are_stated_may_be_numbers() -> None:
    with FusionDefinition() as fd:
        n, x = fd.define_scalar(None, Int), fd.define_tensor([-1], True, Float)
        fd.add_output(fd.ops.neg(fd.ops.reshape(x, [n, 5])))
        fd.add_output(fd.ops.neg(fd.ops.expand(x, [n])))
    with pytest.raises(FuserValueError, match="30 elements become 35"):
        bind(fd.fusion, [7, torch.zeros(30)])
    with pytest.raises(FuserValueError, match=r"expand at .* 30 .* and 6 \(input 0, S0\)"):
        bind(fd.fusion, [6, torch.zeros(30)])


def test_stated_sizes_that_contradict_each_other_are_an_error_at_their_line() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, 8], True), fd.define_tensor([-1, 8], True)
        z = fd.ops.add(x, y)
        fd.ops.broadcast_in_dim(y, [3, 8], [0, 1])
        message = r"broadcast_in_dim at .*: 3 \(dimension 0 of T\d+, by .*\) and 4 \(stated"
        with pytest.raises(FuserValueError, match=message + r".*\(in fd.ops.broadcast_in_dim at"):
            fd.ops.broadcast_in_dim(z, [4, 8], [0, 1])


def test_no_elements_may_be_rearranged() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([33, 5], True, Float)
        fd.add_output(fd.ops.neg(fd.ops.reshape(fd.ops.slice(x, [0, 1], [13, 1]), [3, 0])))
    assert list(fd.execute([torch.ones(33, 5)])[0].shape) == [3, 0]
    fd = defined(lambda fd, x: fd.ops.reshape(x, [x.size(1), 4, x.size(0)]), rank=2)
    assert sizes_of(fd, torch.zeros(0, 7)) == [7, 4, 0]
    fd = defined(lambda fd, x: fd.ops.reshape(x, [3, 0]), rank=2)
    assert sizes_of(fd, torch.zeros(13, 0)) == [3, 0]


def test_dimensions_that_must_be_one_come_and_go() -> None:
    fd = defined(lambda fd, x: fd.ops.reshape(x, []))
    assert sizes_of(fd, torch.zeros(1)) == []
    with pytest.raises(FuserValueError, match="2 elements become 1"):
        sizes_of(fd, torch.zeros(2))
    with FusionDefinition() as fd:
        n = fd.define_scalar(None, Int)
        fd.add_output(fd.ops.neg(fd.ops.reshape(fd.define_tensor([], True, Float), [n, n])))
    assert list(fd.execute([1, torch.tensor(2.0)])[0].shape) == [1, 1]


# ---- sizes that are computed


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda fd, n: fd.ops.div(n, 4), lambda n: n // 4),
        (lambda fd, n: fd.ops.mod(n, 4), lambda n: n % 4),
        (lambda fd, n: fd.ops.maximum(n, 5), lambda n: max(n, 5)),
        (lambda fd, n: fd.ops.minimum(n, 5), lambda n: min(n, 5)),
        (lambda fd, n: fd.ops.neg(fd.ops.sub(3, n)), lambda n: n - 3),
        (lambda fd, n: fd.ops.div(fd.ops.sub(3, n), -2), lambda n: (n - 3) // 2),
        (lambda fd, n: fd.ops.where(fd.ops.gt(n, 6), n, 2), lambda n: n if n > 6 else 2),
        (lambda fd, n: fd.ops.where(fd.ops.eq(n, 7), 1, n), lambda n: 1 if n == 7 else n),
        (lambda fd, n: fd.ops.pow(n, 2), lambda n: n * n),
        (lambda fd, n: fd.ops.abs(fd.ops.sub(5, n)), lambda n: abs(5 - n)),
        (lambda fd, n: fd.ops.clamp(n, 4, 7), lambda n: min(max(n, 4), 7)),
        (
            lambda fd, n: fd.ops.cast(fd.ops.ceil(fd.ops.div(fd.ops.cast(n, Double), 4.0)), Int),
            lambda n: -(-n // 4),
        ),
        (lambda fd, n: fd.ops.cast(fd.ops.truediv(n, 4), Int), lambda n: n // 4),
        (
            lambda fd, n: fd.ops.where(
                fd.ops.logical_and(fd.ops.gt(n, 4), fd.ops.bitwise_not(fd.ops.ge(n, 8))), 1, 0
            ),
            lambda n: int(4 < n < 8),
        ),
    ],
)
def test_sizes_are_computed(compute: Write, expected: Callable[[int], int]) -> None:
    """From the sizes of tensors, and from numbers."""
    of_tensor = defined(lambda fd, x: fd.ops.full([compute(fd, x.size(0))], 1.0, Float))
    of_number = defined(lambda fd, n: fd.ops.full([compute(fd, n)], 1.0, Float), number=True)
    for n in (4, 5, 7, 8, 11):
        assert sizes_of(of_tensor, torch.zeros(n)) == [expected(n)]
        assert sizes_of(of_number, n) == [expected(n)]


def test_a_group_norm_over_computed_groups() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1, -1], True, Float)
        weight = fd.define_tensor([-1], True, Float)
        size = x.shape()
        width = fd.ops.div(x.size(1), fd.define_scalar(4, Int))
        groups = fd.define_vector([x.size(0), 4, width, x.size(2), x.size(3)])
        y = fd.ops.reshape(x, groups)
        variance, mean = fd.ops.var_mean(y, [2, 3, 4], correction=0, keepdim=True)
        normal = fd.ops.mul(fd.ops.sub(y, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))
        scale = fd.ops.reshape(weight, [1, 4, fd.ops.div(weight.size(0), 4), 1, 1])
        shown = fd.ops.broadcast_in_dim(scale, fd.ops.shape(y), [0, 1, 2, 3, 4])
        fd.add_output(fd.ops.reshape(fd.ops.mul(normal, shown), size))
    plan = fd.plan()
    assert plan.sizes is not None
    assert plan.sizes.places["i1"] == ("T0.size(1) // 4", "T1.size(0) // 4")
    assert str(plan.bytes) == "32*i0*i1*i2*i3 + 16*i1"
    inputs = [torch.randn(2, 8, 3, 5), torch.randn(8)]
    expected = torch.nn.functional.group_norm(inputs[0], 4, inputs[1])
    torch.testing.assert_close(fd.execute(inputs)[0], expected)
    with pytest.raises(FuserValueError, match=r"reshape at .* 90 elements become 60"):
        fd.execute([torch.randn(1, 6, 3, 5), torch.randn(6)])


def test_arithmetic_on_numbers_is_no_size_until_it_is_used_as_one() -> None:
    with FusionDefinition() as fd:
        n, x = fd.define_scalar(None, Int), fd.define_tensor([4], True, Float)
        fd.add_output(fd.ops.mul(x, fd.ops.add(n, 1)))
    for value in (-5, 3):
        assert fd.execute([value, torch.ones(4)])[0].tolist() == [value + 1] * 4
    assert len(fd.compiled.executables) == 1


def test_slices_end_where_an_open_dimension_does() -> None:
    fd = defined(lambda fd, x: fd.ops.slice(x, [1], [10], [3]))
    for n in (0, 1, 2, 9, 10, 50):
        assert sizes_of(fd, torch.zeros(n)) == [len(range(n)[1:10:3])]
    assert "i0 >= 10" in str(fd.plan())
    fd = defined(lambda fd, x: fd.ops.slice(x, [fd.ops.sub(x.size(0), 5)], [9]))
    assert sizes_of(fd, torch.zeros(7)) == [5]
    for n, message in ((4, "from -1 to 4"), (20, "from 15 to 9")):
        with pytest.raises(FuserValueError, match=f"slice at .* {n} elements, is cut {message}"):
            sizes_of(fd, torch.zeros(n))


def test_sizes_may_be_whole_floats() -> None:
    fd = defined(lambda fd, x: fd.ops.full([3.0, fd.define_scalar(2.0)], 1.0, Float))
    assert sizes_of(fd, torch.zeros(3)) == [3, 2]


# ---- mistakes


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (
            lambda fd, x: fd.ops.full([2, -1], 1.0, Float),
            FuserValueError,
            "full: size 1 is -1; exp",
        ),
        (lambda fd, x: fd.ops.iota(-1), FuserValueError, "iota: size 0 is -1; expected at least 0"),
        (lambda fd, x: fd.ops.uniform(0.0, 1.0, [-2]), FuserValueError, "uniform: size 0 is -2"),
        (
            lambda fd, x: fd.ops.broadcast_in_dim(x, [3, -5], [0]),
            FuserValueError,
            r"broadcast_in_dim: size 1 is -5; expected -1 \(as it is\) or at least 0",
        ),
        (lambda fd, x: fd.ops.reshape(x, [-3, 2]), FuserValueError, "reshape: size 0 is -3"),
        (lambda fd, x: fd.ops.reshape(x, [0, -1]), FuserValueError, "-1 could be anything"),
        (lambda fd, x: fd.ops.full([2.5], 1.0, Float), FuserTypeError, "expected an integer"),
        (lambda fd, x: fd.ops.full([None], 1.0, Float), FuserTypeError, "must be an int, got None"),
        (
            lambda fd, x: fd.ops.full([fd.ops.cast(fd.ops.sqrt(x.size(0)), Int)], 1.0, Float),
            FuserTypeError,
            "cannot be a size: a size is an integer, or computed from integers",
        ),
        (
            lambda fd, x: fd.ops.full([2], float("nan"), Int),
            FuserValueError,
            "full: DataType.Int does not hold nan",
        ),
    ],
)
def test_impossible_sizes_are_errors_at_their_line(
    write: Write, error: type[FuserError], message: str
) -> None:
    with pytest.raises(error, match=message + r".*\(in fd\.ops\.\w+ at .*test_sizes\.py:\d+\)"):
        defined(write)


def test_computed_sizes_below_zero_are_errors_of_the_call() -> None:
    fd = defined(lambda fd, x: fd.ops.full([fd.ops.sub(x.size(0), 5)], 1.0, Float))
    with pytest.raises(FuserValueError, match=r"full at .* has -2 elements \(T0_0 - 5\); expected"):
        sizes_of(fd, torch.zeros(3))


# ---- plans


def test_a_plan_after_a_call_is_what_ran() -> None:
    fd = defined(lambda fd, x: fd.ops.exp(x))
    assert str(fd.plan().bytes) == "8*i0"
    fd.execute([torch.zeros(3)])
    assert fd.plan().bytes == 24
    assert fd.plan(sizes={"i0": 5}).bytes == 40
    assert str(fd.plan(sizes={}).bytes) == "8*i0"


def test_sizes_that_only_a_product_ties_are_planned() -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], True, Float) for _ in range(2))
        fd.add_output(fd.ops.add(fd.ops.reshape(x, [-1]), fd.ops.reshape(y, [-1])))
    plan = fd.plan()
    assert "i0*i1 == i2*i3" in [str(c) for c in plan.conditions]
    assert plan.sizes is not None
    a, b, c, d = plan.sizes.values.values()
    assert a * b == c * d
    assert evaluated(plan.bytes, plan.sizes.values) == plan.bytes == 12 * a * b
