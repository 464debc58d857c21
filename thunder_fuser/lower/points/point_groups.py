"""Point groups: pointwise outputs over one iteration space that read common data.

A group is pulled once, at one flattened point of its space; all pointwise templates start from it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from thunder_fuser.analysis.layout import address_at, loop_order, unflatten
from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Context, Form
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.pull import Pull
from thunder_fuser.lower.scalar_graph import ScalarGraph, Value
from thunder_fuser.lower.store import Store, streams
from thunder_fuser.lower.vectors.lanes import LaneForms
from thunder_fuser.lower.vectors.vectorize import plan_store


@dataclass(frozen=True, slots=True)
class PointGroup:
    """Values at `point`, one of `count` in the memory order of the outputs.

    values   for each output its value at the point, and the address it is stored to
    """

    point: Form
    count: int
    graph: ScalarGraph
    values: tuple[tuple[TensorView, Value, Form], ...]

    @property
    def tensors(self) -> tuple[TensorView, ...]:
        return tuple(tensor for tensor, _, _ in self.values)

    def stores(self, lanes: LaneForms, body: KernelBody, device: DeviceInfo) -> tuple[Store, ...]:
        anywhere = device.threads_are_serial
        return tuple(
            Store(
                t,
                v,
                at,
                plan_store(at, lanes, t.dtype.itemsize, body.stores[t].alignment, anywhere),
                streams(t, body, device),
            )
            for t, v, at in self.values
        )


@functools.lru_cache(maxsize=8)
def point_groups(body: KernelBody) -> tuple[PointGroup, ...]:
    """Return the groups of a body's outputs; cached, since several templates need them."""
    found = []
    for group in _share_points(body):
        point = Context().var("i", 0, group[0].numel - 1)
        found.append(group_at(group, body, point, point))
    return tuple(found)


def group_at(
    tensors: Sequence[TensorView], body: KernelBody, point: Form, place: Form
) -> PointGroup:
    """Return the group of `tensors` at `place`, a linear index in their memory order, as a function
    of the variable `point`.
    """
    context = point.context
    order = loop_order(tensors[0], body.stores[tensors[0]])
    along = unflatten(place, tensors[0].sizes, order)
    index = [along[k] for k in range(len(order))]
    pull = Pull(body, context)
    values = tuple(
        (t, pull.emit(t, index), address_at(index, body.stores[t], context)) for t in tensors
    )
    assert point.hi is not None
    return PointGroup(point, point.hi + 1, pull.graph, values)


def _share_points(body: KernelBody) -> list[list[TensorView]]:
    """Group outputs that have the same sizes and memory order, and read common data."""
    reads = _reads(body)
    groups: list[tuple[tuple[object, ...], set[int], list[TensorView]]] = []
    for tensor in body.outputs:
        if not tensor.numel:
            continue
        key = (tensor.sizes, loop_order(tensor, body.stores[tensor]))
        joined = [g for g in groups if g[0] == key and g[1] & reads[tensor]]
        if joined:
            home = joined[0]
            home[1].update(reads[tensor])
            home[2].append(tensor)
            for other in joined[1:]:
                home[1].update(other[1])
                home[2].extend(other[2])
                groups.remove(other)
        else:
            groups.append((key, set(reads[tensor]), [tensor]))
    position = {t: k for k, t in enumerate(body.outputs)}
    return [sorted(members, key=position.__getitem__) for _, _, members in groups]


def _reads(body: KernelBody) -> dict[TensorView, set[int]]:
    """Return for each output the ids of tensors that put it into one group with their other users.

    Single elements do not count, unless they are overwritten: consumers of an input that an output
    updates are in one group with that output.
    """
    overwritten = set(body.updates.values())

    def producers(tensor: TensorView) -> list[TensorView]:
        return [v for v in body.operands(tensor) if isinstance(v, TensorView)]

    return {
        output: {
            t.id
            for t in backward_slice([output], producers)
            if t.numel > 1 or t is output or t in overwritten
        }
        for output in body.outputs
    }
