"""Cached values of persistent kernels: computed in one pass over a row and kept for the next ones.

A pass computes its values from loads: the exponentials of a softmax are computed for their sum and
again for the result. A GPU has arithmetic to spare while it waits for memory, but a value that
takes the registers of its operands costs nothing to keep: `dropout(x) + r`, where x and r have no
other uses. A host's core has no arithmetic to spare: an expensive value whose row fits into the
nearest caches is written there by the first pass that computes it and read by the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.ir.dtypes import compute_dtype
from thunder_fuser.ir.tables import pointwise, random
from thunder_fuser.kernel_ir import WORD
from thunder_fuser.lower.scalar_graph import (
    Compute,
    IndexValue,
    Literal,
    Load,
    PhiloxCall,
    Random,
    ScalarGraph,
    Value,
    forms,
    operands,
    reachable,
)
from thunder_fuser.lower.vectors.lanes import Lanes

_EXPENSIVE = 8
"""Cost of arithmetic (`cost` of an operation) above a store to and a load from near caches."""
_WORTH_A_MOVE, _WORTH_REGISTERS = 3, 12
"""Least cost of a value kept in registers: in those of its operands, and in others."""


def value_smem_bytes(value: Value, lanes: Lanes) -> int:
    """Return bytes of one row of a value in its register type, in whole cache lines."""
    return -(-lanes.vectors * lanes.vector * compute_dtype(value.dtype).itemsize // 64) * 64


def choose_values_in_smem(
    graph: ScalarGraph, lanes: Lanes, passes: Sequence[Sequence[Value]], room: int
) -> tuple[Value, ...]:
    """Choose values that a pass shares with an earlier one and that are worth storing, in pass
    order.

    passes  the values that each pass computes
    room    bytes for a row of the stored values
    """
    moving = _moving(graph, lanes)
    cached: dict[Value, None] = {}
    computed: set[Value] = set()
    for roots in passes:
        here = _computed(roots, moving, cached)
        for value in sorted(here & computed, key=lambda node: node.order, reverse=True):
            is_free = value in cached or value_smem_bytes(value, lanes) > room
            if is_free or not isinstance(value, Compute) or not value.dtype.is_floating:
                continue
            # Values cached above it may have left nothing that needs it.
            if value not in _computed(roots, moving, cached):
                continue
            below = _computed([value], moving, cached)
            cost = sum(_cost(node) for node in below if node not in cached)
            if cost > _EXPENSIVE:
                cached[value] = None
                room -= value_smem_bytes(value, lanes)
        computed |= here
    return tuple(cached)


def choose_values_in_registers(
    lanes: Lanes,
    graph: ScalarGraph,
    passes: Sequence[Sequence[Value]],
    loads: AbstractSet[Value],
    room: int,
) -> dict[Value, bool]:
    """Choose values to keep in registers from the first pass that computes them, in pass order; the
    result maps each value to True if it takes the registers of its operands.

    loads  loads whose vectors are in registers
    room   free 32-bit registers of each lane
    """
    moving = _moving(graph, lanes)
    found: dict[Value, bool] = {}
    computed: set[Value] = set()
    for number, roots in enumerate(passes):
        here = _computed(roots, moving, found)
        later = [v for other in passes[number:] for v in other]
        for value in sorted(here & computed, key=lambda node: node.order, reverse=True):
            if value in found or not isinstance(value, Compute | Random):
                continue
            before = _computed(later, moving, found)
            if not value.dtype.is_floating or value not in before:
                continue
            after = _computed(later, moving, {**found, value: True})
            cost = sum(map(_cost, before - after))
            freed = sum(n.dtype.itemsize for n in (before - after) & loads) / WORD
            words = compute_dtype(value.dtype).itemsize / WORD - freed
            least = _WORTH_REGISTERS if words > 0 else _WORTH_A_MOVE
            if cost >= least and words <= room:
                found[value] = words <= 0
                room -= int(max(words, 0))
        computed |= here
    return found


def choose_common(
    graph: ScalarGraph, passes: Sequence[Sequence[Value]], loads: AbstractSet[Value], room: int
) -> tuple[Value, ...]:
    """Choose values computed of `loads` alone, which all rows of a portion share, that other values
    read: kept if they cost more than a conversion.

    room  free 32-bit registers of each lane
    """
    common = set(loads)
    for node in graph:
        parts = [v for v in operands(node) if not isinstance(v, Literal)]
        if isinstance(node, Compute) and parts and common.issuperset(parts):
            common.add(node)
    wanted = reachable(v for roots in passes for v in roots)
    used = {v for node in wanted - common for v in operands(node)}
    used.update(v for roots in passes for v in roots)
    found: list[Value] = []
    for value in sorted(used & common, key=lambda node: node.order):
        cost = sum(map(_cost, reachable([value])))
        words = compute_dtype(value.dtype).itemsize // WORD
        if value.dtype.is_floating and cost >= _WORTH_A_MOVE and words <= room:
            found.append(value)
            room -= words
    return tuple(found)


def _moving(graph: ScalarGraph, lanes: Lanes) -> set[Value]:
    """Return nodes that differ from column to column."""
    found: set[Value] = set()
    for node in graph:
        match node:
            case Load():
                own = lanes.moves(node.address)
            case IndexValue() | PhiloxCall() | Random():
                own = any(map(lanes.moves, forms(node)))
            case _:
                own = False
        if own or any(o in found for o in operands(node)):
            found.add(node)
    return found


def _computed(
    roots: Sequence[Value], moving: AbstractSet[Value], cached: Mapping[Value, object]
) -> set[Value]:
    """Return column-dependent nodes that a pass loads or computes; cached values end the walk."""

    def producers(node: Value) -> list[Value]:
        is_there = node in cached or isinstance(node, Load)
        return [] if is_there else [v for v in operands(node) if v in moving]

    return set(backward_slice([v for v in roots if v in moving], producers))


def _cost(node: Value) -> int:
    match node:
        case Compute():
            return pointwise.lookup(node.op).cost
        case Random():
            return random.lookup(node.draw.op).cost
    return 0
