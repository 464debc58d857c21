"""Pieces that kernels write where a cat, or a view, of them is wanted: plans, memory, numbers."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch

from tests.support.batch import allocations
from tests.support.building import op
from tests.zoo.rope import define_rope_backward
from thunder_fuser.compile import compile_plan, generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import options
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.planner import MAX_TRIALS, partition

Float, BFloat16 = DataType.Float, DataType.BFloat16
CPU = torch.device("cpu")
ROWS, LONG, SHORT = 64, 96, 33


def softmax(b: FusionBuilder, x: TensorView, dim: int = 1) -> TensorView:
    e = op(b, "exp", op(b, "sub", x, b.reduce("max", x, [dim], keepdim=True)))
    return op(b, "div", e, b.reduce("sum", e, [dim], keepdim=True))


def two(b: FusionBuilder) -> tuple[TensorView, TensorView]:
    """Rows of two lengths, which no reduction kernel takes together."""
    long, short = b.tensor([ROWS, LONG], Float), b.tensor([ROWS, SHORT], Float)
    return softmax(b, long), softmax(b, short)


def runs(fusion: Fusion, device: torch.device) -> list[torch.Tensor]:
    """What the compiled fusion returns, compared with torch in float64."""
    inputs = [torch.randn(t.sizes, device=device) for t in fusion.tensor_inputs]
    got = CompiledFusion(fusion)(inputs)
    exact = evaluate(fusion, inputs, double=True, device=device).outputs
    for mine, wanted in zip(got, exact, strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-5, atol=3e-5)
    return got


def pieces(plan: SegmentedFusion) -> list[tuple[str, ...]]:
    """What tensors are made of that no kernel writes, as the operations that make the pieces."""
    definitions = plan.fusion.definitions()
    joins = [s for s in plan.segments if s.kind == "concat"]
    return [tuple(definitions[t].op for t in s.inputs) for s in joins]


# ---- cats


def test_kernels_of_rows_write_slices_of_a_cat(b: FusionBuilder) -> None:
    joined = b.cat(list(two(b)), 1)
    b.output(joined)
    plan = partition(b.build())
    assert (plan.kernels, plan.boundaries) == (2, ())
    assert plan.bytes == plan.bytes_ideal == 2 * 4 * ROWS * (LONG + SHORT)
    assert plan.peak_bytes == joined.bytes
    assert pieces(plan) == [("div", "div")]
    first, second = plan.placement.slices.values()
    assert first.base == second.base == joined
    assert (first.strides, first.offset) == ((LONG + SHORT, 1), 0)
    assert (second.strides, second.offset) == ((LONG + SHORT, 1), LONG)
    assert str(plan).splitlines()[3].endswith("-> (T16): written in place, no kernel")


@pytest.mark.parametrize(
    ("dim", "alignments"), [(0, [64, 64]), (1, [64, 32])], ids=["rows", "columns"]
)
def test_slices_are_aligned_as_their_offset_allows(
    b: FusionBuilder, dim: int, alignments: list[int]
) -> None:
    sizes = [[16, 8], [24, 8]] if dim == 0 else [[16, 8], [16, 24]]
    b.output(b.cat([softmax(b, b.tensor(n, Float), k) for k, n in enumerate(sizes)], dim))
    plan = partition(b.build())
    assert [plan.placement.layouts[t].alignment for t in plan.placement.slices] == alignments


def test_a_reduction_and_what_it_reads_are_written_by_one_kernel(b: FusionBuilder) -> None:
    x = b.tensor([ROWS, LONG], Float)
    b.output(b.cat([op(b, "neg", x), b.reduce("sum", x, [1], keepdim=True)], 1))
    plan = partition(b.build())
    assert (plan.kernels, plan.bytes) == (1, plan.bytes_ideal)
    assert pieces(plan) == [("neg", "sum")]


def test_what_no_kernel_computes_is_copied(b: FusionBuilder) -> None:
    """Inputs, constants, and what is in a place of its own already."""
    x = b.tensor([ROWS, LONG], Float)
    y = softmax(b, b.tensor([ROWS, SHORT], Float))
    b.output(b.cat([x, y, b.full([ROWS, 3], 0.0, Float), y], 1))
    plan = partition(b.build())
    assert (plan.kernels, plan.bytes) == (2, plan.bytes_ideal)
    assert pieces(plan) == [("set", "div", "full", "set")]


def test_a_piece_that_is_a_result_has_memory_of_its_own(
    b: FusionBuilder, device: torch.device
) -> None:
    """In torch they share nothing: callers may write into one and keep the other."""
    long, short = two(b)
    b.output(long)
    b.output(b.slice(short, [0, 0], [ROWS, 5]))
    b.output(b.cat([long, short], 1))
    fusion = b.build()
    assert pieces(partition(fusion)) == [("set", "set")]
    got = runs(fusion, device)
    assert len({x.untyped_storage().data_ptr() for x in got}) == 3
    assert all(x.is_contiguous() for x in got)


def test_a_cat_in_a_cat_has_its_pieces_there(b: FusionBuilder) -> None:
    inner = b.cat(list(two(b)), 1)
    b.output(b.cat([softmax(b, b.tensor([5, LONG + SHORT], Float)), inner], 0))
    plan = partition(b.build())
    assert (plan.kernels, plan.bytes) == (3, plan.bytes_ideal)
    assert [view.offset for view in plan.placement.slices.values()] == [0, 645, 645 + LONG]
    assert pieces(plan) == [("div", "div", "div")]


def test_pieces_are_found_behind_views_and_under_them(
    b: FusionBuilder, device: torch.device
) -> None:
    """A grouped projection: [groups, rows, width] pieces, laid out as [rows, groups * width]."""
    long = b.permute(b.reshape(softmax(b, b.tensor([ROWS, LONG], Float)), [ROWS, 8, 12]), [1, 0, 2])
    short = softmax(b, b.tensor([3, ROWS, 12], Float), 2)
    joined = b.cat([long, short], 0)
    b.output(b.reshape(b.permute(joined, [1, 0, 2]), [ROWS, 132]))
    fusion = b.build()
    plan = CompiledFusion(fusion).plan()
    assert (plan.kernels, plan.bytes) == (2, plan.bytes_ideal)
    assert [view.strides for view in plan.placement.slices.values() if len(view.sizes) == 2] == [
        (132, 1)
    ]
    (got,) = runs(fusion, device)
    assert got.is_contiguous()


def test_what_is_padded_is_written_into_its_frame(b: FusionBuilder, device: torch.device) -> None:
    """A pad is a cat with constants, two for each dimension that grows at both ends."""
    rows = softmax(b, b.tensor([4, ROWS, LONG], Float), 2)
    b.output(b.pad(rows, [1, 3, 0, 2], 0.5))
    fusion = b.build()
    plan = partition(fusion)
    assert (plan.kernels, plan.bytes) == (2, plan.bytes_ideal)
    assert pieces(plan) == [("full", "full", "full", "div")]
    (got,) = runs(fusion, device)
    assert got.is_contiguous()


def test_a_frame_is_found_behind_views(b: FusionBuilder, device: torch.device) -> None:
    """Dimensions that are new, split or turned round where one is padded; and repeated results."""
    x = b.tensor([ROWS, SHORT], Float)
    first, second, third = (b.reduce(name, x, [1]) for name in ("sum", "max", "min"))
    split = b.pad(b.reshape(second, [8, 8]), [0, 0, 1, 1], 0.5)
    b.output(b.pad(b.broadcast(first, [False, True]), [2, 3, 1, 0], 0.25))
    b.output(b.permute(split, [1, 0]))
    b.output(b.expand(b.broadcast(b.pad(third, [1, 1], 0.75), [True, False]), [5, ROWS + 2]))
    fusion = b.build()
    plan = partition(fusion)
    assert plan.bytes == plan.bytes_ideal == 4 * (ROWS * SHORT + 6 * 65 + 10 * 8 + 66)
    assert plan.boundaries == ()
    assert sorted(len(p) for p in pieces(plan)) == [3, 3, 4]
    runs(fusion, device)


def test_a_result_lies_as_torch_has_it(b: FusionBuilder, device: torch.device) -> None:
    """The rows are one behind the other under a view that is not row-major, in torch either."""
    rows = softmax(b, b.tensor([ROWS, LONG], Float))
    b.output(b.permute(b.reshape(rows, [ROWS, 8, 12]), [1, 0, 2]))
    fusion = b.build()
    plan = CompiledFusion(fusion).plan()
    assert (plan.kernels, plan.bytes) == (1, plan.bytes_ideal)
    assert runs(fusion, device)[0].stride() == (12, LONG, 1)


@pytest.mark.parametrize("length", [1, 3, 100])
def test_what_is_computed_from_a_cat_is_computed_in_parts(b: FusionBuilder, length: int) -> None:
    """What is as large as the cat is sliced, what is repeated along it is not."""
    wide, column = b.tensor([ROWS, LONG + SHORT], Float), b.tensor([ROWS, 1], Float)
    y = b.cat(list(two(b)), 1)
    for _ in range(length):
        y = op(b, "add", op(b, "mul", y, column), op(b, "neg", wide))
    b.output(y)
    plan = partition(b.build())
    # Far from the cat, much would be computed in other kernels than it is now.
    near = length < 100
    assert plan.kernels == (2 if near else 3)
    assert bool(plan.placement.slices) == near
    if near:
        assert plan.bytes == plan.bytes_ideal + column.bytes


def test_numbers_of_parts(b: FusionBuilder, device: torch.device) -> None:
    wide, row = b.tensor([ROWS, LONG + SHORT], Float), b.tensor([LONG + SHORT], Float)
    joined = b.cat(list(two(b)), 1)
    scaled = op(b, "mul", op(b, "add", joined, op(b, "mul", joined, wide)), row)
    b.output(op(b, "sub", op(b, "exp", scaled), 1.0))
    fusion = b.build()
    assert partition(fusion).kernels == 2
    runs(fusion, device)


def test_a_view_of_rows_is_written_as_rows(b: FusionBuilder, device: torch.device) -> None:
    """The kernel that folds rows cannot write [768, 8] point by point; what it is a view of, it
    can.
    """
    b.output(b.reshape(softmax(b, b.tensor([ROWS, LONG], Float)), [ROWS * 12, 8]))
    fusion = b.build()
    plan = CompiledFusion(fusion).plan()
    assert (plan.kernels, plan.bytes) == (1, plan.bytes_ideal)
    assert runs(fusion, device)[0].is_contiguous()


def test_a_cat_behind_a_cut_is_read_whole_and_freed(b: FusionBuilder) -> None:
    cut = b.segment_set(b.cat(list(two(b)), 1))
    b.output(softmax(b, softmax(b, cut, 0), 1))
    plan = partition(b.build())
    whole = 4 * ROWS * (LONG + SHORT)
    assert pieces(plan) == [("div", "div")]
    (boundary,) = [v for v in plan.boundaries if v.bytes == whole]
    assert plan.segments[boundary.producer].kind == "concat"
    assert plan.peak_bytes < 3 * whole


def test_what_was_written_in_slices_is_freed_as_one(
    monkeypatch: pytest.MonkeyPatch, b: FusionBuilder
) -> None:
    """Also where what is read of it is a view of a slice."""
    joined = b.segment_set(b.cat(list(two(b)), 1))
    part = b.segment_set(b.slice(joined, [0, 5], [ROWS, 50]))
    y = b.segment_set(op(b, "neg", part))
    b.output(op(b, "neg", y))
    alive: list[weakref.ref[torch.Tensor]] = []
    counts = []

    def see(tensor: torch.Tensor) -> None:
        counts.append(sum(ref() is not None for ref in alive))
        alive.append(weakref.ref(tensor.untyped_storage()))  # type: ignore[arg-type]

    fusion = b.build()
    plan = partition(fusion)
    with allocations(monkeypatch, see):
        run = compile_plan(plan, CPU, HOST)
    inputs = [torch.randn(t.sizes) for t in fusion.tensor_inputs]
    run(inputs)
    # The cat, what is computed from it, and then only that and the result.
    assert counts == [0, 1, 1]
    assert plan.peak_bytes == 4 * ROWS * (LONG + SHORT + 45)


def test_slices_are_checked_where_kernels_are(b: FusionBuilder) -> None:
    b.output(b.cat([b.segment_set(t) for t in two(b)], 1))
    with options(host_debug=True):
        runs(b.build(), CPU)


def test_a_piece_may_be_read_where_it_lies(b: FusionBuilder, device: torch.device) -> None:
    """Behind a cut, by a kernel that wants nothing else of the cat."""
    long, short = two(b)
    cut = b.segment_set(short)
    b.output(b.cat([long, cut], 1))
    b.output(op(b, "neg", cut))
    fusion = b.build()
    plan = partition(fusion)
    (boundary,) = plan.boundaries
    assert plan.placement.slices[boundary.tensor].offset == LONG
    assert plan.kernels == 3
    runs(fusion, device)


def test_one_kernel_that_can_do_it_all_is_left_to_it(b: FusionBuilder) -> None:
    x, y = b.tensor([ROWS, LONG], Float), b.tensor([ROWS, SHORT], Float)
    b.output(b.cat([op(b, "exp", x), op(b, "neg", y)], 1))
    plan = partition(b.build())
    assert (plan.kernels, plan.placement.slices) == (1, {})


def test_copies_and_parts_share_a_launch(b: FusionBuilder) -> None:
    """Pulled, the second kernel reads all rows again; in slices it copies, and what is there twice
    is a copy as well. It runs when the rows are done, for it has a part of them.
    """
    rows = 1 << 12
    x, y = b.tensor([rows, 2], Float), softmax(b, b.tensor([rows, 32], Float))
    b.output(b.cat([x, y, b.slice(y, [0, 0], [rows, 3])], 1))
    plan = partition(b.build())
    assert [s.kind for s in plan.segments] == ["reduction", "pointwise", "concat"]
    assert len(plan.placement.slices) == 3
    # The rows in and out, what is copied, and the part of the rows.
    assert plan.bytes == (2 * 32 + 2 * 2 + 2 * 3) * rows * 4


@pytest.mark.parametrize("count", [2, MAX_TRIALS + 3])
def test_many_cats_are_tried_at_once(b: FusionBuilder, count: int) -> None:
    for _ in range(count):
        b.output(b.cat(list(two(b)), 1))
    plan = partition(b.build())
    assert len(pieces(plan)) == count
    assert plan.bytes == plan.bytes_ideal


def test_cats_that_are_written_in_place_print_and_run_as_plans_say(
    b: FusionBuilder, device: torch.device
) -> None:
    long, short = two(b)
    empty = b.tensor([ROWS, 0], Float)
    b.output(b.cat([empty, b.segment_set(long), empty, b.segment_set(short)], 1))
    fusion = b.build()
    plan = partition(fusion)
    assert pieces(plan) == [("div", "div")]
    runs(fusion, device)


# ---- RoPE backward


def rope_backward(groups: int, time: int, size: int, cut: bool) -> Fusion:
    """As the workload of that name, with cuts in front of the cat."""
    b = FusionBuilder()
    tables = [b.tensor([time, size], BFloat16) for _ in range(2)]
    gradients = [b.tensor([1, groups * 4, time, size], BFloat16) for _ in range(2)]
    cuts = {"cut": b.segment_set} if cut else {}
    define_rope_backward(b, *tables, *gradients, groups, **cuts)
    return b.build()


@pytest.mark.parametrize("cut", [False, True])
def test_rope_backward_of_llama(cut: bool) -> None:
    plan = CompiledFusion(rope_backward(8, 8192, 128, cut)).plan()
    assert (plan.kernels, plan.bytes) == (1, 239_075_328)
    # Those of the rotated pieces have halves, which read the same.
    assert len(plan.placement.slices) == (3 + 2 * 2 if cut else 0)


def test_rope_backward_in_slices_has_the_right_numbers(device: torch.device) -> None:
    results = []
    for cut in (False, True):
        compiled = CompiledFusion(rope_backward(2, 5, 16, cut))
        torch.manual_seed(3)
        sizes = [t.sizes for t in compiled.fusion.tensor_inputs]
        inputs = [torch.randn(n).bfloat16().to(device) for n in sizes]
        results += compiled(inputs)
    assert torch.equal(*results)


# ---- every kind of kernel stores into slices


def totals(b: FusionBuilder) -> None:
    """Gradients of scale and bias side by side, by the kernel that has those of the rows."""
    x, dy = (b.tensor([257, 512], Float) for _ in range(2))
    row = b.reduce("sum", op(b, "mul", x, dy), [1], keepdim=True)
    b.output(op(b, "sub", dy, op(b, "mul", x, row)))
    b.output(b.cat([b.reduce("sum", op(b, "mul", x, dy), [0]), b.reduce("sum", dy, [0])], 0))


def turned_rows(b: FusionBuilder) -> None:
    """A tile turned in shared memory, beside rows."""
    x, y = b.tensor([256, 320], Float), b.tensor([320, 64], Float)
    b.output(b.cat([softmax(b, y), op(b, "neg", b.permute(x, [1, 0]))], 1))


def stacked_rows(b: FusionBuilder) -> None:
    """Rows of the cat are rows of the pieces, which are as wide."""
    x, y = b.tensor([64, 256], Float), b.tensor([3, 256], Float)
    b.output(b.cat([softmax(b, x), op(b, "exp", b.segment_set(y))], 0))


def columns_of_rows(b: FusionBuilder) -> None:
    """Folded along the outer dimension: a thread's lanes are rows."""
    x, y = b.tensor([300, 128], Float), b.tensor([300, 64], Float)
    b.output(b.cat([softmax(b, x, 0), op(b, "neg", b.segment_set(softmax(b, y, 1)))], 1))


KINDS = pytest.mark.parametrize(
    ("define", "kernels"),
    [(totals, 1), (turned_rows, 2), (stacked_rows, 2), (columns_of_rows, 3)],
)


@KINDS
def test_numbers_of_kernels(
    define: Callable[[FusionBuilder], None], kernels: int, device: torch.device
) -> None:
    b = FusionBuilder()
    define(b)
    fusion = b.build()
    plan = CompiledFusion(fusion).plan()
    assert plan.kernels == kernels
    assert len(plan.placement.slices) == 2
    runs(fusion, device)


@pytest.mark.nvrtc
@KINDS
def test_kernels_compile_for_a_gpu(define: Callable[[FusionBuilder], None], kernels: int) -> None:
    b = FusionBuilder()
    define(b)
    plan = CompiledFusion(b.build()).plan()
    found = [k.kernel for k in generate_kernels(plan, H200).values()]
    assert len(found) == kernels
    assert len(compile_cubin(found, H200.arch).resources) == kernels


@pytest.mark.nvrtc
@pytest.mark.parametrize("odd", [0, 1])
def test_strided_destinations_compile_for_a_gpu(b: FusionBuilder, odd: int) -> None:
    """Vectors where a row of the slice begins within them as the row does that is read, single
    elements where not.
    """
    x, y = b.tensor([128, 256 + odd], BFloat16), b.tensor([128, 512], BFloat16)
    rows = [b.cast_tensor(softmax(b, b.cast_tensor(t, Float)), BFloat16) for t in (x, y)]
    b.output(b.cat(rows, 1))
    plan = partition(b.build())
    kernels = [k.kernel for k in generate_kernels(plan, H200).values()]
    assert len(kernels) == 2
    assert ["tf::store<8>" in kernel.source for kernel in kernels] == [True, not odd]
    found = compile_cubin(kernels, H200.arch).resources
    assert {k.name for k in kernels} == found.keys()


def test_pieces_of_a_whole_that_nobody_reads_have_its_memory() -> None:
    """A kernel computes most of a cat again, and reads a piece of it that was written into it."""
    b = FusionBuilder()
    x = b.tensor([1, 1], DataType.BFloat16)
    largest = b.reduce("max", x, [1], keepdim=True)
    flags = b.cast_tensor(b.cat([x, largest, x], 1), DataType.Bool)
    compared = b.pointwise("le", flags, False)
    assert isinstance(compared, TensorView)
    b.output(compared)
    b.output(b.reduce("sum", flags, [1]))
    (found, count) = CompiledFusion(b.build())([torch.ones(1, 1, dtype=torch.bfloat16)])
    assert found.tolist() == [[False] * 3]
    assert count.tolist() == [3]
