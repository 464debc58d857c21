"""Stencils that reductions read go through memory, where they are smallest; others do not."""

from __future__ import annotations

from functools import reduce

from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.segment.anchors.stencils import FEW_PLACES, read_by_reductions
from thunder_fuser.segment.planner import partition

ROWS, COLUMNS = 512, 1024


def _stencil(b: FusionBuilder, x: TensorView, places: int) -> TensorView:
    """The sum of so many neighbours, in the dtype of x."""
    height = ROWS - places
    shifted = [b.slice(x, [k, 0], [k + height, COLUMNS]) for k in range(places)]
    total = reduce(lambda y, z: b.pointwise("add", y, z), map(b.set, shifted))
    found = b.cast(total, x.dtype)
    assert isinstance(found, TensorView)
    return found


def _summed(places: int) -> Fusion:
    """Sums of a stencil, times another tensor in fp32."""
    b = FusionBuilder()
    x = b.tensor([ROWS, COLUMNS], DataType.BFloat16)
    weight = b.tensor([ROWS - places, COLUMNS], DataType.Float)
    wide = b.cast(_stencil(b, x, places), DataType.Float)
    b.output(b.reduce("sum", b.pointwise("mul", wide, weight), [1]))
    return b.build()


def test_it_goes_through_memory_in_its_narrow_type() -> None:
    places = FEW_PLACES + 1
    fusion = _summed(places)
    (stored,) = read_by_reductions(fusion)
    assert stored.dtype is DataType.BFloat16
    plan = partition(fusion)
    assert [s.kind for s in plan.segments if s.kernels] == ["pointwise", "reduction"]
    assert plan.bytes == plan.bytes_ideal + 2 * stored.bytes
    assert [str(b.reason).startswith("[stencil]") for b in plan.boundaries] == [True]


def test_few_neighbours_are_computed_in_the_reduction() -> None:
    plan = partition(_summed(FEW_PLACES))
    assert plan.kernels == 1
    assert plan.bytes == plan.bytes_ideal


def test_slices_that_do_not_overlap_are_no_stencil() -> None:
    b = FusionBuilder()
    x = b.tensor([8 * ROWS, COLUMNS], DataType.BFloat16)
    shifted = [b.slice(x, [k * ROWS, 0], [(k + 1) * ROWS, COLUMNS]) for k in range(8)]
    total = reduce(lambda y, z: b.pointwise("add", y, z), map(b.set, shifted))
    assert isinstance(total, TensorView)
    b.output(b.reduce("sum", total, [1]))
    assert read_by_reductions(b.build()) == {}


def test_the_pieces_of_a_cat_are_no_stencil() -> None:
    b = FusionBuilder()
    x = b.tensor([ROWS, COLUMNS], DataType.BFloat16)
    pieces = [b.slice(x, [k, 0], [k + 64, COLUMNS]) for k in (64, 0, 192, 128, 320, 256)]
    b.output(b.reduce("sum", b.pointwise("exp", b.cat(pieces, 0)), [1]))
    assert read_by_reductions(b.build()) == {}
