"""Vectorisation by integer algebra: vector loads and stores of V consecutive points of a loop.

Substitute i = V * u + v and look at each address for v = 0 .. V-1. Lanes whose addresses fill one
aligned window of W elements, in any order, are one access of W elements. A contiguous vector is one
window in order; a broadcast is one window of one element; the rotated half of a rotary embedding is
one window with its halves exchanged; a slice at an odd offset is several narrower windows. A load
may use part of its windows: every second element of interleaved pairs, whose other elements are
another load of the same windows. Where only the running kernel knows which lanes are needed (at the
edge of an image, or of a pooling window), windows inside the tensor's memory are read, needed or
not. A core, which reads vectors at any address, covers lanes at known distances by windows that end
with the last of them. Other loads are gathers, lane by lane. The decision is made per tensor.

Mutually exclusive loads of one tensor (the pieces of a concatenation) share one access.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.integer.symint import Form, provable, restrict
from thunder_fuser.lower.body import Memory
from thunder_fuser.lower.scalar_graph import Condition, Conjunction, Load, ScalarGraph
from thunder_fuser.lower.vectors.gathered_lanes import Alternative, alternatives
from thunder_fuser.lower.vectors.lane_windows import (
    ACCESS_BYTES,
    VectorAccess,
    covering_windows,
    edge_windows,
    ends_of,
    filled_windows,
    run_of_lanes,
    windows_with_gaps,
)
from thunder_fuser.lower.vectors.lanes import (
    LaneForms,
    diverging_positions,
    wave_of,
)

SECTOR_BYTES = 32
"""Smallest memory transaction of a GPU, in bytes."""
_WORDS = frozenset({DataType.BFloat16, DataType.Half, DataType.Float})
"""Dtypes that may be loaded as raw words, which are unpacked where they are used."""

Disjunction = tuple[Conjunction, ...]
"""Predicate that holds where any of its conjunctions holds; `((),)` holds everywhere."""
ALWAYS: Disjunction = ((),)
_MAX_CONDITIONS = 3
"""Uniform conditions of overlapping loads, beyond which these are gathered: 8 combinations."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Windows that are read where `conditions`, which are uniform over the lanes, hold."""

    conditions: Disjunction
    windows: tuple[VectorAccess, ...]


@dataclass(frozen=True, slots=True)
class RegisterArray:
    """Register array and the accesses that fill it.

    loads        nodes of the scalar graph whose values the array holds
    variants     mutually exclusive sets of windows; none of any kind: no lane is ever read
    gather       alternatives that are loaded lane by lane, if there are no variants and no edges
    is_uniform   all lanes read the same element: a scalar register instead of an array
    edges        instead of variants: windows for some lanes each, read if they lie in memory
    """

    loads: tuple[Load, ...]
    variants: tuple[Variant, ...] = ()
    gather: tuple[Alternative, ...] = ()
    is_uniform: bool = False
    edges: tuple[Variant, ...] = ()

    @property
    def is_vector(self) -> bool:
        """True if the array is loaded by windows and not uniform."""
        return bool(self.variants or self.edges) and not self.is_uniform

    def is_one_access(self, vector: int) -> bool:
        """True if each variant loads all `vector` lanes by one aligned access of 16 bytes at most,
        in memory order, so that it can be kept as raw words.
        """
        dtype = self.loads[0].dtype
        if (
            not self.variants
            or not self.is_vector
            or dtype not in _WORDS
            or dtype.itemsize * vector > ACCESS_BYTES
        ):
            return False
        windows = [v.windows for v in self.variants]
        return all(
            len(w) == 1 and w[0].is_in_order and w[0].is_aligned and w[0].width == vector
            for w in windows
        )

    def instructions(self, vector: int) -> int:
        """Return the load instructions of one thread for `vector` lanes (costliest variant)."""
        if self.gather:
            return vector
        itemsize = self.loads[0].dtype.itemsize if self.loads else 1
        if self.edges:
            return sum(w.instructions(itemsize) for v in self.edges for w in v.windows)
        each = (sum(w.instructions(itemsize) for w in v.windows) for v in self.variants)
        return max(each, default=0)


def plan_accesses(
    graph: ScalarGraph, lanes: LaneForms, memory: Mapping[int, Memory]
) -> tuple[RegisterArray, ...]:
    """Plan accesses for all loads of a graph; a load whose address depends on other loads comes
    after these. `memory`: by id of the loaded tensor.
    """
    needed = {load: simplify(contexts) for load, contexts in graph.contexts.items()}
    waves = wave_of(graph)
    found: list[RegisterArray] = []
    for wave in range(1 + max(waves.values(), default=0)):
        # The loads that this wave's addresses depend on are planned: it is known which diverge.
        scattered = {load for a in found if not a.is_uniform for load in a.loads}
        lanes.diverging |= diverging_positions(graph, scattered, lanes)
        loads = {load: needed[load] for load in needed if waves[load] == wave}
        found += _plan_wave(loads, lanes, memory)
    return tuple(found)


def _plan_wave(
    needed: dict[Load, Disjunction], lanes: LaneForms, memory: Mapping[int, Memory]
) -> list[RegisterArray]:
    groups: list[list[Load]] = []
    for load, when in needed.items():
        home = None
        if when != ALWAYS:
            home = next(
                (
                    g
                    for g in groups
                    if g[0].tensor is load.tensor and all(exclusive(when, needed[o]) for o in g)
                ),
                None,
            )
        if home is None:
            groups.append([load])
        else:
            home.append(load)
    found: list[RegisterArray] = []
    for group in groups:
        joined = _plan(group, needed, lanes, memory[group[0].tensor.id])
        if joined.gather and len(group) > 1:
            found += [_plan([load], needed, lanes, memory[load.tensor.id]) for load in group]
            if any(access.variants for access in found[-len(group) :]):
                continue
            del found[-len(group) :]
        found.append(joined)
    return found


def plan_store(
    address: Form, lanes: LaneForms, itemsize: int, alignment: int, anywhere: bool = False
) -> tuple[VectorAccess, ...]:
    """Plan the windows of a store, each lane in exactly one; empty for a scatter lane by lane.
    `anywhere`: they may be unaligned, as on a CPU.
    """
    table = dict(enumerate(lanes.at(lanes(address))))
    windows = filled_windows(table, lanes.vector, itemsize, alignment)
    if anywhere and (windows is None or len(windows) > 1):
        windows = run_of_lanes(table, lanes.vector) or windows
    if windows is None or sum(len(w.lanes) for w in windows) != lanes.vector:
        return ()
    return windows if windows[0].width > 1 or lanes.vector == 1 else ()


def _plan(
    group: Sequence[Load], needed: dict[Load, Disjunction], lanes: LaneForms, memory: Memory
) -> RegisterArray:
    """Plan the windows of a group of mutually exclusive loads, or a gather."""
    variants: dict[Conjunction, dict[int, Form]] = {}
    for load in group:
        if lanes.diverges([load.address, *(c for each in needed[load] for c in each)]):
            return _gather(group, needed, lanes, memory)
        for conjunction in needed[load]:
            split = _split(conjunction, lanes)
            if split is None:
                return _edges(group, needed, lanes, memory) or _gather(group, needed, lanes, memory)
            outer, active, known = split
            address = lanes.at(_restricted(lanes(load.address), known))
            if active:  # else the conditions contradict each other: nothing is read
                variants.setdefault(outer, {}).update({k: address[k] for k in active})
    cells = _exclusive_cells(variants)
    if cells is None:
        return _gather(group, needed, lanes, memory)
    itemsize = group[0].dtype.itemsize
    planned: dict[tuple[VectorAccess, ...], list[Conjunction]] = {}
    for outer, table in cells.items():
        windows = filled_windows(table, lanes.vector, itemsize, memory.alignment)
        if memory.anywhere and (windows is None or len(windows) > 1):
            windows = (
                run_of_lanes(table, lanes.vector)
                or covering_windows(table, lanes.vector, memory)
                or windows
            )
        windows = windows or windows_with_gaps(table, lanes.vector, itemsize, memory)
        if windows is None:
            return _gather(group, needed, lanes, memory)
        planned.setdefault(windows, []).append(outer)
    found = tuple(Variant(simplify(outers), windows) for windows, outers in planned.items())
    uniform = bool(found) and all(
        len(v.windows) == 1 and v.windows[0].width == 1 and len(v.windows[0].lanes) == lanes.vector
        for v in found
    )
    if lanes.vector == 1:
        # A single lane is trivially uniform: it is a scalar unless the next vector reads elsewhere.
        uniform = uniform and not any(lanes.walks(load.address) for load in group)
    return RegisterArray(tuple(group), found, is_uniform=uniform)


def _exclusive_cells(
    variants: dict[Conjunction, dict[int, Form]],
) -> dict[Conjunction, dict[int, Form]] | None:
    """Return the variants with mutually exclusive conditions. Loads that exclude each other by lane
    may overlap in what is uniform over the lanes; then each combination of the conditions is a
    variant, with the lanes of all that hold in it. None if there are too many conditions.
    """
    if all(exclusive((a,), (b,)) for a, b in combinations(variants, 2)):
        return variants
    tested: list[Condition] = []
    for condition in dict.fromkeys(c for outer in variants for c in outer):
        if -condition - 1 not in tested:
            tested.append(condition)
    if len(tested) > _MAX_CONDITIONS:
        return None
    cells: dict[Conjunction, dict[int, Form]] = {}
    for cell in product(*((c, -c - 1) for c in tested)):
        table: dict[int, Form] = {}
        for outer, addresses in variants.items():
            if set(outer) <= set(cell):
                # Two loads of one lane exclude each other: no point is in such a cell.
                table |= addresses
        if table:
            cells[cell] = table
    return cells


def _edges(
    group: Sequence[Load], needed: dict[Load, Disjunction], lanes: LaneForms, memory: Memory
) -> RegisterArray | None:
    """Plan windows that cover all lanes of one load, each read if it lies in memory; values of
    lanes that need none are never selected. None if there are too many windows.
    """
    if len(group) > 1 or len(needed[group[0]]) > 1 or group[0].positions:
        return None
    (load,), (conjunction,) = group, needed[group[0]]
    outer, inner, known = _by_lane(conjunction, lanes)
    address = lanes.at(_restricted(lanes(load.address), known))
    never = {
        k
        for condition in inner
        for k, at_lane in enumerate(lanes.at(_restricted(condition, known)))
        if at_lane.hi is not None and at_lane.hi < 0
    }
    table = {k: form for k, form in enumerate(address) if k not in never}
    if not table:
        return None
    windows = edge_windows(table, lanes.vector, load.dtype.itemsize, memory)
    if windows is None:
        return None
    found: dict[Disjunction, list[VectorAccess]] = {}
    for window in windows:
        inside = tuple(end for end in ends_of(window, memory) if not provable(end, 0, None))
        found.setdefault(simplify([(*outer, *inside)]), []).append(window)
    pieces = (Variant(conditions, tuple(each)) for conditions, each in found.items())
    return RegisterArray((load,), edges=tuple(pieces))


def _gather(
    group: Sequence[Load], needed: dict[Load, Disjunction], lanes: LaneForms, memory: Memory
) -> RegisterArray:
    return RegisterArray(tuple(group), gather=alternatives(group, needed, lanes, memory))


def _split(
    conjunction: Conjunction, lanes: LaneForms
) -> tuple[Conjunction, tuple[int, ...], list[Condition]] | None:
    """Return (conditions over u, lanes that are active under them, all conditions known there).

    None if a condition cannot be decided for some lane at compile time.
    """
    outer, inner, known = _by_lane(conjunction, lanes)
    active = set(range(lanes.vector))
    for condition in inner:
        for k, at_lane in enumerate(lanes.at(_restricted(condition, known))):
            if provable(at_lane, 0, None):
                continue
            if at_lane.hi is None or at_lane.hi >= 0:
                return None
            active.discard(k)
    return tuple(dict.fromkeys(outer)), tuple(sorted(active)), known


def _by_lane(
    conjunction: Conjunction, lanes: LaneForms
) -> tuple[list[Condition], list[Condition], list[Condition]]:
    """Split a conjunction; return the uniform conditions to be tested, the conditions that depend
    on the lane, and all uniform conditions in their original form.
    """
    outer: list[Condition] = []
    inner: list[Condition] = []
    known: list[Condition] = []
    for condition in conjunction:
        uniform = lanes.uniform(condition)
        if uniform is None:
            inner.append(lanes(condition))
            continue
        if not provable(uniform, 0, None):
            outer.append(uniform)
        known.append(lanes(condition))
    return outer, inner, known


def _restricted(form: Form, known: Iterable[Condition]) -> Form:
    """Return the form with digits replaced that the known conditions pin to one value."""
    for condition in known:
        if condition.hi is not None and condition.hi >= 0:
            form = restrict(condition, 0, condition.hi).apply(form)
    return form


def simplify(contexts: Iterable[Conjunction]) -> Disjunction:
    """Return a smaller equivalent disjunction: (A and c) or (A and not c) is A."""
    found = list(dict.fromkeys(tuple(sorted(set(c), key=lambda f: f.ordinal)) for c in contexts))
    changed = True
    while changed:
        changed = False
        for a, b in combinations(found, 2):
            joined = _joined(a, b)
            if joined is not None:
                found = [c for c in found if c not in (a, b)]
                if joined not in found:
                    found.append(joined)
                changed = True
                break
    return tuple(found)


def _joined(a: Conjunction, b: Conjunction) -> Conjunction | None:
    only_a = [c for c in a if c not in b]
    only_b = [c for c in b if c not in a]
    if not only_a or not only_b:
        return a if not only_a else b
    if len(only_a) == 1 and len(only_b) == 1 and only_b[0] is -only_a[0] - 1:
        return tuple(c for c in a if c in b)
    return None


def exclusive(a: Disjunction, b: Disjunction) -> bool:
    """True if provably no point satisfies both."""
    return all(any((-c - 1) in y for c in x) for x in a for y in b)
