"""Windows: wide accesses that cover the addresses of the lanes of a vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thunder_fuser.ir.integer.symint import Form, provable
from thunder_fuser.lower.body import Memory

ACCESS_BYTES = 16
"""Bytes of the widest access of one instruction on a GPU, and the alignment of wider vectors."""


@dataclass(frozen=True, slots=True)
class VectorAccess:
    """Access of `width` consecutive elements at `address`: element picks[k] is lane lanes[k]'s.

    is_aligned  the address is aligned to the bytes of one access
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
    """Return the widest windows that the addresses of the given lanes fill, or None if lanes must
    be accessed one by one.
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
    """Return aligned windows of `width` elements that lanes access without gaps, or None."""
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


def _window(
    base: Form, width: int, members: Sequence[tuple[int, int]], is_aligned: bool = True
) -> VectorAccess:
    """Return the window at `base`. `members`: (lane, element of the window)."""
    lanes, picks = zip(*members, strict=True)
    return VectorAccess(base, width, lanes, picks, is_aligned)


def run_of_lanes(table: dict[int, Form], vector: int) -> tuple[VectorAccess, ...] | None:
    """Return one window of consecutive elements in lane order at any alignment, or None."""
    first = table.get(0)
    if first is None or any(table.get(k) is not first + k for k in range(vector)):
        return None
    every = tuple(range(vector))
    return (VectorAccess(first, vector, every, every, is_aligned=False),)


def windows_with_gaps(
    table: dict[int, Form], vector: int, itemsize: int, memory: Memory
) -> tuple[VectorAccess, ...] | None:
    """Return aligned windows, some of whose elements no lane needs, all inside the tensor's memory;
    None if there are more windows than half of the distinct addresses.
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


def covering_windows(
    table: dict[int, Form], vector: int, memory: Memory
) -> tuple[VectorAccess, ...] | None:
    """Return windows at any alignment that cover lanes at known distances, such as every second
    element or a run backwards, and nothing beyond the first and the last of these; None where
    vectors have to be aligned, and if there are more windows than half of the distinct addresses.
    """
    if not memory.anywhere or not table:
        return None
    one = next(iter(table.values()))
    distances = {lane: address - one for lane, address in sorted(table.items())}
    if any(distance.terms for distance in distances.values()):
        return None
    offsets = {lane: distance.const for lane, distance in distances.items()}
    first, last = min(offsets.values()), max(offsets.values())
    # The largest power of two of elements that fits between them.
    width = min(vector, 1 << (last + 1 - first).bit_length() - 1)
    begins = [*range(first, last + 1 - width, width), last + 1 - width]
    if width < 2 or 2 * len(begins) > len(set(offsets.values())):
        return None
    found: dict[int, list[tuple[int, int]]] = {}
    for lane, offset in offsets.items():
        begin = next(b for b in begins if offset < b + width)
        found.setdefault(begin, []).append((lane, offset - begin))
    return tuple(
        _window(one + begin, width, members, is_aligned=False) for begin, members in found.items()
    )


def ends_of(window: VectorAccess, memory: Memory) -> tuple[Form, Form]:
    """Return the two forms that are >= 0 exactly where a window lies inside the memory."""
    return window.address, memory.elements - window.width - window.address


def edge_windows(
    table: dict[int, Form], vector: int, itemsize: int, memory: Memory
) -> tuple[VectorAccess, ...] | None:
    """Return aligned windows that cover the addresses, at most half as many as these, each entirely
    inside or outside the memory; or one unaligned window that is provably inside, if the memory
    allows that. None if there are none, and for neighbours of which only the last vector has tests.
    """
    if memory.anywhere and len(table) == vector and (run := run_of_lanes(table, vector)):
        (window,) = run
        if all(provable(end, 0, None) for end in ends_of(window, memory)):
            return run
        if memory.tail_apart:
            return None
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
