"""Backward slices and topological orders against definitions by sets, on random graphs."""

from __future__ import annotations

import random

import pytest

from thunder_fuser.ir.dag import backward_slice, topological_order


def random_graph(seed: int) -> dict[int, list[int]]:
    """The nodes that each node reads, all of smaller numbers; some read one twice."""
    draw = random.Random(seed)
    return {n: [draw.randrange(n) for _ in range(draw.randrange(4)) if n] for n in range(40)}


@pytest.mark.parametrize("seed", range(20))
def test_a_slice_is_closed_and_holds_nothing_else(seed: int) -> None:
    graph = random_graph(seed)
    roots = [39, 20, 39]
    found = backward_slice(roots, graph.__getitem__)
    assert set(roots) <= set(found)
    for node in found:
        assert set(graph[node]) <= set(found)
        is_read = any(node in graph[reader] for reader in found)
        assert is_read or node in roots
    assert list(found) == list(backward_slice(roots, graph.__getitem__))


@pytest.mark.parametrize("seed", range(20))
def test_an_order_has_what_a_node_reads_before_it(seed: int) -> None:
    graph = random_graph(seed)
    order = topological_order([39, 20], graph.__getitem__)
    places = {node: k for k, node in enumerate(order)}
    assert set(order) == set(backward_slice([39, 20], graph.__getitem__))
    assert len(order) == len(places)
    assert all(places[p] < places[n] for n in order for p in graph[n])


def test_chains_are_no_deeper_than_memory() -> None:
    length = 100_000
    found = topological_order([length], lambda n: [n - 1] if n else [])
    assert found == list(range(length + 1))
    assert len(backward_slice([length], lambda n: [n - 1] if n else [])) == length + 1
