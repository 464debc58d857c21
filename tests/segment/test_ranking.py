"""What is ranked by sizes alone, partitions by the planner, and what the reduction template leaves
out by a formula of sizes, held to what templates estimate of the kernels that it becomes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.support.partitions import partition_by
from tests.support.shares import each_value
from tests.tools.replay import corpus
from tests.zoo.losses import cross_entropy
from tests.zoo.reductions import REDUCTIONS
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, H200
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.rows.online_reductions import in_one_pass
from thunder_fuser.segment.anchors.anchors import Anchors, members, union
from thunder_fuser.segment.partition.cost import Cost
from thunder_fuser.segment.partition.search import search
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.estimate import estimated
from thunder_fuser.templates.lower import lower
from thunder_fuser.templates.reduction.schedule import ReductionSchedule
from thunder_fuser.templates.reduction.scheduler import candidates
from thunder_fuser.templates.reduction.template import schedule_reduction
from thunder_fuser.time_model.estimate import estimate_kernel

MARGIN = 0.15
"""What an estimate may be off by: it counts instructions to that of machine code
(tests/time_model/test_instruction_mix.py).
"""
OVERLOOKED = 0.05
"""What the schedules that a formula leaves out (templates/reduction/cost.py) may save."""
SLACK = 0.5
"""Of a launch, whose seconds no data sheet says."""
RANDOM = 6
OTHERS = 1
"""Partitions of each kind beside the planner's."""
EXCEPTIONS: dict[str, str] = {}
"""Programs that the planner ranks wrongly, and why."""


@dataclass(frozen=True)
class Pair:
    """A partition that the planner chose, and another: kernels, prices, estimated seconds."""

    name: str
    kernels: tuple[int, int]
    prices: tuple[int, int]
    seconds: tuple[float, float]

    def disagrees(self, device: DeviceInfo) -> bool:
        """Whether the one that the planner ranks behind the other is clearly the faster one."""
        cheap, dear = (0, 1) if self.prices[0] <= self.prices[1] else (1, 0)
        slack = SLACK * device.launch_seconds
        return self.seconds[cheap] > (1 + MARGIN) * self.seconds[dear] + slack

    def __str__(self) -> str:
        (ours, other), (a, b) = self.kernels, (1e6 * s for s in self.seconds)
        return f"{self.name}: {ours} kernels {a:.1f} us, {other} kernels {b:.1f} us"


class _Divided:
    """A division of the anchors, and what the planner's cost says of it, and of others."""

    def __init__(self, parts: Sequence[Anchors] | None = None) -> None:
        self.parts = parts
        self.graphs = self.price = 0
        self.others: list[tuple[Anchors, ...]] = []

    def __call__(self, cost: Cost) -> Sequence[Anchors]:
        self.graphs += 1
        if self.graphs > 1:
            # Cats are planned once more, as a graph that has other anchors.
            return search(cost)
        parts = list(self.parts or search(cost))
        self.price = cost.of_all(parts)
        self.others = [] if self.parts else list(_others(cost, parts))
        return parts


def _others(cost: Cost, parts: Sequence[Anchors]) -> Iterator[tuple[Anchors, ...]]:
    """Legal partitions near one: two kernels as one, one anchor by itself, all of them."""

    def merged() -> Iterator[list[Anchors]]:
        for a, b in itertools.combinations(parts, 2):
            yield [*(p for p in parts if p not in (a, b)), a | b]

    def parted() -> Iterator[list[Anchors]]:
        for part in parts:
            for k in members(part) if part.bit_count() > 1 else ():
                yield [*(p for p in parts if p != part), 1 << k, part & ~(1 << k)]

    alone = [1 << k for k in members(union(parts))]
    for ways in (merged(), parted(), iter([alone])):
        legal = (found for way in ways if (found := _legal(cost, way)) not in (None, tuple(parts)))
        yield from (found for found in itertools.islice(legal, OTHERS) if found is not None)


def _legal(cost: Cost, parts: Sequence[Anchors]) -> tuple[Anchors, ...] | None:
    if any(isinstance(cost.legality.of(part), Refusal) for part in parts):
        return None
    order = cost.dependencies.in_order(parts)
    return None if order is None else tuple(order)


def _planned(
    fusion: Fusion, layouts: Sequence[Layout], divide: _Divided, device: DeviceInfo
) -> SegmentedFusion:
    return estimated(partition_by(divide, fusion, layouts, device), device)


def _plans(random: int) -> Iterator[tuple[str, SegmentedFusion]]:
    """Of all programs under test, and of so many random fusions, and as many with reductions."""
    return ((name, plan) for name, plans in corpus(random) for plan in plans())


def _cases() -> Iterator[tuple[str, SegmentedFusion, DeviceInfo]]:
    """Programs, which are the larger half, for the device whose cache forgives less."""
    for name, plan in _plans(RANDOM):
        for device in (A100,) if name.startswith("program") else (A100, H200):
            yield name, plan, device


def _pairs() -> Iterator[tuple[Pair, DeviceInfo]]:
    for name, plan, device in _cases():
        fusion = plan.fusion
        if not plan.kernels or plan.calls or plan.conditions:
            continue
        layouts = [plan.placement.layouts[t] for t in fusion.tensor_inputs]
        ours = _Divided()
        best = _planned(fusion, layouts, ours, device)
        for parts in dict.fromkeys(ours.others):
            theirs = _Divided(parts)
            other = _planned(fusion, layouts, theirs, device)
            if ours.graphs == theirs.graphs == 1:
                kernels, prices = (best.kernels, other.kernels), (ours.price, theirs.price)
                yield Pair(name, kernels, prices, (best.seconds, other.seconds)), device


def test_partitions_are_ranked_as_estimates_of_their_kernels_rank_them() -> None:
    pairs = list(_pairs())
    assert len(pairs) > 120
    wrong = [f"{device.arch}, {pair}" for pair, device in pairs if pair.disagrees(device)]
    assert not [text for text in wrong if not any(name in text for name in EXCEPTIONS)]


def test_the_cheapest_schedule_is_about_as_fast_as_any() -> None:
    found = (plans for name, plans in corpus(40) if not name.startswith("program"))
    segments = [s for plans in found for p in plans() for s in p.segments if s.kind == "reduction"]
    bodies = {s.kernel_key: s.body for s in segments if s.kernels}
    assert len(bodies) >= 24
    for body in bodies.values():
        assert_about_as_fast_as_any(body, H200)


def assert_about_as_fast_as_any(body: KernelBody, device: DeviceInfo) -> None:
    chosen = schedule_reduction(body, device)
    assert isinstance(chosen, ReductionSchedule)
    ways = [body, replace(body, folds=in_one_pass(body))]
    made = [found for way in ways for found in candidates(way, device)]
    seconds = [
        estimate_kernel(lower(schedule, body.updates), device).seconds
        for schedule in (chosen, *made)
        if isinstance(schedule, ReductionSchedule)
    ]
    slack = SLACK * device.launch_seconds
    assert seconds[0] <= (1 + OVERLOOKED) * min(seconds) + slack, str(chosen)


@each_value(
    rows=[64, 600, 4096],
    columns=[1000, 4096, 8192, 32000, 50257, 50304, 128256],
    dtype=[DataType.BFloat16, DataType.Float],
    device=[A100, H200],
)
def test_losses_are_about_as_fast_as_any(
    rows: int, columns: int, dtype: DataType, device: DeviceInfo
) -> None:
    for mean in (False, True):
        plan = CompiledFusion(cross_entropy(rows, columns, dtype, mean=mean).fusion).plan()
        for segment in plan.segments:
            if segment.kind == "reduction":
                assert_about_as_fast_as_any(segment.body, device)


@each_value(
    name=["gelu_backward", "layer_norm_backward_anew"],
    rows=[512, 2048, 8192],
    columns=[768, 3072, 5003, 5120, 8192, 11008],
    device=[A100, H200],
)
def test_sums_of_columns_are_about_as_fast_as_any(
    name: str, rows: int, columns: int, device: DeviceInfo
) -> None:
    """Beside rows that wait for sums of their own, and beside much arithmetic."""
    (program,) = (r for r in REDUCTIONS if r.name == name)
    fusion = program.definition(rows, columns, DataType.BFloat16).fusion
    for segment in partition(fusion, device=device).segments:
        if segment.kind == "reduction":
            assert_about_as_fast_as_any(segment.body, device)


def test_a_wrong_ranking_is_told() -> None:
    pair = Pair("a softmax in three kernels", (3, 1), (1, 2), (30e-6, 20e-6))
    assert pair.disagrees(H200)
    assert not Pair("prices the other way", (3, 1), (2, 1), pair.seconds).disagrees(H200)
