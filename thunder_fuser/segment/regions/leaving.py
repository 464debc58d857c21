"""Outputs of regions: tensors that they return, and views of these that torch makes (view replay).

A kernel that writes both `a` and `a[:2]` gives two tensors where eager code has one storage: an
update of either would not show in the other. So where the alias is observable, a region returns the
base of the view, and the views follow the region as calls that torch runs. Inside, the region still
reads through its views. (AOTAutograd does this for views that a whole function returns.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from thunder_fuser.segment.regions.canonical_values import Reading
from thunder_fuser.segment.regions.joint_graph import JointGraph, Partition, Role

_SHOWS = (Role.VIEW, Role.RENAME)


class Leaving(NamedTuple):
    """Values that a region returns, and view primitives that torch replays after it."""

    outputs: tuple[int, ...]
    views: tuple[int, ...]


def leaving(
    graph: JointGraph, partition: Partition, reading: Reading, wanted: Collection[int]
) -> dict[int, Leaving]:
    """Return the outputs of each region, by position, so that others have the values `wanted`."""
    missing = set(wanted)
    regions = [k for k, part in enumerate(partition) if part.place is not None]
    everywhere = {v for k in regions for v in graph.made_by_region(partition[k])}
    found: dict[int, Leaving] = {}
    # The last regions first: their views may have bases that earlier ones make.
    for k in reversed(regions):
        made = {v: p for p in graph.primitives_of(partition[k]) for v in graph.primitives[p].makes}
        outputs: set[int] = set()
        views: set[int] = set()
        paths = {
            v: _path(graph, reading, v, made) if graph.values[v].matters else []
            for v in made
            if v in missing
        }
        copies = _shared_copies(graph, paths.values())
        for v, path in paths.items():
            source = reading.source(path[0]) if path else v
            assert source is not None
            is_given = source not in everywhere and not graph.values[v].is_updated
            if source in made:
                is_returned = all(graph.primitives[p].role is Role.RENAME for p in path)
            else:
                is_returned = is_given and copies.isdisjoint(path)
            if is_returned:
                # A fusion can return views of its inputs; names of one tensor are one result.
                outputs.add(v)
                continue
            views.update(u for p in path for u in graph.primitives[p].makes)
            (outputs if source in made else missing).add(source)
        found[k] = Leaving(
            tuple(v for v in made if v in outputs), tuple(p for v, p in made.items() if v in views)
        )
    return found


def _shared_copies(graph: JointGraph, paths: Iterable[Sequence[int]]) -> set[int]:
    """Return view primitives that may copy, since no strides exist, and that several paths share:
    the copy must be the same memory for all of them.
    """
    through = Counter(p for path in paths for p in path if graph.primitives[p].motion.may_copy)
    return {p for p, times in through.items() if times > 1}


def _path(
    graph: JointGraph, reading: Reading, value: int | None, made: Mapping[int, int]
) -> list[int]:
    """Return views and renamings that lead to a value from a computed, updated or given tensor."""
    path: list[int] = []
    p = made.get(value) if value is not None else None
    while p is not None and graph.primitives[p].role in _SHOWS:
        path.append(p)
        source = reading.source(p)
        p = made.get(source) if source is not None else None
    return path[::-1]
