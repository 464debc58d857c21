"""What a plan allocates, and from when to when. That calls do so: tests/runtime."""

from __future__ import annotations

from tests.support.building import op
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.planner import partition

Float = DataType.Float


def lives(plan: SegmentedFusion) -> list[tuple[int, int | None]]:
    return [(buffer.first, buffer.last) for buffer in plan.buffers]


def test_a_boundary_goes_after_its_last_reader(b: FusionBuilder) -> None:
    first = y = b.segment_set(op(b, "exp", b.tensor([1000], Float)))
    for _ in range(2):
        y = b.segment_set(op(b, "sin", y))
    b.output(op(b, "add", b.segment_set(op(b, "add", y, first)), 1.0))
    plan = partition(b.build())
    assert lives(plan) == [(0, 3), (1, 2), (2, 3), (3, 4), (4, None)]
    assert plan.peak_bytes == 3 * 4000
    assert str(plan.buffers[0]) == "buffer T1 (4,000 B): segment 0 to segment 3"
    assert str(plan.buffers[-1]) == f"buffer {plan.fusion.outputs[0].name} (4,000 B): " + (
        "segment 4 to the caller"
    )


def test_memory_of_results_stays(b: FusionBuilder) -> None:
    """That of results that are read as well, and of results that are views of others."""
    y = op(b, "exp", b.tensor([10, 100], Float))
    b.output(b.slice(b.segment_set(y), [0, 0], [5, 100]))
    b.output(op(b, "sin", b.segment_set(y)))
    plan = partition(b.build())
    assert [s.kind for s in plan.segments] == ["pointwise", "alias", "pointwise"]
    assert lives(plan) == [(0, None), (2, None)]


def test_memory_of_a_view_goes_after_the_views_last_reader(b: FusionBuilder) -> None:
    whole = b.segment_set(op(b, "exp", b.tensor([10, 100], Float)))
    half = b.segment_set(b.slice(whole, [0, 0], [5, 100]))
    other = b.segment_set(op(b, "sin", whole))
    b.output(op(b, "cos", b.segment_set(op(b, "add", half, b.slice(other, [0, 0], [5, 100])))))
    plan = partition(b.build())
    assert [s.kind for s in plan.segments] == [
        "pointwise",
        "alias",
        "pointwise",
        "pointwise",
        "pointwise",
    ]
    assert lives(plan) == [(0, 3), (2, 3), (3, 4), (4, None)]
    assert plan.peak_bytes == (1000 + 1000 + 500) * 4


def test_updates_in_place_take_no_memory(b: FusionBuilder) -> None:
    x = b.tensor([1000], Float)
    b.output(op(b, "exp", x), x)
    assert partition(b.build()).buffers == ()
