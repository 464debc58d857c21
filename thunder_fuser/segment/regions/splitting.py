"""Splitting of regions: unrelated pieces run separately where fusing them would hold too much
memory.

Neighbours in a program that share no tensor are fused to save launches. All their inputs then stay
allocated until all outputs are, while separate kernels would free memory in between. Where that
lifts a region above the peak of the unfused program, its pieces are kept apart: this costs
launches, and no additional bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from thunder_fuser.segment.regions.joint_graph import JointGraph, Part, Partition, Role
from thunder_fuser.segment.regions.rematerialization import (
    Regions,
    Rematerialization,
    storing_all,
)
from thunder_fuser.segment.regions.storages import alive

_Pieces = Sequence[Sequence[int]]
"""Unrelated groups of a part's calls, by number."""


def split(graph: JointGraph, partition: Partition, rematerialize: Rematerialization) -> Partition:
    """Split regions that hold more bytes than the unfused program's peak into their pieces."""
    pieces = {
        k: found
        for k, part in enumerate(partition)
        if part.place is not None
        and not _updates(graph, part)
        and len(found := _pieces(graph, part)) > 1
    }
    if not pieces:
        return partition
    single = tuple(Part((k,), None) for part in partition for k in part.calls)
    limits = alive(graph, single, {}).peaks()
    # The first estimate is high, but quick: every region stores all values that others read.
    estimates: tuple[Callable[[Partition], Regions], ...] = (
        partial(storing_all, graph),
        rematerialize,
    )
    for estimate in estimates:
        held = alive(graph, partition, estimate(partition))
        levels = zip(held.parts, held.backward, held.memory.levels(), strict=True)
        above = {k for k, backward, level in levels if level.during > limits[backward]}
        pieces = {k: pieces[k] for k in pieces if k in above}
        if not pieces:
            return partition
    return _with_pieces(partition, pieces)


def _updates(graph: JointGraph, part: Part) -> bool:
    return any(graph.primitives[p].role is Role.UPDATE for p in graph.primitives_of(part))


def _pieces(graph: JointGraph, part: Part) -> _Pieces:
    """Return the connected components of calls that share tensors, ordered by first call."""
    whole = {k: k for k in part.calls}

    def piece(k: int) -> int:
        while whole[k] != k:
            k = whole[k]
        return k

    place = {k: n for n, k in enumerate(part.calls)}
    first: dict[int, int] = {}
    for k in part.calls:
        for prim in (graph.primitives[p] for p in graph.calls[k].primitives):
            for v in (*prim.reads, *prim.makes):
                if graph.values[v].is_tensor:
                    both = piece(k), piece(first.setdefault(v, k))
                    low, high = sorted(both, key=place.__getitem__)
                    whole[high] = low
    found: dict[int, list[int]] = {}
    for k in part.calls:
        found.setdefault(piece(k), []).append(k)
    return list(found.values())


def _with_pieces(partition: Partition, pieces: Mapping[int, _Pieces]) -> Partition:
    """Replace each part that has `pieces` by them."""
    return tuple(
        part._replace(calls=tuple(calls))
        for k, part in enumerate(partition)
        for calls in pieces.get(k, (part.calls,))
    )
