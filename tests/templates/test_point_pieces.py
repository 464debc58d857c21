"""Pieces of points: the sides of a cat's tests, each walked alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from tests.support.building import op
from tests.support.simulation import schedule, simulate
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.lower.scalar_graph import Select
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.pointwise.parts import rounds_of
from thunder_fuser.templates.pointwise.schedule import PointwisePart, PointwiseSchedule

BF16, F32 = DataType.BFloat16, DataType.Float
OPS = {"neg": torch.neg, "relu": torch.relu, "abs": torch.abs}


def parts_of(b: FusionBuilder, device: DeviceInfo = H200) -> tuple[PointwisePart, ...]:
    # Planned for a cache that keeps everything: none is written in pieces for what these share.
    (segment,) = partition(b.build(), device=replace(H200, l2_bytes=1 << 40)).segments
    found = schedule(segment, device)
    assert isinstance(found, PointwiseSchedule)
    return found.parts


def random_pieces(seed: int) -> tuple[FusionBuilder, list[torch.Tensor], int]:
    """A cat of two to four computed tensors, in front of or behind a permutation."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    b, inputs, pieces = FusionBuilder(), [], []
    dim, line = choose.randrange(2), 32
    count = choose.randint(2, 4)
    for k in range(count):
        sizes = [2, 3, line]
        sizes[dim] = choose.randint(1, 3)
        inputs.append(torch.randn(sizes, generator=generator))
        value: TensorView = b.tensor(sizes, F32)
        for name in ("relu", "neg")[: choose.randint(0, 2)] if k else ("neg",):
            value = op(b, name, value)
        pieces.append(value)
    cat = op(b, "neg", b.cat(pieces, dim))
    b.output(b.permute(cat, [1, 0, 2]) if choose.random() < 0.5 else cat)
    return b, inputs, count


def test_each_piece_of_a_cat_reads_what_it_needs_and_tests_nothing() -> None:
    for seed in range(40):
        b, inputs, count = random_pieces(seed)
        fusion = b.build()
        plan = CompiledFusion(fusion).plan(inputs)
        (found,) = simulate(plan, inputs, H200).values()
        (expected,) = evaluate(plan.fusion, inputs).outputs
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        (segment,) = plan.segments
        parts = schedule(segment, H200).parts  # type: ignore[union-attr]
        assert len(parts) == count, seed
        for part in parts:
            assert len(part.graph.loads) == 1, seed
            assert not any(isinstance(node, Select) for node in part.graph), seed


def test_columns_of_a_row_are_parted_as_heads_are() -> None:
    """Queries, keys and values of one projection, 4 to 1 to 1."""
    b = FusionBuilder()
    names, widths = ("neg", "relu", "abs"), (256, 64, 64)
    parts = [op(b, n, b.tensor([64, w], F32)) for n, w in zip(names, widths, strict=True)]
    b.output(b.cat(parts, 1))
    found = parts_of(b)
    assert [len(part.graph.loads) for part in found] == [1, 1, 1]
    assert not any(isinstance(node, Select) for part in found for node in part.graph)


@pytest.mark.parametrize("scale", [1, 16])
def test_what_pieces_share_stays_in_the_outer_cache_of_a_cpu(scale: int) -> None:
    """Both sides of a cat read a weight of 512 KiB, half of a core's L2, or of 8 MiB, a third of
    L3.
    """
    host = HOST.device_info(torch.device("cpu"))
    b = FusionBuilder()
    weight = b.tensor([1 << 11, 64 * scale], F32)
    sides = [op(b, "mul", b.tensor([1 << 11, 64 * scale], F32), weight) for _ in range(2)]
    b.output(b.cat(sides, 0))
    found = parts_of(b, host)
    assert host.l2_bytes < 4 * weight.bytes
    assert len(found) == (2 if 4 * weight.bytes <= host.outer_cache_bytes else 1)


def test_what_an_expanded_tensor_repeats_counts_once() -> None:
    """Rotations of heads and of keys read the same cosines, which are expanded to all heads."""
    b = FusionBuilder()
    cosines = b.tensor([1 << 10, 1 << 12, 64], F32, expanded=[True, False, False])
    sides = [op(b, "mul", b.tensor([1 << 10, 1 << 12, 64], F32), cosines) for _ in range(2)]
    b.output(b.cat(sides, 0))
    assert len(parts_of(b)) == 2


@pytest.mark.parametrize("why", ["short lines", "what both sides read is large", "many pieces"])
def test_points_stay_together(why: str) -> None:
    b = FusionBuilder()
    if why == "short lines":
        b.output(b.cat([b.tensor([64, 16], BF16), b.tensor([64, 16], BF16)], 1))
    elif why == "many pieces":
        b.output(b.cat([op(b, "neg", b.tensor([2, 64], F32)) for _ in range(7)], 0))
    else:
        # Halves exchanged: each is wanted by the other's points at the same time.
        x = b.tensor([1 << 15, 2, 1024], F32)
        first, second = (b.slice(x, [0, k, 0], [1 << 15, k + 1, 1024]) for k in (0, 1))
        b.output(op(b, "add", x, b.cat([op(b, "neg", second), first], 1)))
    (part,) = parts_of(b)
    assert any(isinstance(node, Select) for node in part.graph)


@pytest.mark.parametrize(
    ("blocks", "rounds"),
    [
        ((8, 2, 2), 2),
        ((1000, 250), 250),
        ((1001, 500), 167),  # with 500 rounds of 3 blocks, a third would be idle
        ((7, 1), 1),
        ((3, 0), 1),
    ],
)
def test_rounds_of_pieces(blocks: tuple[int, ...], rounds: int) -> None:
    assert rounds_of(blocks) == rounds


def test_rounds_leave_few_blocks_idle() -> None:
    choose = random.Random(0)
    for _ in range(500):
        blocks = [
            choose.randint(1, 10 ** choose.randint(1, 5)) for _ in range(choose.randint(2, 5))
        ]
        rounds = rounds_of(blocks)
        assert 1 <= rounds <= min(blocks)
        assert sum(-(-n // rounds) * rounds for n in blocks) <= sum(blocks) * (1 + 1 / 32)


@pytest.mark.parametrize("columns", [(512, 512), (512, 128, 128), (1024, 96), (4096, 32)])
@pytest.mark.parametrize("rows", [64, 331])
def test_pieces_take_turns(rows: int, columns: tuple[int, ...]) -> None:
    """Every block of every piece runs once, also where shares are rounded up, and rounds of one cat
    follow another output's blocks.
    """
    generator = torch.Generator().manual_seed(rows)
    inputs = [torch.randn(rows, n, generator=generator) for n in columns]
    other = torch.randn(3, 7, 11, generator=generator)
    b = FusionBuilder()
    first = op(b, "abs", b.tensor([3, 7, 11], F32))
    parts = [op(b, name, b.tensor([rows, n], F32)) for name, n in zip(OPS, columns, strict=False)]
    b.output(first)
    b.output(b.cat(parts, 1))
    host = HOST.device_info(torch.device("cpu"))
    takes_turns = max(part.rounds for part in parts_of(b, host)) > 1
    assert takes_turns is (min(columns) * rows > 4096)  # more than one block
    found = CompiledFusion(b.build())([other, *inputs])
    expected = [other.abs(), torch.cat([OPS[n](x) for n, x in zip(OPS, inputs, strict=False)], 1)]
    torch.testing.assert_close([*found], expected, rtol=0, atol=0)


@pytest.mark.parametrize("columns", [513, 1001])
def test_a_core_writes_parts_of_lines_at_the_ends_of_long_blocks(columns: int) -> None:
    """Its cache merges them; a GPU, and blocks of a few lines, have the cat as one loop."""
    b = FusionBuilder()
    x = b.tensor([64, columns], F32)
    b.output(b.cat([op(b, "neg", x), op(b, "relu", x)], 1))
    cpu = HOST.device_info(torch.device("cpu"))
    on_cpu, on_gpu = parts_of(b, cpu), parts_of(b)
    assert not any(isinstance(node, Select) for part in on_cpu for node in part.graph)
    assert any(isinstance(node, Select) for part in on_gpu for node in part.graph)
