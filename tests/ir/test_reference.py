"""The reference evaluator against torch itself, Python integers, and the domains' other reading."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
import torch

from tests.support.generator import random_case
from tests.support.inputs import random_tensor
from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Expand, NewBroadcast, broadcast, iteration, tensor_domain
from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.fusion import Fusion, MoveOp, PadOp, PointwiseOp, TensorView
from thunder_fuser.ir.index_maps import pull
from thunder_fuser.ir.integer.symint import Context
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.tables import pointwise

D = DataType
DTYPES = tuple(d for d in DataType if d is not DataType.Null)
GENERATOR = torch.Generator().manual_seed(0)


def randn(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=GENERATOR)


def run(b: FusionBuilder, *inputs: torch.Tensor | Number, double: bool = False) -> torch.Tensor:
    (out,) = evaluate(b.build(), inputs, double=double).outputs
    return out


# ---- rounding


def test_results_are_rounded_where_they_are_stored() -> None:
    """(x * y) is Float; cast to BFloat16 and back it has lost its bits."""
    x, y = randn(64).bfloat16(), randn(64).bfloat16()
    b = FusionBuilder()
    tx, ty = b.tensor([64], D.BFloat16), b.tensor([64], D.BFloat16)
    product = b.pointwise("mul", tx, ty)
    stored = b.cast(product, D.BFloat16)
    b.output(b.pointwise("sub", product, stored))
    exact = x.float() * y.float()
    assert torch.equal(run(b, x, y), exact - exact.bfloat16().float())
    assert (run(b, x, y) != 0).any()
    assert torch.equal(run(b, x, y, double=True), torch.zeros(64, dtype=torch.float64))


def test_kept_16_bit_results_are_rounded_too() -> None:
    """Bounds that Half does not hold: clamp computes in Float and stores Half."""
    x = randn(64).half()
    b = FusionBuilder()
    b.output(b.pointwise("clamp", b.tensor([64], D.Half), -0.1, 0.1))
    assert torch.equal(run(b, x), x.float().clamp(-0.1, 0.1).half())
    assert torch.equal(run(b, x, double=True), x.double().clamp(-0.1, 0.1))


def test_scalars_are_rounded_to_the_operand_dtype() -> None:
    b = FusionBuilder()
    x, number = b.tensor([3], D.Float), b.scalar(None, D.Double)
    b.output(b.pointwise("add", x, number))
    assert torch.equal(run(b, torch.zeros(3), 0.1), torch.full((3,), 0.1))
    exact = run(b, torch.zeros(3), 0.1, double=True)
    assert exact.tolist() == [0.1, 0.1, 0.1]


@pytest.mark.parametrize("exponent", [0.5, -0.5, 0.25, 2, -1])
def test_powers_by_numbers_are_torch_s(exponent: float) -> None:
    """The square root of -inf is NaN, its other powers are not."""
    b = FusionBuilder()
    b.output(b.pointwise("pow", b.tensor([5], D.Float), exponent))
    x = torch.tensor([-math.inf, -0.0, -1.0, 2.0, math.inf])
    for double in (False, True):
        base = x.double() if double else x
        torch.testing.assert_close(run(b, x, double=double), base**exponent, equal_nan=True)


@pytest.mark.parametrize("source", DTYPES)
def test_casts_are_torch_s(source: DataType) -> None:
    rng = random.Random(source.name)
    data = random_tensor(rng, [50], source)
    if source.is_floating:
        data = data.float().nan_to_num(0, 1, -1).abs().to(source.torch)
    if source.is_complex:
        data = torch.complex(data.real.abs(), data.imag)
    for target in DTYPES:
        b = FusionBuilder()
        b.output(b.cast(b.tensor([50], source), target))
        drops_imaginary = source.is_complex and not (target.is_complex or target is D.Bool)
        expected = (data.real if drops_imaginary else data).to(target.torch)
        got = run(b, data)
        assert got.dtype is target.torch
        assert torch.equal(bits(got), bits(expected)), (source, target)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


# ---- wide unsigned integers


UNSIGNED = ("neg", "add", "sub", "mul", "div", "mod", "remainder", "pow", "gcd", "minimum", "clamp")
UNSIGNED += ("maximum", "threshold", "lt", "le", "gt", "ge", "eq", "ne", "sign", "abs", "relu")
UNSIGNED += ("bitwise_left_shift", "bitwise_right_shift", "logical_right_shift", "bitwise_not")
UNSIGNED += ("bitwise_and", "bitwise_or", "bitwise_xor", "signbit", "where", "addcmul", "ceil")


def on_python_integers(name: str, bits: int, *x: int) -> int:
    a, b, c, d = (*x, *[0] * (4 - len(x)))
    inside = 0 <= b < bits
    value = {
        "neg": lambda: -a,
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "mul": lambda: a * b,
        "div": lambda: a // b if b else 0,
        "mod": lambda: a % b if b else 0,
        "remainder": lambda: a % b if b else 0,
        "pow": lambda: pow(a, b, 1 << bits),
        "gcd": lambda: math.gcd(a, b),
        "minimum": lambda: min(a, b),
        "maximum": lambda: max(a, b),
        "clamp": lambda: min(max(a, b), c),
        "threshold": lambda: c if a <= b else a,
        "lt": lambda: a < b,
        "le": lambda: a <= b,
        "gt": lambda: a > b,
        "ge": lambda: a >= b,
        "eq": lambda: a == b,
        "ne": lambda: a != b,
        "sign": lambda: a > 0,
        "abs": lambda: a,
        "relu": lambda: a,
        "ceil": lambda: a,
        "signbit": lambda: False,
        "bitwise_left_shift": lambda: a << b if inside else 0,
        "bitwise_right_shift": lambda: a >> b if inside else 0,
        "logical_right_shift": lambda: a >> b if inside else 0,
        "bitwise_not": lambda: ~a,
        "bitwise_and": lambda: a & b,
        "bitwise_or": lambda: a | b,
        "bitwise_xor": lambda: a ^ b,
        "where": lambda: b if a else c,
        "addcmul": lambda: a + b * c * d,
    }[name]()
    return int(value) % (1 << bits)


@pytest.mark.parametrize("dtype", [D.UInt8, D.UInt16, D.UInt32, D.UInt64])
@pytest.mark.parametrize("name", UNSIGNED)
def test_unsigned_arithmetic_is_python_s_modulo_a_power_of_two(name: str, dtype: DataType) -> None:
    width = 8 * dtype.itemsize
    top = 1 << width
    numbers = [0, 1, 2, 3, 7, 8, 63, 64, top // 2 - 1, top // 2, top // 2 + 5, top - 2, top - 1]
    op = pointwise.lookup(name)
    if op.arity < 3:
        rows = list(itertools.product(numbers, repeat=op.arity))
    else:
        rows = random.Random(0).choices(list(itertools.product(numbers, repeat=op.arity)), k=200)
    b = FusionBuilder()
    types = [D.Bool if name == "where" and k == 0 else dtype for k in range(op.arity)]
    views = [b.tensor([len(rows)], t) for t in types]
    out = b.pointwise(name, *views)
    b.output(out)
    inputs = [
        torch.tensor([bool(r[k]) if t is D.Bool else r[k] for r in rows], dtype=t.torch)
        for k, t in enumerate(types)
    ]
    got = run(b, *inputs).tolist()
    for row, mine in zip(rows, got, strict=True):
        assert int(mine) == on_python_integers(name, width, *row), (name, dtype, row)


def test_large_unsigned_numbers_become_floats() -> None:
    data = torch.tensor([2**64 - 1, 2**63, 3], dtype=torch.uint64)
    b = FusionBuilder()
    b.output(b.pointwise("sqrt", b.tensor([3], D.UInt64)))
    expected = torch.tensor([2.0**64, 2.0**63, 3.0]).sqrt()
    torch.testing.assert_close(run(b, data), expected)


# ---- views


Make = Callable[[FusionBuilder, TensorView], TensorView]


def viewed(make: Make, *sizes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The counting tensor of these sizes, and what a view of it holds."""
    count = torch.arange(math.prod(sizes)).reshape(sizes)
    b = FusionBuilder()
    b.output(make(b, b.tensor(sizes, D.Int)))
    return count, run(b, count)


def test_views_are_torch_s() -> None:
    x, got = viewed(lambda b, t: b.permute(t, [2, 0, 1]), 2, 3, 5)
    assert torch.equal(got, x.permute(2, 0, 1))
    x, got = viewed(lambda b, t: b.reshape(t, [5, 2, -1]), 2, 3, 5)
    assert torch.equal(got, x.reshape(5, 2, 3))
    x, got = viewed(lambda b, t: b.slice(t, [1, 0], [7, 9], [3, 2]), 8, 9)
    assert torch.equal(got, x[1:7:3, 0:9:2])
    x, got = viewed(lambda b, t: b.pad(t, [2, -1, -2, 3], 9), 4, 5)
    assert torch.equal(got, torch.nn.functional.pad(x, [2, -1, -2, 3], value=9))
    x, got = viewed(lambda b, t: b.pad(t, [-3, 4], 7), 2, 3)
    assert torch.equal(got, torch.full((2, 4), 7))
    x, got = viewed(lambda b, t: b.broadcast_in_dim(t, [4, 3, 2, 6], [1, 3]), 3, 1)
    assert torch.equal(got, x[None, :, None].expand(4, 3, 2, 6))
    x, got = viewed(lambda b, t: b.expand(t, [7, -1]), 1, 3)
    assert torch.equal(got, x.expand(7, 3))
    x, got = viewed(lambda b, t: b.squeeze(t, [0, -1]), 1, 3, 1)
    assert torch.equal(got, x.reshape(3))
    x, got = viewed(lambda b, t: b.cat([t, b.slice(t, [0, 1], [2, 2]), t], -1), 2, 3)
    assert torch.equal(got, torch.cat([x, x[:, 1:2], x], -1))
    x, got = viewed(lambda b, t: b.set(b.segment_set(t)), 2, 3)
    assert torch.equal(got, x)


def test_stride_order_decides_the_strides_of_the_result() -> None:
    x, got = viewed(lambda b, t: b.stride_order(t, [0, 2, 1]), 2, 3, 5)
    assert torch.equal(got, x)
    assert got.stride() == (1, 10, 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_move_every_dtype(dtype: DataType) -> None:
    data = random_tensor(random.Random(1), [3, 4], dtype)
    if dtype.is_floating:
        data = data.double().nan_to_num(7).to(dtype.torch)  # NaN has many bit patterns
    b = FusionBuilder()
    x = b.tensor([3, 4], dtype)
    b.output(b.cat([b.permute(x, [1, 0]), b.pad(b.permute(x, [1, 0]), [0, 0, -3, 0])], 0))
    got = run(b, data)
    assert torch.equal(bits(got), bits(torch.cat([data.t(), data.t()[3:]])))


def test_factories() -> None:
    b = FusionBuilder()
    b.output(b.full([2, 2], 0.1, D.Half))
    b.output(b.iota(5, 3, -2, D.Int8))
    b.output(b.iota(4, 0.5, 0.1, D.Float))
    full, integers, floats = evaluate(b.build(), []).outputs
    assert torch.equal(full, torch.full((2, 2), 0.1).half())
    assert integers.tolist() == [3, 1, -1, -3, -5]
    torch.testing.assert_close(floats, 0.5 + 0.1 * torch.arange(4.0))


@pytest.mark.parametrize("seed", range(40))
def test_both_readings_of_a_view_agree(seed: int) -> None:
    """Read forwards a program moves elements (here), read backwards it gives indices (`pull`)."""
    rng = random.Random(seed)
    case = random_case(seed, max_numel=300, updates=False)
    values = case.oracle.evaluator.values
    for expr in case.fusion.exprs:
        if not isinstance(expr, MoveOp):
            continue
        sizes, domain = expr.output.sizes, expr.output.domain
        context = Context()
        index = [context.var(f"i{k}", 0, max(n - 1, 0)) for k, n in enumerate(sizes)]
        source, guards = pull(index, domain.root, domain.transforms, context.const(0))
        for _ in range(20 if expr.output.numel else 0):
            point = tuple(rng.randrange(n) for n in sizes)
            env = {f"i{k}": i for k, i in enumerate(point)}
            inside = all(0 <= g.index.evaluate(env) < g.extent for g in guards)
            if inside:
                want = values[expr.input][tuple(f.evaluate(env) for f in source)]
            else:
                assert isinstance(expr, PadOp)
                want = case.oracle.value(expr.fill)
            torch.testing.assert_close(
                values[expr.output][point],
                want.to(values[expr.output].dtype),
                equal_nan=True,
                rtol=0,
                atol=0,
            )


# ---- inputs and updates


def fold_input(sizes: list[int]) -> Fusion:
    """relu of an input bound to [3], seen as sizes x 3."""
    domain = tensor_domain(
        [iteration(3)],
        [*(NewBroadcast(0) for _ in sizes), *(Expand(k, n) for k, n in enumerate(sizes))],
    )
    x = TensorView(0, D.Float, domain)
    y = TensorView(1, D.Float, tensor_domain([*map(broadcast, sizes), iteration(3)]))
    return Fusion((x,), (PointwiseOp("relu", (x,), y),), (y,))


def test_inputs_bind_to_their_root() -> None:
    x = torch.tensor([-1.0, 2.0, 3.0])
    (got,) = evaluate(fold_input([2, 4]), [x]).outputs
    assert torch.equal(got, x.relu().expand(2, 4, 3))


def counter() -> Fusion:
    """x += 1, returned as well, together with what x was."""
    b = FusionBuilder()
    x = b.tensor([3], D.Int)
    more = b.pointwise("add", x, 1)
    assert isinstance(more, TensorView)
    b.output(more)
    b.output(b.set(x))
    b.output(more, x)
    return b.build()


def test_updates_are_values_unless_they_are_applied() -> None:
    x = torch.tensor([1, 2, 3])
    found = evaluate(counter(), [x])
    assert [t.tolist() for t in found.updates] == [[2, 3, 4]]
    assert x.tolist() == [1, 2, 3]
    found = evaluate(counter(), [x], apply_updates=True)
    assert x.tolist() == [2, 3, 4]
    assert found.outputs[0] is x
    assert found.outputs[1].tolist() == [1, 2, 3]


def test_results_never_share_memory_with_inputs() -> None:
    b = FusionBuilder()
    x = b.tensor([4], D.Float)
    b.output(x)
    b.output(b.reshape(x, [2, 2]))
    data = torch.zeros(4)
    for out in evaluate(b.build(), [data]).outputs:
        out.fill_(1)
    assert data.tolist() == [0, 0, 0, 0]


def test_gradients_are_not_tracked() -> None:
    b = FusionBuilder()
    b.output(b.pointwise("exp", b.tensor([2], D.Float)))
    assert not run(b, torch.zeros(2, requires_grad=True)).requires_grad


def test_inputs_that_do_not_fit() -> None:
    b = FusionBuilder()
    x, s = b.tensor([2, 3], D.Float), b.scalar(None, D.Double)
    b.output(b.pointwise("mul", x, s))
    good = torch.zeros(2, 3)
    with pytest.raises(FuserValueError, match="expected 2 inputs, got 1"):
        evaluate(b.build(), [good])
    with pytest.raises(FuserValueError, match=r"T0.*sizes \[2, 3\].*got .*\[3, 2\]"):
        evaluate(b.build(), [good.t(), 1.0])
    with pytest.raises(FuserValueError, match=r"float32.*float64"):
        evaluate(b.build(), [good.double(), 1.0])
    with pytest.raises(FuserTypeError, match="is a tensor"):
        evaluate(b.build(), [1.0, 1.0])
    with pytest.raises(FuserTypeError, match="is a scalar"):
        evaluate(b.build(), [good, good])


def test_symbolic_sizes_are_refused() -> None:
    b = FusionBuilder()
    b.output(b.pointwise("exp", b.tensor([-1], D.Float)))
    with pytest.raises(FuserValueError, match="symbolic"):
        evaluate(b.build(), [torch.zeros(2)])
