"""The test tools: programs are varied and repeatable, and the oracle finds wrong answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.support import oracle
from tests.support.generator import Case, random_case
from tests.support.hash_seeds import printed_under_any
from tests.support.inputs import contiguity
from thunder_fuser.ir import reference, reference_moves
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Expr, Fusion, PointwiseOp, TensorView, Val
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.ir.verify.moves import VIEW_STEPS

D = DataType
COUNT = 600


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [random_case(seed, max_numel=64) for seed in range(COUNT)]


def live(fusion: Fusion) -> list[Expr]:
    """The expressions that a result depends on."""
    definitions, needed = fusion.definitions(), set[Val]()
    stack: list[Val] = list(fusion.results)
    while stack:
        value = stack.pop()
        if value not in needed:
            needed.add(value)
            stack += definitions[value].inputs if value in definitions else ()
    return [e for e in fusion.exprs if e.output in needed]


# ---- programs


def test_a_case_is_a_function_of_its_seed() -> None:
    text = "from tests.support.generator import random_case\n"
    text += "for k in range(15):\n    c = random_case(k)\n    print(c.fusion)\n"
    text += "    print([x.float().sum() if hasattr(x, 'sum') else x for x in c.inputs])"
    assert len(printed_under_any(text)) > 5_000


def test_results_depend_on_every_row_for_every_kind_of_number(cases: list[Case]) -> None:
    seen = {
        (e.op, pointwise.lookup(e.op).common_dtype(pointwise.operands_of(e.inputs)).category)
        for case in cases
        for e in live(case.fusion)
        if isinstance(e, PointwiseOp)
    }
    wanted = {(op.name, category) for op in pointwise.TABLE.values() for category in op.accepts}
    missing = wanted - seen
    assert len(missing) < 0.05 * len(wanted), sorted((n, c.name) for n, c in missing)
    assert {name for name, _ in seen} == set(pointwise.TABLE)


def test_results_depend_on_every_view_and_factory(cases: list[Case]) -> None:
    seen = {e.op for case in cases for e in live(case.fusion)}
    assert seen >= {*VIEW_STEPS, "cat", "full", "iota"}


def test_inputs_lie_in_memory_in_every_way(cases: list[Case]) -> None:
    seen = set()
    for case in cases:
        for view, data in zip(case.fusion.inputs, case.inputs, strict=True):
            if not isinstance(view, TensorView):
                seen.add("scalar")
                continue
            assert isinstance(data, torch.Tensor)
            expanded = [d.expanded is not None for d in view.domain.logical]
            held = contiguity(data, view.domain.allocation, expanded)
            for promised, holds in zip(view.domain.contiguity, held, strict=True):
                assert (promised is None) == (holds is None)
                assert holds or not promised
            seen |= {
                view.dtype,
                "empty" if not data.numel() else "dense" if data.is_contiguous() else "strided",
                f"rank {data.dim()}",
                "expanded" if any(expanded) else "",
                "gap" if False in held else "",
                "permuted"
                if list(view.domain.allocation) != sorted(view.domain.allocation)
                else "",
                "misaligned" if data.data_ptr() % 16 else "",
            }
            if data.dtype.is_floating_point and data.isnan().any():
                seen.add("nan")
    kinds = {
        "scalar",
        "empty",
        "dense",
        "strided",
        "expanded",
        "gap",
        "permuted",
        "misaligned",
        "nan",
    }
    assert seen >= {*DataType} - {D.Null} | kinds | {f"rank {k}" for k in range(6)}


def test_results_are_varied(cases: list[Case]) -> None:
    assert sum(len(c.fusion.outputs) > 2 for c in cases) > COUNT / 10
    assert sum(len(set(c.fusion.outputs)) < len(c.fusion.outputs) for c in cases) > 5
    assert sum(any(v in c.fusion.inputs for v in c.fusion.outputs) for c in cases) > 5
    assert sum(bool(c.fusion.updates) for c in cases) > COUNT / 20
    assert sum(any(v.numel == 0 for v in c.fusion.outputs) for c in cases) > 10


# ---- the oracle


def test_storage_arithmetic_is_within_the_bounds(cases: list[Case]) -> None:
    for case in cases:
        found = evaluate(case.fusion, case.inputs)
        case.check(found.outputs, found.updates)


def test_bounds_decide_nearly_everything(cases: list[Case]) -> None:
    found = [oracle.tightness(c.oracle, v) for c in cases for v in c.fusion.results]
    assert sum(found) / len(found) > 0.995


def wrong(name: str, function: Callable[..., torch.Tensor]) -> object:
    return pytest.param(name, function, id=name)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        wrong("add", lambda a, b: a + b + b.abs() * 1e-5 if a.is_floating_point() else a + b),
        wrong("exp", lambda x: torch.exp(x) * (1 + 1e-5)),
        wrong("sqrt", lambda x: torch.sqrt(x) * (1 - 1e-5)),
        wrong("sin", lambda x: torch.sin(x.abs())),
        wrong("remainder", torch.fmod),
        wrong("div", lambda a, b: a / b if a.is_complex() else torch.floor(a / (b + (b == 0)))),
        wrong("round", lambda x: torch.floor(x + x.new_full((), 0.5))),
        wrong("trunc", torch.floor),
        wrong("maximum", torch.minimum),
        wrong("minimum", lambda a, b: torch.fmin(a, b)),
        wrong("relu", lambda x: x.abs()),
        wrong("clamp", lambda x, low, high: torch.minimum(x, high)),
        wrong("lt", torch.le),
        wrong("ge", torch.gt),
        wrong("eq", torch.ne),
        wrong("where", lambda c, a, b: torch.where(c, b, a)),
        wrong("signbit", lambda x: x <= 0),
        wrong("isnan", lambda x: torch.zeros_like(x, dtype=torch.bool)),
        wrong("bitwise_not", lambda x: -x if x.dtype is not torch.bool else x),
        wrong("bitwise_right_shift", lambda a, b: a >> (b & 7)),
        wrong("imag", lambda z: -z.imag),
        wrong("abs", lambda x: x.real.abs()),
        wrong("lerp", lambda a, b, w: b + w * (a - b)),
        wrong("threshold", lambda x, t, v: torch.where(x < t, v, x)),
        wrong("addcmul", lambda a, b, c, s: a + b * c),
    ],
)
def test_wrong_operations_are_found(
    name: str, function: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = replace(pointwise.lookup(name), reference=function)
    lookup = pointwise.lookup
    for seed in range(300):
        case = random_case(seed, max_numel=64, steps=4, operations=[name])
        with monkeypatch.context() as patch:
            patch.setattr(pointwise, "lookup", lambda n: bad if n == name else lookup(n))
            if not passes(case):
                return
    raise AssertionError("300 cases did not notice")


def passes(case: Case) -> bool:
    found = evaluate(case.fusion, case.inputs)
    try:
        case.check(found.outputs, found.updates)
    except AssertionError:
        return False
    return True


def test_wrong_views_are_found(cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pad or slice off by one, where the element exists."""
    resized = reference_moves._resized
    monkeypatch.setattr(
        reference_moves,
        "_resized",
        lambda x, axis, left, right, fill: resized(x.roll(1, axis), axis, left, right, fill),
    )
    assert not all(passes(case) for case in cases)


def test_storage_without_rounding_is_found(
    cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half is computed in Float and not rounded before it is read again."""
    convert = reference.Evaluator.convert
    monkeypatch.setattr(
        reference.Evaluator,
        "convert",
        lambda self, x, *kinds: convert(self, x, *(D.Float if k is D.Half else k for k in kinds)),
    )
    assert not all(passes(case) for case in cases)


def bound(x: torch.Tensor, make: Callable[[FusionBuilder, TensorView], Val]) -> list[float]:
    b = FusionBuilder()
    out = make(b, b.tensor(x.shape, D.Half if x.dtype is torch.float16 else D.Float))
    assert isinstance(out, TensorView)
    b.output(out)
    return [float(e) for e in oracle.run(b.build(), [x]).error(out).expand(x.shape)]


def test_sums_and_products_of_few_bits_are_exact() -> None:
    x = torch.tensor([0.25, -1.5, 3.0])
    assert bound(x, lambda b, t: b.pointwise("mul", b.pointwise("add", t, 2.0), t)) == [0, 0, 0]


def test_a_difference_of_rounded_numbers_has_their_bound() -> None:
    """exp(x) - exp(x) is 0, and the bound is what two exponentials may be wrong by, not 0."""
    x = torch.tensor([1.0, 4.0])
    found = bound(x, lambda b, t: b.pointwise("sub", b.pointwise("exp", t), b.pointwise("exp", t)))
    eps = torch.finfo(torch.float32).eps
    for error, size in zip(found, x.exp().tolist(), strict=True):
        assert 8 * eps * size < error < 80 * eps * size


def test_what_is_too_small_for_a_type_is_rounded_to_zero() -> None:
    """A double below the smallest float is a float's -0; what is computed from it in double need
    not be -0 in truth.
    """
    b = FusionBuilder()
    x = b.tensor([1], D.Double, contiguity=[True])
    angle = b.pointwise("atan2", b.cast(x, D.Float), b.pointwise("clamp", x, 0.25, 8.0))
    assert isinstance(angle, TensorView)
    b.output(angle)
    fusion = b.build()
    inputs = [torch.full((1,), -torch.finfo(torch.float64).tiny, dtype=torch.float64)]
    oracle.assert_close_to_reference(evaluate(fusion, inputs).outputs, fusion, inputs)
    assert float(oracle.run(fusion, inputs).error(angle)) < 1e-43


def test_comparisons_that_rounding_decides_have_no_answer() -> None:
    x = torch.tensor([1.0, 2.0])
    root = torch.tensor(2.0).double().sqrt().item()
    found = bound(x, lambda b, t: b.pointwise("lt", b.pointwise("sqrt", t), root))
    assert found == [0, torch.inf]


def test_storing_16_bits_makes_numbers_certain_again() -> None:
    x = torch.linspace(-3, 3, 200).half()
    found = bound(x, lambda b, t: b.cast(b.pointwise("exp", t), D.Half))
    assert sum(e == 0 for e in found) >= 195


@pytest.mark.parametrize(
    ("name", "operands"),
    [
        ("addcmul", ((1.0, 1.0), (3.0, 2.0), (0.125, 0.125), (3e38, 1.0))),
        ("addcmul", ((0.0, 1.0), (1e-20, 2.0), (1e38, 0.125), (1e-24, 1.0))),
        ("lerp", ((-3e38, 1.0), (3e38, 2.0), (0.25, 0.125))),
        ("lerp", ((-3.4e38, 1.0), (-2.2e38, 2.0), (4.0, 0.125))),
    ],
)
def test_intermediate_results_may_leave_the_range_of_a_type(
    name: str, operands: tuple[tuple[float, float], ...]
) -> None:
    """scale * first overflows, or loses its bits, before second makes it small, or large."""
    b = FusionBuilder()
    out = b.pointwise(name, *(b.tensor([2], D.Float) for _ in operands))
    assert isinstance(out, TensorView)
    b.output(out)
    fusion, inputs = b.build(), [torch.tensor(x) for x in operands]
    oracle.assert_close_to_reference(evaluate(fusion, inputs).outputs, fusion, inputs)
    truth = oracle.run(fusion, inputs)
    beyond, within = (truth.error(out) / truth.value(out).abs()).tolist()
    assert within < 1e-5
    assert beyond > 1e-2


def test_answers_of_another_kind_are_refused() -> None:
    b = FusionBuilder()
    b.output(b.pointwise("relu", b.tensor([2], D.Float)))
    fusion, x = b.build(), torch.tensor([1.0, torch.nan])
    oracle.assert_close_to_reference([x], fusion, [x])
    for answer, complaint in [
        ([], "0 outputs, expected 1"),
        ([x.double()], "is torch.float64"),
        ([x[:1]], "has sizes"),
        ([torch.ones(2)], r"1 of 2 elements are wrong; at \[1\]"),
        ([torch.full((2,), torch.nan)], r"at \[0\] got nan, expected 1.0"),
    ]:
        with pytest.raises(AssertionError, match=complaint):
            oracle.assert_close_to_reference(answer, fusion, [x])
