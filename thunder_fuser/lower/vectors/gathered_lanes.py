"""Gathers: loads whose lanes are read one by one, since a vector has no windows for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from thunder_fuser.ir.integer.symint import Form, impossible, provable
from thunder_fuser.lower.body import Memory
from thunder_fuser.lower.scalar_graph import Condition, Conjunction, Load
from thunder_fuser.lower.vectors.lanes import LaneForms, lane_condition


@dataclass(frozen=True, slots=True)
class Alternative:
    """One load of a gather; its forms may depend on the lane.

    run  conditions under which all lanes take it, and are neighbours in memory; None: unknown
    """

    conditions: tuple[Conjunction, ...]
    address: Form
    run: Conjunction | None = None


def alternatives(
    group: Sequence[Load],
    needed: Mapping[Load, tuple[Conjunction, ...]],
    lanes: LaneForms,
    memory: Memory,
) -> tuple[Alternative, ...]:
    """Return mutually exclusive loads of one tensor as alternatives of a gather."""
    return tuple(
        Alternative(
            tuple(tuple(lane_condition(c, lanes) for c in each) for each in needed[load]),
            lanes(load.address),
            _run(load, needed[load], lanes, memory),
        )
        for load in group
    )


def _run(
    load: Load, needed: Sequence[Conjunction], lanes: LaneForms, memory: Memory
) -> Conjunction | None:
    """Return the conditions under which all lanes of a vector take a load that some of them need,
    if these are neighbours. A core reads them at once, and others one by one, under tests.
    """
    if not memory.anywhere or memory.tail_apart or lanes.vector == 1 or len(needed) > 1:
        return None
    (conjunction,) = needed
    if not conjunction or lanes.diverges([load.address, *conjunction]):
        return None
    if _step(load.address, lanes) != 1:
        return None
    found: list[Condition] = []
    for condition in conjunction:
        if _step(condition, lanes) is None:
            return None
        # A condition that holds at both ends does between them.
        each = lanes.at(lanes(condition))
        found += [c for c in (each[0], each[-1]) if not provable(c, 0, None)]
    return None if any(impossible(c, 0, None) for c in found) else tuple(dict.fromkeys(found))


def _step(form: Form, lanes: LaneForms) -> int | None:
    """Return the increment of a form from lane to lane, if it is constant."""
    steps = {b - a for a, b in pairwise(lanes.at(lanes(form)))}
    return steps.pop().const if len(steps) == 1 and all(s.is_constant for s in steps) else None


def certain_lanes(conditions: Sequence[Conjunction], lanes: LaneForms) -> list[int] | None:
    """Return the lanes where conditions hold that depend on the lane only; None for others."""
    v = lanes.v
    mentioned = {x for each in conditions for c in each for x in c.variables()}
    if not mentioned or mentioned != set(v.variables()):
        return None
    return [
        n
        for n in range(lanes.vector)
        if any(all(c.substitute({v: n}).const >= 0 for c in each) for each in conditions)
    ]
