"""Windows of lanes: a few wide accesses that hold the addresses of the lanes of a vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thunder_fuser.ir.integer.symint import Form, provable
from thunder_fuser.lower.body import Memory

ACCESS_BYTES = 16
"""Widest access of one instruction on a GPU, and the alignment that wider ones need."""


@dataclass(frozen=True, slots=True)
class VectorAccess:
    """`width` consecutive elements at `address`: element picks[k] belongs to lane lanes[k].

    is_aligned  to the bytes of one access
    """

    address: Form
    width: int
    lanes: tuple[int, ...]
    picks: tuple[int, ...]
    is_aligned: bool = True

    @property
    def is_in_order(self) -> bool:
        return self.picks == tuple(range(self.width)) and self.lanes == tuple(
            range(self.lanes[0], self.lanes[0] + self.width)
        )

    def instructions(self, itemsize: int) -> int:
        return -(-self.width * itemsize // ACCESS_BYTES)


def filled_windows(
    table: dict[int, Form], vector: int, itemsize: int, alignment: int
) -> tuple[VectorAccess, ...] | None:
    """The widest windows that hold the given lanes' addresses; None where lanes must go
    one by one.
    """
    distinct = len(set(table.values()))
    width = vector
    while width > 1:
        if min(width * itemsize, ACCESS_BYTES) <= alignment:
            windows = _filled(table, width)
            if windows is not None:
                return windows
        width //= 2
    if distinct == 1 or vector == 1:
        windows = _filled(table, 1)
        assert windows is not None
        return windows
    return None


def _filled(table: dict[int, Form], width: int) -> tuple[VectorAccess, ...] | None:
    """Aligned windows of `width` elements in which every element is wanted by a lane, if they
    exist.
    """
    found: dict[Form, list[tuple[int, int]]] = {}
    for lane, address in sorted(table.items()):
        pick = address.const % width
        base = address - pick
        if width > 1 and not base.multiple_of(width):
            return None
        found.setdefault(base, []).append((lane, pick))
    windows = []
    for base, members in found.items():
        if len({pick for _, pick in members}) != width:
            return None
        windows.append(_window(base, width, members))
    return tuple(windows)


def _window(base: Form, width: int, members: Sequence[tuple[int, int]]) -> VectorAccess:
    """`members`: lanes, and which elements these are."""
    lanes, picks = zip(*members, strict=True)
    return VectorAccess(base, width, lanes, picks)


def run_of_lanes(table: dict[int, Form], vector: int) -> tuple[VectorAccess, ...] | None:
    """Neighbours in order, one for each lane, wherever the first of them lies."""
    first = table.get(0)
    if first is None or any(table.get(k) is not first + k for k in range(vector)):
        return None
    every = tuple(range(vector))
    return (VectorAccess(first, vector, every, every, is_aligned=False),)


def windows_with_gaps(
    table: dict[int, Form], vector: int, itemsize: int, memory: Memory
) -> tuple[VectorAccess, ...] | None:
    """Aligned windows in which lanes leave elements out, all of them in the tensor's memory; None
    where these are no fewer instructions than half of one a lane.
    """
    width = min(vector, ACCESS_BYTES // itemsize)
    if width < 2 or width * itemsize > memory.alignment:
        return None
    found: dict[Form, list[tuple[int, int]]] = {}
    for lane, address in sorted(table.items()):
        pick = address.const % width
        found.setdefault(address - pick, []).append((lane, pick))
    if 2 * len(found) > len(set(table.values())):
        return None
    for base in found:
        inside = provable(memory.elements - width - base, 0, None)
        if not (base.multiple_of(width) and inside):
            return None
    return tuple(_window(base, width, members) for base, members in found.items())


def ends_of(window: VectorAccess, memory: Memory) -> tuple[Form, Form]:
    """What is no less than 0 where a window lies in memory."""
    return window.address, memory.elements - window.width - window.address


def edge_windows(
    table: dict[int, Form], vector: int, itemsize: int, memory: Memory
) -> tuple[VectorAccess, ...] | None:
    """Aligned windows that hold the addresses of lanes, no more than half as many as these are.
    Each lies in memory or outside, and not across an end; or one that begins anywhere inside, where
    vectors may.
    """
    if memory.anywhere and len(table) == vector and (run := run_of_lanes(table, vector)):
        (window,) = run
        if all(provable(end, 0, None) for end in ends_of(window, memory)):
            return run
    distinct = len(set(table.values()))
    width = min(vector, ACCESS_BYTES // itemsize)
    while width > 1:
        found: dict[Form, list[tuple[int, int]]] = {}
        for lane, address in sorted(table.items()):
            pick = address.const % width
            found.setdefault(address - pick, []).append((lane, pick))
        ends = memory.elements
        is_whole = ends.multiple_of(width) if isinstance(ends, Form) else not ends % width
        fits = width * itemsize <= memory.alignment and is_whole
        if fits and 2 * len(found) <= distinct and all(b.multiple_of(width) for b in found):
            return tuple(_window(base, width, members) for base, members in found.items())
        width //= 2
    return None
