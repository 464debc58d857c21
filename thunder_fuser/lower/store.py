"""Stores of a schedule: the tensor, the value, and how its vectors are written."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.lane_windows import VectorAccess
from thunder_fuser.lower.scalar_graph import Value


@dataclass(frozen=True, slots=True)
class Store:
    """An output of a part: its value at the point, where it goes, and in which windows.

    No windows means lane by lane.

    streams  it goes past the caches
    """

    tensor: TensorView
    value: Value
    address: Form
    windows: tuple[VectorAccess, ...]
    streams: bool = False


def streams(tensor: TensorView, body: KernelBody, device: DeviceInfo) -> bool:
    """Whether an output is gone from all caches when somebody reads it from its start, because the
    kernel moves more than they hold. Past them, memory that is overwritten whole is not read first.
    New pages are in the caches already, cleared, and are written there.
    """
    beyond, fresh = device.outer_cache_bytes, device.fresh_bytes
    if not beyond or tensor in body.updates or tensor.bytes <= device.l2_bytes:
        return False
    if fresh and tensor.bytes >= fresh:
        return False
    return sum(t.bytes for t in (*body.loads, *body.stores)) > beyond
