"""Every rule of the verifier: a fusion that obeys it passes, and one that breaks it is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.generator import random_case
from thunder_fuser.errors import InternalError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import (
    IterDomain,
    IterKind,
    Merge,
    Reorder,
    broadcast,
    iteration,
    tensor_domain,
)
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import (
    CatOp,
    Expr,
    FullOp,
    Fusion,
    IotaOp,
    MoveOp,
    Origin,
    PadOp,
    PointwiseOp,
    Scalar,
    TensorView,
    Update,
    ViewOp,
)
from thunder_fuser.ir.verify import STAGES, verify

D = DataType
ORIGIN = Origin("thunder.add", "model.py", 12)


def sample() -> Fusion:
    """One expression of each kind, in the order of `EXPRS`."""
    b = FusionBuilder()
    b.origin = ORIGIN
    x, y = b.tensor([2, 3], D.Float), b.tensor([1, 3], D.Float)
    total = b.pointwise("add", x, y)
    assert isinstance(total, TensorView)
    padded = b.pad(total, [1, 0], 2.0)
    cat = b.cat([padded, padded], 0)
    full = b.full([4, 4], 1.0, D.Float)
    counted = b.iota(4, dtype=D.Float)
    last = b.pointwise("mul", b.pointwise("mul", cat, full), counted)
    b.output(last)
    b.output(total, x)
    return b.build()


ADD, PAD, CAT, FULL, IOTA, MUL, LAST = range(7)


def with_view(op: str) -> Fusion:
    """The sample with a view in the place of the pad."""
    fusion = sample()
    pad = fusion.exprs[PAD]
    assert isinstance(pad, PadOp)
    exprs = list[Expr](fusion.exprs)
    exprs[PAD] = ViewOp(pad.op if op == "pad" else op, pad.input, pad.output, pad.origin)
    return replace(fusion, exprs=tuple(exprs))


def with_expr(at: int, **changes: object) -> Fusion:
    """The sample with fields of one expression changed; `output` is changed in its readers too."""
    fusion = sample()
    old = fusion.exprs[at]
    exprs = [replace(e, **changes) if k == at else e for k, e in enumerate(fusion.exprs)]
    new = exprs[at].output
    if new == old.output:
        return replace(fusion, exprs=tuple(exprs))
    assert isinstance(new, TensorView)
    updates = [Update(u.target, new if u.value == old.output else u.value) for u in fusion.updates]
    return replace(
        fusion,
        exprs=tuple(_reading(e, old.output, new) for e in exprs),
        outputs=tuple(new if v == old.output else v for v in fusion.outputs),
        updates=tuple(updates),
    )


def _reading(expr: Expr, old: object, new: object) -> Expr:
    if isinstance(expr, (PointwiseOp, CatOp)):
        return replace(expr, inputs=tuple(new if v == old else v for v in expr.inputs))
    if isinstance(expr, MoveOp) and expr.input == old:
        return replace(expr, input=new)
    return expr


def output_of(at: int) -> TensorView:
    out = sample().exprs[at].output
    assert isinstance(out, TensorView)
    return out


def with_output(at: int, **changes: object) -> Fusion:
    return with_expr(at, output=replace(output_of(at), **changes))


def with_domain(at: int, **changes: object) -> Fusion:
    return with_output(at, domain=replace(output_of(at).domain, **changes))


def without(at: int) -> Fusion:
    fusion = sample()
    return replace(fusion, exprs=fusion.exprs[:at] + fusion.exprs[at + 1 :])


def swapped() -> Fusion:
    fusion = sample()
    first, second, *rest = fusion.exprs
    return replace(fusion, exprs=(second, first, *rest))


def same_id() -> Fusion:
    return with_output(FULL, id=0)


def updates(*found: Callable[[Fusion], Update]) -> Fusion:
    fusion = sample()
    return replace(fusion, updates=tuple(make(fusion) for make in found))


def sizes(*ns: int) -> object:
    return tensor_domain([iteration(n) for n in ns])


def symbolic() -> Fusion:
    b = FusionBuilder()
    b.output(b.pointwise("exp", b.tensor([-1, 3], D.Float)))
    return b.build()


BROKEN: dict[str, tuple[Callable[[], Fusion], str]] = {
    "undefined": (lambda: without(ADD), r"used before it is defined"),
    "order": (swapped, r"used before it is defined"),
    "two values of one id": (same_id, r"id 0|defined already"),
    "an input twice": (lambda: replace(sample(), inputs=sample().inputs[:1] * 2), r"same id|id 0"),
    "a constant as input": (
        lambda: replace(sample(), inputs=(*sample().inputs, Scalar(99, D.Int, 3))),
        r"cannot be an input",
    ),
    "undefined result": (
        lambda: replace(sample(), outputs=(replace(output_of(LAST), id=77),)),
        r"result T77.* not defined",
    ),
    "update of a non-input": (
        lambda: updates(lambda f: Update(f.outputs[0], f.outputs[0])),
        r"not an input",
    ),
    "two updates of one input": (
        lambda: updates(*(lambda f: Update(f.inputs[0], f.exprs[0].output),) * 2),
        r"updated twice",
    ),
    "update of other sizes": (
        lambda: updates(lambda f: Update(f.inputs[1], f.exprs[0].output)),
        r"sizes differ",
    ),
    "wrong dtype": (lambda: with_output(LAST, dtype=D.Double), r"should be DataType.Float"),
    "unknown op": (lambda: with_expr(LAST, op="mull"), r"did you mean mul"),
    "refused operands": (lambda: with_expr(LAST, op="gcd"), r"gcd does not take Float"),
    "too few operands": (
        lambda: with_expr(LAST, inputs=sample().inputs[:1]),
        r"mul takes 2 operands, got 1",
    ),
    "sizes do not broadcast": (
        lambda: with_output(LAST, domain=sizes(4, 5)),
        r"does not broadcast",
    ),
    "broadcast of real elements": (
        lambda: with_output(LAST, domain=tensor_domain([broadcast(4), iteration(4)])),
        r"where the output broadcasts",
    ),
    "rank of a sum": (lambda: with_output(LAST, domain=sizes(1, 4, 4)), r"rank is not the largest"),
    "transforms of a sum": (
        lambda: with_domain(ADD, transforms=(Reorder((0, 1)),)),
        r"only views, reductions and inputs have transforms",
    ),
    "program that does not apply": (
        lambda: with_domain(PAD, transforms=(Merge(5),)),
        r"transforms do not apply",
    ),
    "program that gives another shape": (
        lambda: with_domain(PAD, transforms=()),
        r"transforms give .*not the logical",
    ),
    "allocation": (lambda: with_domain(ADD, allocation=(0, 0)), r"not a permutation"),
    "contiguity flags": (lambda: with_domain(ADD, contiguity=(True,)), r"1 contiguity flags"),
    "contiguity of an iteration": (
        lambda: with_domain(ADD, contiguity=(None, True)),
        r"dimension 0 is i2 but has contiguity None",
    ),
    "expanded iteration": (
        lambda: with_output(
            FULL,
            domain=tensor_domain([IterDomain(4, IterKind.ITERATION, 4), iteration(4)]),
        ),
        r"expanded but no broadcast",
    ),
    "view of another root": (
        lambda: with_expr(PAD, input=sample().inputs[1]),
        r"root is not its input's logical",
    ),
    "view to another dtype": (lambda: with_output(PAD, dtype=D.Half), r"a view keeps the dtype"),
    "unknown view": (lambda: with_view("flip"), r"no view called flip"),
    "fill of another dtype": (lambda: with_expr(PAD, fill=Scalar(50, D.Int, 2)), r"fill value is"),
    "fill with dimensions": (
        lambda: with_expr(PAD, fill=sample().inputs[1]),
        r"fill value must have no dimensions",
    ),
    "pad without fill": (lambda: with_view("pad"), r"a pad is no view"),
    "copy as a view": (lambda: with_view("set"), r"a set is no view|is not part of a set"),
    "view of another name": (lambda: with_view("permute"), r"is not part of a permute"),
    "cat extent": (lambda: with_output(CAT, domain=sizes(5, 4)), r"make 5 along dimension 0"),
    "cat of other sizes": (lambda: with_output(CAT, domain=sizes(4, 5)), r"should all be 5"),
    "cat of other dtypes": (lambda: with_output(CAT, dtype=D.Half), r"inputs have another dtype"),
    "cat of other ranks": (lambda: with_output(CAT, domain=sizes(16)), r"inputs have another rank"),
    "cat along no dimension": (lambda: with_expr(CAT, dim=2), r"nothing to join"),
    "full of another dtype": (
        lambda: with_expr(FULL, fill=Scalar(50, D.Int, 2)),
        r"should have the output's dtype",
    ),
    "full of a tensor": (
        lambda: with_expr(FULL, fill=sample().inputs[1]),
        r"should have no dimensions",
    ),
    "iota of rank 2": (lambda: with_output(IOTA, domain=sizes(4, 1)), r"an iota has one dimension"),
    "iota of bools": (
        lambda: replace(
            sample(),
            exprs=(
                IotaOp(
                    Scalar(50, D.Bool, False),
                    Scalar(51, D.Bool, True),
                    TensorView(52, D.Bool, tensor_domain([iteration(4)])),
                ),
                *sample().exprs,
            ),
        ),
        r"counts in integers or floats",
    ),
}


def test_the_sample_is_well_formed_at_every_stage() -> None:
    kinds = [type(sample().exprs[at]) for at in (ADD, PAD, CAT, FULL, IOTA, MUL, LAST)]
    assert kinds == [PointwiseOp, PadOp, CatOp, FullOp, IotaOp, PointwiseOp, PointwiseOp]
    for stage in STAGES:
        assert verify(sample(), stage) == sample()


@pytest.mark.parametrize("rule", BROKEN)
def test_broken_fusions_are_reported(rule: str) -> None:
    make, message = BROKEN[rule]
    with pytest.raises(InternalError, match=message):
        verify(make(), "specialised")


def test_the_message_names_the_expression_and_the_user_s_line() -> None:
    with pytest.raises(InternalError, match=r":Double.* = mul\(T.*thunder.add at model.py:12"):
        verify(with_output(LAST, dtype=D.Double))


def test_sizes_may_be_symbolic_only_when_built() -> None:
    verify(symbolic(), "built")
    for stage in ("specialised", "folded"):
        with pytest.raises(InternalError, match="symbolic"):
            verify(symbolic(), stage)


def test_joined_views_are_allowed_after_folding_only() -> None:
    fusion = with_view("reshape")
    verify(fusion, "folded")
    with pytest.raises(InternalError, match="is not part of a reshape"):
        verify(fusion, "built")


def test_scalars_do_not_make_tensors() -> None:
    b = FusionBuilder()
    s = b.scalar(None, D.Double)
    t = b.pointwise("exp", s)
    assert isinstance(t, Scalar)
    b.output(b.full([2], t, D.Double))
    fusion = verify(b.build())
    vector = TensorView(t.id, D.Double, tensor_domain([iteration(2)]))
    broken = replace(fusion, exprs=(PointwiseOp("exp", (s,), vector),), outputs=(vector,))
    with pytest.raises(InternalError, match="scalars give a tensor"):
        verify(broken)
    x = TensorView(7, D.Double, tensor_domain([iteration(2)]))
    broken = Fusion((x,), (PointwiseOp("exp", (x,), t),), (x,))
    with pytest.raises(InternalError, match="tensors give a scalar"):
        verify(broken)


@pytest.mark.parametrize("seed", range(60))
def test_generated_fusions_are_well_formed(seed: int) -> None:
    fusion = random_case(seed, max_numel=64).fusion
    for stage in STAGES:
        verify(fusion, stage)
