"""Search: the cheapest way to put anchors into kernels, against every way and against others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, permutations
from operator import or_

import pytest

from tests.support.building import op
from tests.support.cuts import with_cuts
from tests.support.generator import random_case
from tests.support.hash_seeds import printed_under_any
from tests.support.partitions import partition_by
from tests.support.seeds import blocks
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.segment.anchors.anchors import Anchors, members
from thunder_fuser.segment.anchors.dependencies import DependencyGraph, union
from thunder_fuser.segment.anchors.graph import AnchorGraph
from thunder_fuser.segment.anchors.limits import MAX_STAGES
from thunder_fuser.segment.legality import Legality
from thunder_fuser.segment.partition.cost import Cost
from thunder_fuser.segment.partition.search import EXACT, search
from thunder_fuser.segment.planner import partition
from thunder_fuser.segment.recompute.recompute import grouped

Float = DataType.Float


def greedy(cost: Cost) -> list[Anchors]:
    """As segmenters without costs do it: each anchor, in program order, goes into the last set that
    it can share a kernel with.
    """
    graph, legality = cost.graph, cost.legality
    dependencies = DependencyGraph(graph)
    parts: list[Anchors] = []
    for k in range(len(graph.anchors)):
        anchor = 1 << k
        for part in reversed(parts):
            joined = [*(p for p in parts if p != part), part | anchor]
            is_legal = not isinstance(legality.of(part | anchor), Refusal)
            if dependencies.near[k] & part and is_legal and dependencies.in_order(joined):
                parts = joined
                break
        else:
            parts.append(anchor)
    order = dependencies.in_order(parts)
    assert order is not None
    return order


def graph_of(seed: int) -> AnchorGraph:
    case = random_case(seed, reductions=True)
    plan = CompiledFusion(case.fusion).plan(case.inputs)
    layouts = [plan.placement.layouts[t] for t in plan.fusion.tensor_inputs]
    return AnchorGraph(plan.fusion, layouts)


def bit(anchor: int) -> Anchors:
    return 1 << anchor


def divisions(anchors: Sequence[int]) -> Iterator[list[Anchors]]:
    if not anchors:
        yield []
        return
    for parts in divisions(anchors[1:]):
        for k in range(len(parts)):
            yield [*parts[:k], parts[k] | 1 << anchors[0], *parts[k + 1 :]]
        yield [1 << anchors[0], *parts]


def orders(parts: Sequence[Anchors], dependencies: DependencyGraph) -> Iterator[Sequence[Anchors]]:
    """Each set comes after what it waits for."""
    for order in permutations(parts):
        left = accumulate(reversed(order), or_)
        if not any(dependencies.waits(p) & u for p, u in zip(reversed(order), left, strict=True)):
            yield order


@blocks(180, 60, always=60)
def test_of_few_anchors_no_division_is_cheaper(first: int) -> None:
    """Every division that is legal, in every order it can run in, with its boundaries decided."""
    compared = 0
    for seed in range(first, first + 60):
        graph = graph_of(seed)
        legality = Legality(graph)
        cost = Cost(graph, legality)
        dependencies = DependencyGraph(graph)
        anchors = range(len(graph.anchors))
        # What is not related is not compared: it would gain no more than a launch.
        if (
            not 2 < len(anchors) <= 5
            or len(list(dependencies.components(union(map(bit, anchors))))) > 1
        ):
            continue
        compared += 1
        least = min(
            cost.of_all(order)
            for parts in divisions(anchors)
            if not any(isinstance(legality.of(part), Refusal) for part in parts)
            for order in orders(parts, dependencies)
        )
        # An order that costs less than a sector more is as good.
        assert cost.of_all(search(cost)) - least < graph.prices.sector, f"seed {seed}"
    assert compared > 4


@blocks(3000, 50, always=50)
def test_no_plan_moves_more_than_one_operation_a_kernel(first: int) -> None:
    for seed in range(first, first + 50):
        case = random_case(seed, reductions=True)
        plan = CompiledFusion(case.fusion).plan(case.inputs)
        apart = CompiledFusion(with_cuts(case.fusion, 0, probability=1)).plan(case.inputs)
        assert plan.bytes <= apart.bytes, f"seed {seed}"


@blocks(300, 100, always=100)
def test_costs_beat_the_first_legal_neighbour(first: int) -> None:
    """What a kernel costs is a launch and its bytes: by that, greedy plans are rarely as good, and
    almost never better.
    """
    cheaper = dearer = larger = 0
    for seed in range(first, first + 100):
        graph = graph_of(seed)
        layouts = [graph.layouts[t] for t in graph.fusion.tensor_inputs]
        found = partition(graph.fusion, layouts)
        other = partition_by(greedy, graph.fusion, layouts)
        price, theirs = (graph.prices(p.kernels, p.bytes) for p in (found, other))
        cheaper += price < theirs
        dearer += price > theirs
        larger += found.bytes > other.bytes
    assert cheaper > 10
    assert dearer <= 2
    assert larger <= 2


def test_a_wide_program_joins_what_shares_most() -> None:
    """Too many reductions for every division: pairs of the same rows end up together."""
    b = FusionBuilder()
    for _ in range(EXACT):
        x = b.tensor([64, 96], Float)
        y = b.tensor([96, 64], Float)
        rows = b.reduce("sum", x, [1])
        b.output(op(b, "mul", x, b.broadcast(rows, [False, True])))
        b.output(op(b, "mul", y, b.broadcast(b.reduce("max", y, [1]), [False, True])))
        b.output(op(b, "add", rows, b.reduce("min", y, [0])))
    plan = partition(b.build())
    assert plan.kernels == 2 * EXACT
    small = 64 * 4
    assert plan.bytes - plan.bytes_ideal <= EXACT * (64 * 96 * 4 + 2 * small)


def test_related_sets_are_ordered_and_circles_are_refused() -> None:
    b = FusionBuilder()
    x = b.tensor([64, 96], Float)
    first = b.reduce("sum", x, [0, 1])
    second = b.segment_set(op(b, "mul", x, first))
    b.output(op(b, "add", b.reduce("sum", second, [0, 1]), op(b, "neg", first)))
    graph = AnchorGraph(b.build(), None)
    dependencies = DependencyGraph(graph)
    fold, product, total, result = (1 << k for k in range(4))
    assert [a.tensor.numel for a in graph.anchors] == [1, 64 * 96, 1, 1]
    assert dependencies.in_order([result, total, product, fold]) == [fold, product, total, result]
    assert dependencies.in_order([fold | total, product, result]) is None
    assert list(dependencies.components(15)) == [15]


@pytest.mark.parametrize("norms", [10, 40])
def test_a_chain_of_norms_is_asked_about_once(norms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning is linear because a whole that is legal needs no search: as many reductions as one
    kernel may have wait for each other are one.
    """
    asked: list[Anchors] = []
    decide = Legality._decide

    def counted(self: Legality, anchors: Anchors) -> object:
        asked.append(anchors)
        return decide(self, anchors)

    monkeypatch.setattr(Legality, "_decide", counted)
    b = FusionBuilder()
    x = b.tensor([64, 96], Float)
    for _ in range(norms):
        x = op(b, "mul", x, b.reduce("sum", op(b, "mul", x, x), [1], keepdim=True))
    b.output(x)
    kernels = -(-norms // MAX_STAGES)
    assert partition(b.build()).kernels == kernels
    assert len(asked) == (1 if kernels == 1 else 2 * kernels)


def test_plans_do_not_depend_on_hashes_or_on_threads() -> None:
    text = """
import threading
from tests.support.generator import random_case
from tests.support.generator_cats import cat_case
from thunder_fuser.config import options
from thunder_fuser.compiled_fusion import CompiledFusion

def plans(first, into):
    with options(verify=True):
        for seed in range(first, first + 8):
            for case in (random_case(seed, reductions=True), cat_case(seed)):
                into.append(str(CompiledFusion(case.fusion).plan(case.inputs)))

alone, together = [], [[], []]
plans(0, alone)
threads = [threading.Thread(target=plans, args=(0, into)) for into in together]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert together == [alone, alone]
print(*alone, sep="\\n")
"""
    found = printed_under_any(text)
    assert found.count("boundary") > 7
    assert found.count("(concat)") > 1


def test_groups_come_in_an_order_in_which_they_can_run() -> None:
    for seed in range(100):
        graph = graph_of(seed)
        legality = Legality(graph)
        level: dict[int, int] = {}
        for group in grouped(graph, legality, search(Cost(graph, legality))):
            for k in members(group.anchors):
                level[k] = group.level
            assert all(offer.writer.level < group.level for offer in group.reads.values())
        for k, anchor in enumerate(graph.anchors):
            if k in level:
                assert all(level[u] < level[k] for u in members(anchor.reach.behind))
                assert all(level[u] <= level[k] for u in members(anchor.reach.folds))
