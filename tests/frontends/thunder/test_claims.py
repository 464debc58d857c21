"""Every row of the claims table, through thunder.jit, against torch; and what rows refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from thunder.core import devices, dtypes, prims
from thunder.core.prims import PrimIDs

from tests.frontends.thunder.programs import (
    assert_as_good_as_eager,
    check,
    fake,
    jit,
    primitives,
    traced,
)
from thunder_fuser.frontends.thunder import fusions, refusals
from thunder_fuser.frontends.thunder.claims import (
    activations,
    calls,
    complex_calls,
    indexing,
    random,
    reductions,
    scans,
)
from thunder_fuser.frontends.thunder.claims.table import TABLE


class Case(NamedTuple):
    """One primitive called in one way: what Thunder sees, and what torch makes of it."""

    prim: PrimIDs
    call: Callable[..., Any]
    reference: Callable[..., torch.Tensor]


def same(prim: PrimIDs, name: str, reference: Callable[..., torch.Tensor] | None = None) -> Case:
    """Thunder's primitive and torch's function take the same operands."""
    found = reference or getattr(torch, name, None) or getattr(torch.special, name)
    return Case(prim, getattr(prims, name), found)


UNARY = [
    *(
        "abs",
        "acosh",
        "asinh",
        "atan",
        "ceil",
        "cos",
        "cosh",
        "erf",
        "erfc",
        "exp",
        "exp2",
        "expm1",
    ),
    *(
        "digamma",
        "floor",
        "isfinite",
        "lgamma",
        "log",
        "log10",
        "log1p",
        "log2",
        "neg",
        "reciprocal",
        "round",
    ),
    *("rsqrt", "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
]
UNIT_INTERVAL = ["acos", "asin", "atanh", "erfinv"]
BINARY = [
    *(
        "add",
        "atan2",
        "div",
        "eq",
        "fmod",
        "ge",
        "gt",
        "le",
        "lt",
        "maximum",
        "minimum",
        "mul",
        "ne",
    ),
    *("nextafter", "pow", "remainder", "sub"),
]
BITWISE = [f"bitwise_{name}" for name in ("and", "or", "xor", "left_shift", "right_shift")]


def cases(names: list[str]) -> list[Case]:
    return [same(PrimIDs[name.upper()], name) for name in names]


# Built without an expression of that name.
NAMED_OTHERWISE = {"slice", "real", "imag"}


def run(found: list[Case], *inputs: torch.Tensor) -> None:
    """All cases in one function, which becomes one fusion."""

    def program(*args: Any) -> list[Any]:
        return [case.call(*args) for case in found]

    compiled = jit(program)
    ours = compiled(*inputs)
    (report,) = fusions(compiled)
    assert refusals(compiled) == {}
    for case, result in zip(found, ours, strict=True):
        truth = case.reference(*inputs)
        assert (result.shape, result.dtype) == (truth.shape, truth.dtype), case.prim.name
        # Libraries differ in the last digits, most of all around a zero of a function.
        near = 64 * torch.finfo(truth.dtype).eps if truth.dtype.is_floating_point else 0
        torch.testing.assert_close(result, truth, rtol=near, atol=near, msg=case.prim.name)
    assert report.plan.kernels == 1
    claimed = {case.prim for case in found} - {PrimIDs.SHALLOW_COPY}
    assert {prim.name.lower() for prim in claimed} <= set(primitives(report)) | NAMED_OTHERWISE


def positive(*shape: int) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64) * 3 + 1.01


def test_unary() -> None:
    x = positive(5, 7)
    run(cases(UNARY), x)
    run([same(PrimIDs.SIGN, "sign", torch.sgn), *cases(["abs", "neg", "floor", "round"])], x - 2.5)
    erfcinv = Case(PrimIDs.ERFCINV, prims.erfcinv, lambda x: torch.erfinv(1 - x))
    run([*cases(UNIT_INTERVAL), erfcinv], torch.rand(5, 7, dtype=torch.float64) * 0.8 + 0.1)


def test_binary() -> None:
    run(cases(BINARY), positive(5, 7), positive(5, 7))


def test_ternary() -> None:
    lerp = Case(PrimIDs.LERP, prims.lerp, torch.lerp)
    run([lerp], positive(5), positive(5), positive(5))
    number = Case(PrimIDs.LERP, lambda x, y: prims.lerp(x, y, 0.25), lambda x, y: x.lerp(y, 0.25))
    run([number], positive(5), positive(5))
    x, y = positive(3, 4), -positive(3, 4)
    where = [
        Case(PrimIDs.WHERE, prims.where, torch.where),
        Case(
            PrimIDs.WHERE, lambda c, x, y: prims.where(c, x, 2.0), lambda c, x, y: x.where(c, 2.0)
        ),
        Case(
            PrimIDs.WHERE,
            lambda c, x, y: prims.where(c, 1, 0),
            lambda c, x, y: torch.where(c, 1, 0),
        ),
        Case(
            PrimIDs.WHERE,
            lambda c, x, y: prims.where(c, 1.5, 0.0),
            lambda c, x, y: torch.where(c, 1.5, 0.0),
        ),
    ]
    run(where, x > 2, x, y)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_integers(dtype: torch.dtype) -> None:
    a = torch.tensor([[-7, 0, 3], [12, -1, 5]], dtype=dtype)
    b = torch.tensor([[2, 3, 1], [5, 4, 7]], dtype=dtype)
    exact = ["add", "sub", "mul", "maximum", "minimum", "pow"]
    run([*cases([*exact, *BITWISE, "eq", "ne", "lt", "le", "gt", "ge"])], a, b)
    by_number = [
        Case(PrimIDs.DIV, lambda a: prims.div(a, 3), lambda a: a.div(3, rounding_mode="trunc")),
        Case(PrimIDs.FMOD, lambda a: prims.fmod(a, -3), lambda a: a.fmod(-3)),
        Case(PrimIDs.REMAINDER, lambda a: prims.remainder(a, -3), lambda a: a.remainder(-3)),
    ]
    unary = [*cases(["abs", "neg", "bitwise_not"]), same(PrimIDs.SIGN, "sign", torch.sgn)]
    run([*by_number, *unary], a)


@pytest.mark.parametrize("name", ["div", "fmod", "remainder"])
def test_divisions_of_integers_by_tensors_stay_with_torch_on_the_cpu(name: str) -> None:
    compiled = jit(getattr(prims, name))
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        compiled(torch.tensor([1, 2]), torch.tensor([1, 0]))
    assert [r.code for r in refusals(compiled)] == ["division"]
    integers = fake((3,), (3,), dtype=torch.int64)
    assert len(traced(getattr(prims, name), *integers)) == 1


def test_bools() -> None:
    a = torch.tensor([True, True, False, False])
    b = torch.tensor([True, False, True, False])
    run(cases(["bitwise_and", "bitwise_or", "bitwise_xor", "eq", "ne"]), a, b)
    run(cases(["bitwise_not"]), a)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex(dtype: torch.dtype) -> None:
    z = torch.randn(4, 3, dtype=torch.complex128)
    w = torch.randn(4, 3, dtype=torch.complex128)
    unary = ["abs", "real", "imag", "neg", "exp", "sin", "cos", "tanh", "sqrt", "log", "reciprocal"]
    found = [*cases(unary), same(PrimIDs.SIGN, "sign", torch.sgn)]

    def program(z: Any, w: Any) -> list[Any]:
        joint = [
            prims.add(z, w),
            prims.mul(z, w),
            prims.div(z, w),
            prims.eq(z, w),
            prims.mul(z, 2j),
        ]
        return [*(case.call(z) for case in found), *joint]

    def truth(z: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [*(case.reference(z) for case in found), z + w, z * w, z / w, z == w, z * 2j]

    compiled = jit(program)
    narrow = (z.to(dtype), w.to(dtype))
    exact = truth(*(x.to(torch.complex128) for x in narrow))
    for k, rows in enumerate(zip(compiled(*narrow), truth(*narrow), exact, strict=True)):
        assert_as_good_as_eager(*rows, f"result {k}", factor=8)
    assert len(fusions(compiled)) == 1


CPU = devices.cpu
MOVES = [
    Case(
        PrimIDs.BROADCAST_IN_DIM,
        lambda x: prims.broadcast_in_dim(x, (3, 6, 4, 5), (1, 3)),
        lambda x: x[:, None, :].expand(3, 6, 4, 5),
    ),
    Case(PrimIDs.RESHAPE, lambda x: prims.reshape(x, (10, 3)), lambda x: x.reshape(10, 3)),
    Case(
        PrimIDs.SLICE,
        lambda x: prims.slice_prim(x, (1, 0), (6, 5), (2, 3)),
        lambda x: x[1:6:2, 0:5:3],
    ),
    Case(
        PrimIDs.SQUEEZE,
        lambda x: prims.squeeze(prims.reshape(x, (6, 1, 5)), (1,)),
        lambda x: x,
    ),
    Case(PrimIDs.TRANSPOSE, lambda x: prims.transpose(x, (1, 0)), lambda x: x.t()),
    Case(PrimIDs.SHALLOW_COPY, prims.shallow_copy, lambda x: x),
    Case(PrimIDs.STRIDE_ORDER, lambda x: prims.stride_order(x, (0, 1)), lambda x: x),
    Case(PrimIDs.CLONE, prims.clone, lambda x: x),
    Case(PrimIDs.FLIP, lambda x: prims.flip(x, (0, 1)), lambda x: x.flip(0, 1)),
    Case(PrimIDs.FLIP, lambda x: prims.flip(x, (1,)), lambda x: x.flip(-1)),
    Case(PrimIDs.CAT, lambda x: prims.cat([x, x, x], 0), lambda x: torch.cat([x, x, x])),
    Case(PrimIDs.CAT, lambda x: prims.cat([x, x], -1), lambda x: torch.cat([x, x], 1)),
    Case(
        PrimIDs.PAD,
        lambda x: prims.pad(x, 1.5, ((1, -2, 0), (0, 3, 0))),
        lambda x: torch.nn.functional.pad(x, (0, 3, 1, -2), value=1.5),
    ),
    Case(
        PrimIDs.FULL,
        lambda x: prims.add(x, prims.full((6, 5), 2.5, device=CPU, dtype=dtypes.float64)),
        lambda x: x + 2.5,
    ),
    Case(
        PrimIDs.IOTA,
        lambda x: prims.iota(4, start=2, step=3, device=CPU, dtype=dtypes.int64),
        lambda x: torch.arange(2, 14, 3),
    ),
    Case(
        PrimIDs.CONVERT_ELEMENT_TYPE,
        lambda x: prims.convert_element_type(x, dtypes.int32),
        lambda x: x.to(torch.int32),
    ),
]  # fmt: skip


def test_moves() -> None:
    run(MOVES, torch.arange(30, dtype=torch.float64).reshape(6, 5))


def test_every_row_of_the_table_is_tested_here() -> None:
    named = [*UNARY, *UNIT_INTERVAL, *BINARY, *BITWISE]
    tested = {PrimIDs[name.upper()] for name in named} | {case.prim for case in MOVES}
    tested |= {PrimIDs.SIGN, PrimIDs.ERFCINV, PrimIDs.LERP, PrimIDs.WHERE, PrimIDs.BITWISE_NOT}
    tested |= {PrimIDs.REAL, PrimIDs.IMAG}
    elsewhere = {PrimIDs.COPY_, PrimIDs.UPDATE_ALIASES}  # test_inplace.py
    elsewhere.add(PrimIDs.COPY_WITH_SETITEM)  # test_setitem.py
    elsewhere |= set(indexing.CLAIMS)  # test_indexing.py
    elsewhere |= set(random.CLAIMS)  # test_random.py
    elsewhere |= {"torch.zeros", "torch.detach"}  # test_whole_regions.py
    elsewhere.add("torch.arange")  # test_accuracy.py
    elsewhere |= {*activations.CLAIMS, *complex_calls.CLAIMS}  # tests/sweep
    folds = {*reductions.CLAIMS, *calls.CLAIMS}  # test_reductions.py, test_norms.py
    elsewhere |= set(scans.CLAIMS)  # test_scans.py
    assert tested | elsewhere | folds == set(TABLE)


# ---- dtypes, numbers, broadcasting


FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats(dtype: torch.dtype) -> None:
    def program(x: Any, y: Any) -> Any:
        z = torch.exp(x) * y + torch.sqrt(y) / 3
        return z, torch.tanh(z).to(torch.float32), x > y, torch.maximum(x, y) ** 2

    check(program, torch.randn(17, 9).to(dtype), torch.rand(9).to(dtype) + 1, fusion_count=1)


def test_conversions_between_all_dtypes() -> None:
    wide = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32]
    narrow = [torch.int16, torch.int8, torch.uint8, torch.bool]
    fp8 = [torch.float8_e4m3fn, torch.float8_e5m2]
    every = [*wide, *narrow, *fp8]
    inputs = [torch.tensor([0.0, 1.0, 2.0, 13.0, 40.0]).to(dtype) for dtype in every]
    pivots = (torch.float32, torch.int64)
    pairs = [
        (k, dtype)
        for k, x in enumerate(inputs)
        for dtype in every
        if x.dtype != dtype and (x.dtype in pivots or dtype in pivots)
    ]

    def program(*args: Any) -> list[Any]:
        return [args[k].to(dtype) for k, dtype in pairs]

    compiled = jit(program)
    for ours, eager in zip(compiled(*inputs), program(*inputs), strict=True):
        assert ours.dtype == eager.dtype
        assert torch.equal(ours.to(torch.float64), eager.to(torch.float64))
    assert len(fusions(compiled)) == 1


def test_numbers_are_constants() -> None:
    def program(x: Any, k: int, s: float, flag: bool) -> Any:
        return x * s + k, torch.where(x > s, x, k), x + flag

    check(program, torch.randn(5, 4), 3, 0.1, True, fusion_count=1)
    check(program, torch.arange(6), 3, 2.5, True, fusion_count=1)


def test_broadcasting() -> None:
    def program(x: Any, row: Any, column: Any, single: Any) -> Any:
        return (x + row) * column - single

    shapes = [(2, 3, 4), (4,), (3, 1), ()]
    check(program, *(torch.randn(s, dtype=torch.float64) for s in shapes), fusion_count=1)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (1, 1), (7, 1, 3)], ids=str)
def test_small_and_empty_shapes(shape: tuple[int, ...]) -> None:
    check(lambda x, y: (torch.sin(x) * y, x + 1), torch.randn(shape), torch.randn(shape))


# ---- refusals


def refused(program: Callable[..., Any], *inputs: Any) -> list[str]:
    """The codes of all refusals of a program, whose results are right all the same."""
    compiled = check(program, *inputs)
    return [refusal.code for refusal in refusals(compiled)]


def test_narrow_integers_stay_with_torch() -> None:
    x = torch.tensor([200, 100, 3], dtype=torch.uint8)
    assert refused(lambda x: x + x, x) == ["dtype"]
    assert refused(lambda x: torch.where(x > 100, x, 0), x) == []


def test_negative_powers_of_integers_stay_with_torch() -> None:
    compiled = jit(lambda x: prims.pow(x, -1))
    with pytest.raises(RuntimeError, match="negative integer powers"):
        compiled(torch.tensor([2, 3]))
    assert [r.code for r in refusals(compiled)] == ["exponent"]


def test_what_no_claim_covers() -> None:
    assert refused(lambda x: x.logcumsumexp(0), torch.randn(3, 2)) == ["unclaimed"]
    assert refused(lambda x: torch.special.zeta(x, 2.0), torch.rand(3) + 2) == ["unclaimed"]


@pytest.mark.parametrize(
    ("widths", "expected"),
    [
        ((0, 0, 1), [1, 9, 2, 9, 3]),
        ((1, 2, 2), [9, 1, 9, 9, 2, 9, 9, 3, 9, 9]),
        ((-1, 1, 1), [9, 2, 9, 3, 9]),
        ((2, -3, 1), [9, 9, 1, 9]),
    ],
)
def test_pads_between_elements(widths: tuple[int, int, int], expected: list[int]) -> None:
    compiled = jit(lambda x: prims.pad(x * 2, 9.0, (widths, (0, 1, 0))))
    found = compiled(torch.tensor([[0.5], [1.0], [1.5]]))
    assert found.tolist() == [[n, 9] for n in expected]
    assert refusals(compiled) == {}


def test_neighbours_of_16_bit_floats_stay_with_torch() -> None:
    x, y = torch.tensor([1.0]).bfloat16(), torch.tensor([2.0]).bfloat16()
    assert TABLE[PrimIDs.NEXTAFTER].refuse is not TABLE[PrimIDs.ATAN2].refuse
    compiled = jit(torch.nextafter)
    assert torch.equal(compiled(x, y), torch.nextafter(x, y))
    assert [r.code for r in refusals(compiled)] == ["dtype"]


def test_an_empty_range_is_left_alone() -> None:
    assert refused(lambda x: (torch.arange(0, device=x.device), x * 2), torch.ones(2)) == ["empty"]


def test_a_refusal_names_the_operation_and_the_line() -> None:
    def program(x: Any) -> Any:
        return torch.logcumsumexp(x, 0)  # the line

    compiled = jit(program)
    compiled(torch.ones(3))
    (refusal,) = refusals(compiled)
    line = program.__code__.co_firstlineno + 1
    assert "logcumsumexp" in refusal.subject
    assert refusal.origin == f"{__file__}:{line}"


def test_equal_refusals_are_counted() -> None:
    compiled = jit(lambda x: x.logcumsumexp(0).logcumsumexp(0).logcumsumexp(0))
    compiled(torch.ones(2, 2))
    assert list(refusals(compiled).values()) == [3]
