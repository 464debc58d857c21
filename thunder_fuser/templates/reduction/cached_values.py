"""Cached values of persistent kernels: what is kept from one pass over a row for the next ones, so
that it is computed once.

A pass pulls what it needs from what is loaded: the exponentials of a softmax are computed for their
sum and again for the result. A GPU has arithmetic to spare while it waits for memory, but a value
that takes the registers of what it is computed from costs nothing to keep: `dropout(x) + r`, where
nobody asks for x and r again. A host's core has none to spare: where a value takes long and its row
fits in the nearest caches, it is written there by the first pass that computes it and read by the
others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.ir.dtypes import compute_dtype
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.ir.tables import pointwise, random
from thunder_fuser.lower.lanes import Lanes
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

_EXPENSIVE = 8
"""Cost of arithmetic (see `ops`) that is dearer than a store and a load of the nearest caches."""
_WORTH_A_MOVE, _WORTH_REGISTERS = 3, 12
"""The same of what is kept in registers: in those of what it is computed from, and in others."""
_WORD = 4


def value_smem_bytes(value: Value, lanes: Lanes) -> int:
    """Memory for one row of a value, as wide as in registers, in whole cache lines."""
    return -(-lanes.vectors * lanes.vector * compute_dtype(value.dtype).itemsize // 64) * 64


def choose_values_in_smem(
    graph: ScalarGraph, lanes: Lanes, passes: Sequence[Sequence[Value]], room: int
) -> tuple[Value, ...]:
    """Values that a pass shares with an earlier one and that are worth keeping, in order of passes.

    passes  the values that each of them computes
    room    bytes for a row of them
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
            # What is left to compute once the values above it are kept.
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
    """Values that stay in registers from the first pass that computes them, in order of passes;
    whether they do in those of what they are computed from.

    loads  those whose vectors are in registers
    room   words of each lane that registers have beside these
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
            freed = sum(n.dtype.itemsize for n in (before - after) & loads) / _WORD
            words = compute_dtype(value.dtype).itemsize / _WORD - freed
            least = _WORTH_REGISTERS if words > 0 else _WORTH_A_MOVE
            if cost >= least and words <= room:
                found[value] = words <= 0
                room -= int(max(words, 0))
        computed |= here
    return found


def choose_common(
    graph: ScalarGraph, passes: Sequence[Sequence[Value]], loads: AbstractSet[Value], room: int
) -> tuple[Value, ...]:
    """Values of the rows that have `loads` in common, computed of these alone, which others are
    computed of: kept where they take more than a conversion.

    room  words of each lane that registers have for them
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
        words = compute_dtype(value.dtype).itemsize // _WORD
        if value.dtype.is_floating and cost >= _WORTH_A_MOVE and words <= room:
            found.append(value)
            room -= words
    return tuple(found)


def _moving(graph: ScalarGraph, lanes: Lanes) -> set[Value]:
    """Nodes that differ from column to column."""
    found: set[Value] = set()
    for node in graph:
        match node:
            case Load():
                own = _moves(node.address, lanes)
            case IndexValue() | PhiloxCall() | Random():
                own = any(_moves(form, lanes) for form in forms(node))
            case _:
                own = False
        if own or any(o in found for o in operands(node)):
            found.add(node)
    return found


def _moves(form: Form, lanes: Lanes) -> bool:
    own = lanes(form)
    return own.depends_on(lanes.u) or own.depends_on(lanes.v)


def _computed(
    roots: Sequence[Value], moving: AbstractSet[Value], cached: Mapping[Value, object]
) -> set[Value]:
    """What a pass does at each column; values that are held are read there."""

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
