"""What kernels store for each other because it moves less than computing it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from thunder_fuser.compile import generate_kernels
from thunder_fuser.device_table import H200
from thunder_fuser.frontends.definition import DataType, FusionDefinition, Tensor
from thunder_fuser.frontends.definition.operations.ops import Ops
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.planner import partition

N, M = 64, 4096
WIDE, ROW, COLUMN = 4 * N * M, 4 * M, 4 * N
Define = Callable[..., Tensor]


def normalised(ops: Ops, x: Tensor) -> Tensor:
    """By the sums of columns, then of rows: they cannot be in one kernel with the result."""
    y = ops.div(x, ops.broadcast(ops.sum(ops.abs(x), [0]), [True, False]))
    return ops.div(y, ops.broadcast(ops.sum(ops.abs(y), [1]), [False, True]))


def of_four(ops: Ops, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return normalised(ops, ops.sin(ops.add(ops.mul(a, b), ops.mul(c, d))))


def of_one(ops: Ops, a: Tensor) -> Tensor:
    return normalised(ops, ops.sin(a))


def definition(define: Define, operands: int, rows: int, columns: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        given = [fd.define_tensor([rows, columns], True, DataType.Float) for _ in range(operands)]
        fd.add_output(define(fd.ops, *given))
    return fd


def plan(define: Define, operands: int) -> SegmentedFusion:
    return definition(define, operands, N, M).plan()


def test_one_tensor_is_stored_rather_than_four_read_again() -> None:
    found = plan(of_four, 4)
    assert found.kernels == 2
    assert sorted(b.bytes for b in found.boundaries) == [COLUMN, WIDE]
    (stored,) = [b for b in found.boundaries if b.bytes == WIDE]
    assert stored.reason == "it moves fewer bytes than computing it again would"
    # Four in, one out; one in, one out; the sums of rows out and in.
    assert found.bytes == 7 * WIDE + 2 * COLUMN
    # The first kernel's sums of columns stay inside it: who read them reads what they gave.
    assert not any(t.bytes == ROW for s in found.segments for t in s.outputs)


def test_one_tensor_is_read_again_rather_than_written_and_read() -> None:
    found = plan(of_one, 1)
    assert found.kernels == 2
    assert max(b.bytes for b in found.boundaries) == ROW
    assert found.bytes == 3 * WIDE + 2 * ROW


def test_a_result_is_read_where_it_was_written_anyway() -> None:
    def define(ops: Ops, a: Tensor, b: Tensor) -> Tensor:
        return ops.mul(a, b)

    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([N, M], True, DataType.Float) for _ in range(2))
        product = define(fd.ops, a, b)
        fd.add_output(product)
        fd.add_output(normalised(fd.ops, product))
    found = fd.plan()
    assert found.kernels == 2
    assert found.bytes == (2 + 1 + 1 + 1) * WIDE + 2 * ROW
    assert "it is in memory anyway" in [b.reason for b in found.boundaries]


def test_nothing_is_stored_where_one_kernel_does_it_all() -> None:
    with FusionDefinition() as fd:
        given = [fd.define_tensor([N, M], True, DataType.Float) for _ in range(4)]
        x = fd.ops.add(fd.ops.mul(given[0], given[1]), fd.ops.mul(given[2], given[3]))
        fd.add_output(fd.ops.div(x, fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True])))
    found = fd.plan()
    assert (found.kernels, found.boundaries, found.bytes) == (1, (), 5 * WIDE)


def test_what_an_input_repeats_is_not_stored_in_full() -> None:
    """One value a column in memory, seen as many rows, and converted: cheap to do again."""
    rows, columns = 8192, 64
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, columns], True, DataType.Float)
        scale = fd.define_tensor(
            [rows, columns],
            [None, True],
            DataType.BFloat16,
            expanded=[True, False],
            stride_order=[1, 0],
        )
        y = fd.ops.mul(x, fd.ops.cast(scale, DataType.Float))
        fd.add_output(fd.ops.mul(normalised(fd.ops, y), fd.ops.cast(scale, DataType.Float)))
    found = fd.plan()
    assert found.boundaries
    assert all(b.bytes <= 4 * rows for b in found.boundaries)


@pytest.mark.parametrize(("define", "operands"), [(of_four, 4), (of_one, 1)])
def test_numbers(define: Define, operands: int, device: torch.device) -> None:
    rows, columns = 33, 130
    inputs = [torch.randn(rows, columns, device=device) for _ in range(operands)]
    (found,) = definition(define, operands, rows, columns).execute(inputs)
    wide = [x.double() for x in inputs]
    x = torch.sin(wide[0] if operands == 1 else wide[0] * wide[1] + wide[2] * wide[3])
    y = x / x.abs().sum(0)
    exact = y / y.abs().sum(1, keepdim=True)
    torch.testing.assert_close(found.double(), exact, rtol=2e-5, atol=1e-7)


def test_only_what_is_read_of_a_tensor_counts() -> None:
    """A kernel behind another one wants a small window of what that computes from four tensors."""
    with FusionDefinition() as fd:
        given = [fd.define_tensor([N, M], True, DataType.Float) for _ in range(4)]
        x = fd.ops.sin(fd.ops.add(fd.ops.mul(given[0], given[1]), fd.ops.mul(given[2], given[3])))
        total = fd.ops.sum(x, [0])
        part = fd.ops.slice(x, [0, 0], [1, M])
        fd.add_output(fd.ops.mul(part, fd.ops.broadcast(total, [True, False])))
    found = fd.plan()
    # The window of four inputs is cheaper than all of one tensor written.
    assert found.bytes <= 4 * WIDE + 2 * ROW + 5 * ROW
    assert not any(b.bytes == WIDE for b in found.boundaries)


def both_ways(ops: Ops, a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    """All elements, and those of rows: no kernel folds both, and neither waits."""
    x = ops.mul(ops.add(ops.mul(a, b), c), a)
    return [ops.sum(x, [0, 1]), ops.sum(x, [1])]


def small_beside(ops: Ops, a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    """Rows are folded of what the sum of all does not compute, but could: it is a fourth of one of
    the tensors that it reads. And it comes later in the program.
    """
    x = ops.add(ops.mul(a, b), c)
    return [ops.max(ops.cast(x, DataType.Int8), [1]), ops.sum(ops.abs(ops.sub(x, a)), [0, 1])]


def outputs_of(define: Callable[..., list[Tensor]], rows: int, columns: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        given = [fd.define_tensor([rows, columns], True, DataType.Float) for _ in range(3)]
        for result in define(fd.ops, *given):
            fd.add_output(result)
    return fd


def test_kernels_that_need_not_wait_read_what_others_compute() -> None:
    found = outputs_of(both_ways, N, M).plan()
    # Three in and one out, and that one in.
    assert (found.kernels, found.bytes) == (2, 5 * WIDE + COLUMN + 4)
    assert [b.bytes for b in found.boundaries] == [WIDE]


def test_kernels_write_for_others_what_they_could_compute() -> None:
    found = outputs_of(small_beside, N, M).plan()
    assert (found.kernels, found.bytes) == (2, 3 * WIDE + 2 * WIDE // 4 + COLUMN // 4 + 4)
    assert [b.bytes for b in found.boundaries] == [WIDE // 4]
    assert "max" in found.segments[1].operations


@pytest.mark.parametrize("define", [both_ways, small_beside])
def test_numbers_of_both(define: Callable[..., list[Tensor]], device: torch.device) -> None:
    a, b, c = (torch.randint(-3, 4, (33, 130), device=device).float() for _ in range(3))
    found = outputs_of(define, 33, 130).execute([a, b, c])
    x = a * b + c
    wanted = [(x * a).sum(), (x * a).sum(1)]
    if define is small_beside:
        wanted = [x.to(torch.int8).amax(1), (x - a).abs().sum()]
    for mine, exact in zip(found, wanted, strict=True):
        assert torch.equal(mine, exact)


def test_what_one_kernel_writes_for_others_it_can_write_together() -> None:
    """Rows and columns of a square have as many points: each result alone could be written."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 2], True, DataType.Float)
        for dim in (0, 1):
            power = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [dim], keepdim=True)))
            fd.add_output(fd.ops.div(power, fd.ops.sum(power, [dim], keepdim=True)))
    # Memory comes in large pieces, and launches cost nothing.
    device = replace(H200, launch_seconds=0.0, sm_count=1 << 20, sector_bytes=1024, l2_bytes=0)
    found = partition(fd.plan().fusion, device=device)
    assert len(generate_kernels(found, H200)) == found.kernels
