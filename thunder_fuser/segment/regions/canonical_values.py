"""Canonical values: one name for each tensor that regions pass to each other.

A program renames a tensor wherever two results must not be the same object, so that a tensor may
have several names. If torch calls read it by one name and a region by another, a region would
store it twice, save it twice for the backward, or recompute it.
"""

from __future__ import annotations

from collections.abc import Set

from thunder_fuser.segment.regions.joint_graph import JointGraph, Partition, Role


def read_outside(graph: JointGraph, partition: Partition) -> frozenset[int]:
    """Return the values that torch calls read."""
    return frozenset(
        v
        for part in partition
        if part.place is None
        for k in part.calls
        for v in graph.calls[k].reads
    )


class Reading:
    """Reads of primitives, after canonical naming: regions read each tensor of another region under
    one name only.

    This is the name that torch reads, if there is one. Tensors whose memory is updated keep all
    names, which order reads and updates.
    """

    def __init__(self, graph: JointGraph, partition: Partition, outside: Set[int]) -> None:
        self._graph = graph
        self._home: dict[int, int] = {}
        chosen: dict[int, int] = {}
        for k, part in enumerate(partition):
            names: dict[int, list[int]] = {}
            for p in graph.primitives_of(part):
                prim = graph.primitives[p]
                if prim.role is Role.RENAME and prim.source is not None:
                    (new, *_), source = prim.makes, prim.source
                    if self._home.get(source) == k and not graph.values[new].is_updated:
                        same = names.setdefault(source, [source])
                        same.append(new)
                        names[new] = same
                for v in prim.makes:
                    self._home[v] = k
            for v, same in names.items():
                one = next((u for u in same if u in outside), same[0])
                if one != v:
                    chosen[v] = one
        self._chosen = chosen
        # By primitive: replacements of its operands.
        self._swaps: dict[int, dict[int, int]] = {}
        if chosen:
            for k, part in enumerate(partition):
                for p in graph.primitives_of(part):
                    swaps = {
                        v: chosen[v]
                        for v in graph.primitives[p].reads
                        if v in chosen and self._home[v] != k
                    }
                    if swaps:
                        self._swaps[p] = swaps

    def swaps(self, primitive: int) -> dict[int, int]:
        """Return the replaced operands of a primitive, with what it reads instead."""
        return self._swaps.get(primitive, {})

    def of(self, primitive: int) -> tuple[int, ...]:
        """Return the operands of a primitive, after replacement."""
        reads = self._graph.primitives[primitive].reads
        swaps = self._swaps.get(primitive)
        return reads if swaps is None else tuple(swaps.get(v, v) for v in reads)

    def source(self, primitive: int) -> int | None:
        """Return the source of a view or renaming, after replacement."""
        source = self._graph.primitives[primitive].source
        return source if source is None else self.swaps(primitive).get(source, source)

    def shows(self, primitive: int) -> tuple[tuple[int, int], ...]:
        """Return pairs of (result, operand whose memory it shares), after replacement."""
        shows = self._graph.primitives[primitive].shows
        swaps = self._swaps.get(primitive)
        return shows if swaps is None else tuple((v, swaps.get(u, u)) for v, u in shows)
