"""Reductions of dimensions that merge others: kernels go through memory in its order."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator

import pytest
import thunder
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import thunder_fuser
from tests.support.batch import Batch, executable
from tests.support.building import op
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Merge, NewBroadcast, Reorder, Resize, Split, Squeeze, Transform
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.lower.memory_order import MemoryOrder
from thunder_fuser.segment.layouts.layout_conversion import strided
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.templates.estimate import estimate_segment

Float = DataType.Float


# ---- memory orders


@pytest.mark.parametrize(
    ("steps", "sizes", "order"),
    [
        # [N, C, H, W] of memory N, H, W, C, flattened: pixels are one walk, channels another.
        ([Merge(1), Merge(1)], ((2,), (8, 12)), ((0, 0), (1, 1), (1, 0))),
        ([Merge(2)], ((2,), (8,), (12,)), ((0, 0), (2, 0), (1, 0))),
        (
            [Split(1, 2, 4)],
            ((2,), (2,), (4,), (3,), (4,)),
            ((0, 0), (3, 0), (4, 0), (1, 0), (2, 0)),
        ),
        ([Reorder((0, 2, 3, 1)), Merge(1), Merge(1)], ((2,), (96,)), ((0, 0), (1, 0))),
        ([Merge(0)], ((2, 8), (3,), (4,)), ((0, 0), (1, 0), (2, 0), (0, 1))),
        # What is merged and split elsewhere: (c, h) as (c, 4 of c and h).
        ([Merge(1), Split(1, 2, 12)], ((2,), (2,), (4, 3), (4,)), None),
        ([NewBroadcast(1), Squeeze(1), Merge(2)], ((2,), (8,), (12,)), ((0, 0), (2, 0), (1, 0))),
    ],
)
def test_orders_follow_views(
    steps: list[Transform],
    sizes: tuple[tuple[int, ...], ...],
    order: tuple[tuple[int, int], ...] | None,
) -> None:
    found = MemoryOrder.of((2, 8, 3, 4), (0, 2, 3, 1)).after(steps)
    assert found is not None
    assert found.sizes == sizes
    if order is not None:
        assert found.order == order


def test_orders_are_unknown_behind_what_drops_or_cuts_across() -> None:
    start = MemoryOrder.of((6, 4), (1, 0))
    assert start.after([Resize(0, -1, 0)]) is None
    assert start.after([Merge(0), Split(0, 3, 8)]) == MemoryOrder(
        ((3,), (2, 4)), ((1, 1), (0, 0), (1, 0))
    )
    assert start.after([Merge(0), Split(0, 8, 3)]) is None
    assert start.after([Split(0, 4, 2)]) is None


def test_random_orders_are_those_of_strides() -> None:
    """Walking the parts of a view in their order is walking memory."""
    for seed in range(300):
        rng = random.Random(seed)
        sizes = [rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randint(1, 4))]
        order = rng.sample(range(len(sizes)), len(sizes))
        memory = torch.arange(math.prod(sizes)).reshape([sizes[k] for k in order])
        shown = memory.permute([order.index(k) for k in range(len(order))])
        found: MemoryOrder | None = MemoryOrder.of(sizes, order)
        for _ in range(rng.randint(1, 4)):
            assert found is not None
            step, shown = _random_step(rng, shown)
            found = found.after([step])
            if found is None:
                break
        if found is None:
            continue
        parts = shown.reshape([n for each in found.sizes for n in each])
        places = list(itertools.accumulate((len(each) for each in found.sizes), initial=0))
        walk = parts.permute([places[k] + n for k, n in found.order]).flatten()
        assert walk.tolist() == list(range(len(walk))), f"seed {seed}"


def _random_step(rng: random.Random, shown: torch.Tensor) -> tuple[Transform, torch.Tensor]:
    shape = list(shown.shape)
    k = rng.randrange(len(shape))
    match rng.choice(["split", "merge", "permute", "broadcast"]):
        case "split":
            inner = rng.choice([n for n in range(1, shape[k] + 1) if shape[k] % n == 0])
            shape[k : k + 1] = [shape[k] // inner, inner]
            return Split(k, shape[k], inner), shown.reshape(shape)
        case "merge" if k + 1 < len(shape):
            shape[k : k + 2] = [shape[k] * shape[k + 1]]
            return Merge(k), shown.reshape(shape)
        case "broadcast":
            return NewBroadcast(k), shown.unsqueeze(k)
        case _:
            order = rng.sample(range(len(shape)), len(shape))
            return Reorder(tuple(order)), shown.permute(order)


# ---- plans


def _plans(f: Callable[..., object], *shapes: tuple[int, ...]) -> list[SegmentedFusion]:
    """Forward and backward plans of bfloat16 tensors, without memory."""
    with FakeTensorMode():
        inputs = [
            torch.empty(s, dtype=torch.bfloat16, device="cuda", requires_grad=True) for s in shapes
        ]
        jitted = thunder.jit(f, executors=[thunder_fuser.executor])
        thunder.compile_data(jitted).get_computation_and_inputs(*inputs)
    return [fusion.plan for fusion in thunder_fuser.fusions(jitted)]


def _sectors(plans: list[SegmentedFusion]) -> float:
    """Bytes of sectors for each byte that the fusions cannot do without."""
    moved = [estimate_segment(s, H200).sector_bytes for p in plans for s in p.segments if s.kernels]
    return sum(moved) / sum(int(p.bytes_ideal) for p in plans)


def last(x: torch.Tensor) -> torch.Tensor:
    """A tensor of memory N, H, W, C as [N, C, H, W]."""
    return x.permute(0, 3, 1, 2)


def group_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.group_norm(last(x), 32, w, b).permute(0, 2, 3, 1)


def _seconds(plans: list[SegmentedFusion]) -> float:
    return sum(estimate_segment(s, H200).seconds for p in plans for s in p.segments if s.kernels)


# Groups of 8 channels of bfloat16 are half a sector, of 10 lie across sectors, of 16 are one.
@pytest.mark.parametrize("channels", [256, 320, 512])
def test_group_norm_with_channels_last_is_no_other_order_of_magnitude(channels: int) -> None:
    """What is read of a sector is all of a group; nothing is copied into another order."""
    weights = [(channels,), (channels,)]
    rows = _plans(lambda x, w, b: F.group_norm(x, 32, w, b), (64, channels, 56, 56), *weights)
    plans = _plans(group_norm, (64, 56, 56, channels), *weights)
    assert _seconds(plans) < 2 * _seconds(rows)
    assert [p.kernels for p in plans] == [1 if channels == 512 else 2, 3]
    assert sum(int(p.bytes) for p in plans) < 1.7 * sum(int(p.bytes_ideal) for p in plans)


@pytest.mark.parametrize("channels", [128, 256])
def test_gradients_of_groups_sum_channels_first(channels: int) -> None:
    """Those go through memory in its order, whatever part of a sector a group's channels are."""
    backward = _plans(group_norm, (64, 56, 56, channels), (channels,), (channels,))[1]
    assert not strided(backward, H200)
    assert backward.bytes <= 5.05 / 3 * backward.bytes_ideal


def group_norm_in_parts(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Of which Thunder differentiates the parts: groups have sums, and channels have others."""
    size = x.shape[-1]
    groups = last(x).reshape(x.shape[0], 32, size // 32, *x.shape[1:3]).float()
    variance, mean = torch.var_mean(groups, (2, 3, 4), correction=0, keepdim=True)
    normal = ((groups - mean) * torch.rsqrt(variance + 1e-5)).reshape(last(x).shape)
    shape = (1, size, 1, 1)
    affine = normal * w.reshape(shape) + b.reshape(shape)
    return affine.to(x.dtype).permute(0, 2, 3, 1)


def test_groups_of_four_channels_are_copied_in_an_order_of_long_runs() -> None:
    """8 bytes of each sector, of two inputs and the result, cost more than copies of these."""
    backward = _plans(group_norm_in_parts, (64, 56, 56, 128), (128,), (128,))[1]
    assert not strided(backward, H200)
    assert sum(s.kind == "pointwise" and s.kernels > 0 for s in backward.segments) == 2
    # Runs of half a sector are no reason to copy.
    backward = _plans(group_norm_in_parts, (64, 56, 56, 256), (256,), (256,))[1]
    assert len(strided(backward, H200)) == 3


@pytest.mark.parametrize(
    "f",
    [
        lambda x: last(x).flatten(2).mean(-1),
        lambda x: F.adaptive_avg_pool2d(last(x), 1).flatten(1),
        lambda x: torch.var_mean(last(x).flatten(1), 1),
        lambda x: last(x).flatten(1).amax(1),
        lambda x: last(x).flatten(0, 1).sum((1, 2)),
    ],
    ids=["mean", "pool", "var_mean", "amax", "rows"],
)
def test_statistics_of_flattened_pixels_read_memory_once(f: Callable[..., object]) -> None:
    forward = _plans(f, (64, 56, 56, 256))[0]
    assert forward.kernels == 1
    assert _sectors([forward]) < 1.05


def test_a_norm_of_flattened_channels_and_pixels_converts_no_layout() -> None:
    """It is returned row-major: written by a transpose, behind statistics of one read."""

    def norm(x: torch.Tensor) -> torch.Tensor:
        flat = last(x).flatten(1)
        return F.layer_norm(flat, flat.shape[1:])

    forward = _plans(norm, (64, 56, 56, 256))[0]
    assert int(forward.bytes) < 1.51 * int(forward.bytes_ideal)
    assert _sectors([forward]) < 1.6


# ---- numbers


class Program:
    """The same random reduction for our builder and for torch: of a tensor whose dimensions are
    permuted, split and merged, and what is normalised by it.
    """

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        # Also what is too large to be written in any order.
        extents = [16, 24, 40] if rng.random() < 0.3 else [1, 2, 3, 4, 8, 10, 12, 32]
        self.memory = [rng.choice(extents) for _ in range(rng.randint(2, 4))]
        self.order = rng.sample(range(len(self.memory)), len(self.memory))
        self.shown = [self.memory[k] for k in self.order]
        self.sizes = _merged(rng, [n for size in self.shown for n in _factors(rng, size)])
        rank = len(self.sizes)
        self.dims = sorted(rng.sample(range(rank), rng.randint(1, rank)))
        self.fold = rng.choice(["sum", "max", "deviations", "argmax", "two"])
        self.beside = rng.choice([None, None, "flat", "memory"])
        self.is_seen_back = rng.random() < 0.6

    def fusion(self) -> Fusion:
        b = FusionBuilder()
        memory = b.tensor(self.memory, Float)
        x = b.reshape(b.permute(memory, self.order), self.sizes)
        if self.beside is not None:
            other = b.tensor(self.sizes if self.beside == "flat" else self.memory, Float)
            if self.beside == "memory":
                other = b.reshape(b.permute(other, self.order), self.sizes)
            x = op(b, "mul", x, other)
        for result in self._results(b, x):
            b.output(result)
        return b.build()

    def _results(self, b: FusionBuilder, x: TensorView) -> Iterator[TensorView]:
        if self.fold == "argmax":
            axis = self.dims[0]
            yield b.reduce("argmax", x, [axis])
            return
        first = "max" if self.fold == "max" else "sum"
        value = b.reduce(first, x, self.dims, keepdim=True)
        y = op(b, "sub", x, b.expand(value, self.sizes))
        if self.fold == "deviations":
            more = b.reduce("sum", op(b, "mul", y, y), self.dims, keepdim=True)
            y = op(b, "add", y, b.expand(more, self.sizes))
        if self.fold == "two":
            rest = [k for k in range(len(self.sizes)) if k not in self.dims]
            yield b.reduce("sum", x, rest or self.dims)
        yield b.reshape(value, [value.numel])
        if self.is_seen_back:
            places = [self.order.index(k) for k in range(len(self.order))]
            y = b.permute(b.reshape(y, self.shown), places)
        yield y

    def expected(self, memory: torch.Tensor, other: torch.Tensor | None) -> Iterator[torch.Tensor]:
        x = memory.permute(self.order).reshape(self.sizes)
        if other is not None:
            flat = self.beside == "flat"
            x = x * (other if flat else other.permute(self.order).reshape(self.sizes))
        if self.fold == "argmax":
            yield x.argmax(self.dims[0])
            return
        if self.fold == "max":
            value = x.amax(self.dims, keepdim=True)
        else:
            value = x.sum(self.dims, keepdim=True)
        y = x - value
        if self.fold == "deviations":
            y = y + (y * y).sum(self.dims, keepdim=True)
        if self.fold == "two":
            rest = [k for k in range(len(self.sizes)) if k not in self.dims]
            yield x.sum(rest or self.dims)
        yield value.flatten()
        if self.is_seen_back:
            places = [self.order.index(k) for k in range(len(self.order))]
            y = y.reshape(self.shown).permute(places)
        yield y

    def inputs(self, device: torch.device) -> list[torch.Tensor]:
        sizes = [self.memory]
        if self.beside is not None:
            sizes.append(self.sizes if self.beside == "flat" else self.memory)
        # Small whole numbers: sums are exact, and largest elements have ties.
        return [torch.randint(-3, 4, s, device=device).float() for s in sizes]


def _factors(rng: random.Random, size: int) -> list[int]:
    inner = rng.choice([n for n in range(1, size + 1) if size % n == 0])
    return [size // inner, inner] if rng.random() < 0.4 else [size]


def _merged(rng: random.Random, sizes: list[int]) -> list[int]:
    found = list(sizes)
    for _ in range(rng.randint(1, 3)):
        if len(found) > 1:
            k = rng.randrange(len(found) - 1)
            found[k : k + 2] = [found[k] * found[k + 1]]
    return found


@pytest.mark.parametrize("scheduled_for", ["own", "H200"])
def test_random_reductions_of_merged_dimensions(device: torch.device, scheduled_for: str) -> None:
    info = H200 if scheduled_for == "H200" and device.type == "cpu" else None
    batch = Batch(device, info)
    planned = []
    # Each for one of the two.
    for seed in range(int(scheduled_for == "H200"), 60, 2):
        torch.manual_seed(seed)
        program = Program(seed)
        inputs = program.inputs(device)
        compiled = executable(CompiledFusion(program.fusion()), inputs, batch, device)
        planned.append((seed, program, inputs, compiled))
    for seed, program, inputs, compiled in planned:
        memory, other = [*(t.double() for t in inputs), None][:2]
        assert memory is not None
        wanted = program.expected(memory, other)
        for found, right in zip(compiled(inputs), wanted, strict=True):
            torch.testing.assert_close(
                found.double(), right.double(), rtol=1e-5, atol=0, msg=lambda m, s=seed: f"{s}: {m}"
            )
