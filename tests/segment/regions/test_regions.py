"""Regions of joint graphs: what they save, compute again and return, in which order, and how much
is in memory for that.
"""

from __future__ import annotations

import pytest

from tests.segment.regions.graphs import LARGE, PLACES, Builder, at_random, check, consecutive
from thunder_fuser.segment.regions.budget import Choices, Rerun
from thunder_fuser.segment.regions.joining import join
from thunder_fuser.segment.regions.joint_graph import JointGraph, Part, Partition
from thunder_fuser.segment.regions.rematerialization import Region, Rematerialization
from thunder_fuser.segment.regions.splitting import split
from thunder_fuser.segment.regions.storages import alive, saved_bytes

SIZE = 4 * LARGE


def regions_of(graph: JointGraph) -> tuple[Partition, list[Region]]:
    partition = consecutive(graph)
    found = Rematerialization(graph)(partition)
    check(graph, partition, found)
    return partition, [found[k] for k in sorted(found)]


# ---- what is saved, and what is computed again


def test_a_gradient_computes_activations_again_from_an_argument() -> None:
    b = Builder()
    x = b.argument()
    y = b.point(b.point(x))
    b.keep(y)
    dx = b.point(b.gradient(), b.primitives[0].makes[0])
    b.results(y, dx)
    graph = b.graph()
    partition, (forward, backward) = regions_of(graph)
    assert forward.outputs == (y,)
    assert backward.primitives[0] == 0
    assert x in backward.inputs
    assert saved_bytes(graph, partition, Rematerialization(graph)(partition)) == 0


def test_what_cannot_be_computed_again_is_saved() -> None:
    b = Builder()
    x = b.argument()
    drawn = b.point(x, may_repeat=False)
    y = b.point(drawn)
    b.keep(y)
    dx = b.point(b.gradient(), drawn)
    b.results(y, dx)
    graph = b.graph()
    partition, (forward, backward) = regions_of(graph)
    assert set(forward.outputs) == {drawn, y}
    assert drawn in backward.inputs
    assert saved_bytes(graph, partition, Rematerialization(graph)(partition)) == SIZE


def test_dear_arithmetic_is_saved() -> None:
    b = Builder()
    dear = b.point(b.argument(), cost=1 << 20)
    y = b.point(dear)
    b.keep(y)
    b.results(y, b.point(b.gradient(), dear))
    _, (_, backward) = regions_of(b.graph())
    assert dear in backward.inputs


def test_a_view_of_a_result_is_torchs() -> None:
    """Eager code has one memory for both."""
    b = Builder()
    y = b.point(b.argument())
    half = b.view(y)
    b.results(y, half)
    _, (region,) = regions_of(b.graph())
    assert region.outputs == (y,)
    assert [b.primitives[p].makes for p in region.views] == [(half,)]


def test_what_nobody_reads_is_no_region() -> None:
    b = Builder()
    x = b.argument()
    b.point(x)
    b.results(x)
    assert regions_of(b.graph())[1] == []


# ---- order and memory


def test_regions_on_both_sides_of_a_product_are_one() -> None:
    b = Builder()
    x = b.argument()
    first, other = b.point(x), b.product(x)
    second = b.point(first)
    b.results(second, other)
    graph = b.graph()
    rematerialize = Rematerialization(graph)
    joined = join(graph, consecutive(graph), rematerialize)
    assert [part.calls for part in joined] == [(0,), (1, 3), (2,), (4,)]
    check(graph, joined, rematerialize(joined))


def test_unrelated_neighbours_that_hold_too_much_are_taken_apart() -> None:
    """Each is reduced by a product at once: one after the other, one is in memory at a time."""
    b = Builder()
    arguments = [b.argument() for _ in range(3)]
    wide = [b.product(x) for x in arguments]
    sums = [b.product(b.point(x), elements=64) for x in wide]
    b.results(*sums)
    graph = b.graph()
    points = tuple(k for k, call in enumerate(graph.calls) if call.primitives)
    others = [Part((k,), None) for k, call in enumerate(graph.calls) if not call.primitives]
    one = (*others[:6], Part(points, PLACES[False]), *others[6:])
    rematerialize = Rematerialization(graph)
    check(graph, one, rematerialize(one))
    apart = split(graph, one, rematerialize)
    assert sum(part.place is not None for part in apart) == len(points)
    check(graph, apart, rematerialize(apart))
    assert (
        alive(graph, apart, rematerialize(apart)).peaks()
        <= alive(graph, one, rematerialize(one)).peaks()
    )


# ---- budgets


def choices(graph: JointGraph) -> Choices:
    """Products are a hundred times as dear as what is fused."""
    prices = {"product": 100 * LARGE, "point": LARGE, "view": 0}
    reruns = [
        Rerun(prices[call.name], 1e-6 * prices[call.name], 0, bool(call.primitives), True)
        if call.name in prices and not call.is_backward
        else None
        for call in graph.calls
    ]
    return Choices(graph, reruns, byte=1)


def test_a_budget_computes_what_is_cheap_again_before_products() -> None:
    b = Builder()
    x = b.argument()
    product = b.product(x)
    y = b.point(product)
    z = b.point(b.product(y))
    b.keep(z)
    gradient = b.gradient()
    b.results(z, b.product(gradient, y), b.product(gradient, product))
    graph = b.graph()
    found = choices(graph)
    assert found.within(2 * SIZE) == frozenset()
    assert found.within(SIZE) == {y}
    assert found.within(0) == {product, y}
    assert [row.name for row in found.recomputed({product, y})] == ["product", "point"]


@pytest.mark.parametrize("seed", range(40))
def test_lower_budgets_of_random_graphs_compute_more_again(seed: int) -> None:
    graph = at_random(seed)
    found = choices(graph)
    again = [found.within(budget) for budget in (1 << 40, 3 * SIZE, SIZE, 0)]
    counts = [len(found.calls(values)) for values in again]
    assert counts == sorted(counts)
    for values in again:
        # What is not saved is computed from what is saved, or computed again itself.
        for k in found.calls(values):
            assert graph.calls[k].makes
            assert not graph.calls[k].is_backward


# ---- graphs at random


@pytest.mark.parametrize("seed", range(150))
def test_random_graphs(seed: int) -> None:
    graph = at_random(seed)
    rematerialize = Rematerialization(graph)
    before = consecutive(graph)
    check(graph, before, rematerialize(before))
    limits = alive(graph, before, rematerialize(before)).peaks()
    joined = join(graph, before, rematerialize)
    check(graph, joined, rematerialize(joined))
    held = alive(graph, joined, rematerialize(joined)).peaks()
    assert all(now <= then for now, then in zip(held, limits, strict=True))
    apart = split(graph, joined, rematerialize)
    check(graph, apart, rematerialize(apart))
    # The same graph, the same plan.
    again = Rematerialization(graph)
    assert split(graph, join(graph, before, again), again) == apart
    assert again(apart) == rematerialize(apart)
