from __future__ import annotations

import pytest

from tests.passes.patterns import check_on_random_fusions, ops_of
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import CatOp, Fusion, TensorView, ViewOp
from thunder_fuser.passes.cat_of_slices import cat_of_slices
from thunder_fuser.passes.dead_code import dead_code
from thunder_fuser.passes.view_chains import view_chains

F32 = DataType.Float


def folded(b: FusionBuilder, x: TensorView) -> Fusion:
    """What is left in front of a last operation, which hides `x` from the caller."""
    b.output(_exp(b, x))
    return dead_code(cat_of_slices(view_chains(b.build())))


def _exp(b: FusionBuilder, x: TensorView) -> TensorView:
    made = b.pointwise("exp", x)
    assert isinstance(made, TensorView)
    return made


def columns(b: FusionBuilder, x: TensorView, begin: int, end: int) -> TensorView:
    return b.slice(x, [0, begin], [x.sizes[0], end])


def test_slices_that_cover_the_tensor_are_the_tensor() -> None:
    b = FusionBuilder()
    x = b.tensor([4, 9], F32)
    pieces = [columns(b, x, begin, begin + 3) for begin in (0, 3, 6)]
    assert ops_of(folded(b, b.cat(pieces, 1))) == ["exp"]


def test_slices_that_touch_are_one_slice() -> None:
    b = FusionBuilder()
    x = b.tensor([4, 9], F32)
    view, _ = folded(b, b.cat([columns(b, x, 2, 5), columns(b, x, 5, 8)], 1)).exprs
    assert isinstance(view, ViewOp)
    assert view.op == "slice"
    assert view.output.domain.transforms == columns(b, x, 2, 8).domain.transforms


def test_slices_seen_through_other_views_too() -> None:
    """What the gradient of attention's split does: the parts are permuted and then joined."""
    b = FusionBuilder()
    x = b.tensor([4, 12, 5], F32)
    pieces = [
        b.reshape(b.permute(b.slice(x, [0, begin, 0], [4, begin + 6, 5]), [2, 1, 0]), [5, 6, 2, 2])
        for begin in (0, 6)
    ]
    view, _ = folded(b, b.cat(pieces, 1)).exprs
    assert isinstance(view, ViewOp)
    assert view.output.sizes == (5, 12, 2, 2)


def test_neighbours_join_among_others() -> None:
    b = FusionBuilder()
    x, y = b.tensor([4, 8], F32), b.tensor([4, 2], F32)
    parts = [y, columns(b, x, 0, 3), columns(b, x, 3, 8), y]
    fusion = folded(b, b.cat(parts, 1))
    assert ops_of(fusion) == ["cat", "exp"]
    assert [t.sizes for t in fusion.exprs[0].inputs] == [(4, 2), (4, 8), (4, 2)]


def test_a_slice_inside_a_piece_reads_the_piece() -> None:
    b = FusionBuilder()
    x, y = b.tensor([4, 6], F32), b.tensor([4, 6], F32)
    joined = b.cat([_exp(b, x), y], 1)
    part = b.permute(columns(b, joined, 7, 11), [1, 0])
    view, _ = folded(b, part).exprs
    assert isinstance(view, ViewOp)
    assert view.input.sizes == y.sizes
    assert view.output.sizes == (4, 4)
    whole = FusionBuilder()
    x, y = whole.tensor([4, 6], F32), whole.tensor([4, 6], F32)
    assert ops_of(folded(whole, columns(whole, whole.cat([x, y], 1), 6, 12))) == ["exp"]


@pytest.mark.parametrize(
    "make",
    [
        # Out of order, with a gap, of two tensors, along another dimension.
        lambda b, x, y: b.cat([columns(b, x, 4, 8), columns(b, x, 0, 4)], 1),
        lambda b, x, y: b.cat([columns(b, x, 0, 4), columns(b, x, 5, 8)], 1),
        lambda b, x, y: b.cat([columns(b, x, 0, 4), columns(b, y, 4, 8)], 1),
        lambda b, x, y: b.cat([columns(b, x, 0, 4), columns(b, x, 4, 8)], 0),
        # Every second column of each half.
        lambda b, x, y: b.cat([b.slice(x, [0, s], [4, s + 4], [1, 2]) for s in (0, 4)], 1),
        # Rotated halves: the first is computed.
        lambda b, x, y: b.cat([_exp(b, columns(b, x, 4, 8)), columns(b, x, 0, 4)], 1),
        # Over the border of two pieces; beyond the cat.
        lambda b, x, y: columns(b, b.cat([x, y], 1), 6, 10),
        lambda b, x, y: b.pad(b.cat([x, y], 1), [1, 0]),
        # The user's cut.
        lambda b, x, y: b.cat([b.segment_set(columns(b, x, 0, 4)), columns(b, x, 4, 8)], 1),
        lambda b, x, y: columns(b, b.segment_set(b.cat([x, y], 1)), 0, 4),
    ],
)
def test_others_stay(make: object) -> None:
    b = FusionBuilder()
    assert callable(make)
    b.output(_exp(b, make(b, b.tensor([4, 8], F32), b.tensor([4, 8], F32))))
    fusion = b.build()
    assert cat_of_slices(fusion) is fusion


def test_results_keep_memory_of_their_own() -> None:
    """A cat is a new tensor, and so is a slice of one, whatever they hold."""
    b = FusionBuilder()
    x, y = b.tensor([4, 8], F32), b.tensor([4, 8], F32)
    b.output(b.cat([columns(b, x, 0, 4), columns(b, x, 4, 8)], 1))
    b.output(columns(b, b.cat([x, y], 1), 8, 12))
    fusion = b.build()
    assert cat_of_slices(fusion) is fusion
    computed = FusionBuilder()
    z = _exp(computed, computed.tensor([4, 8], F32))
    computed.output(computed.cat([columns(computed, z, 0, 4), columns(computed, z, 4, 8)], 1))
    assert not any(isinstance(e, CatOp) for e in cat_of_slices(computed.build()).exprs)


def test_results_stay_the_same() -> None:
    check_on_random_fusions(cat_of_slices)
