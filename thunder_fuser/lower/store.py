"""Stores of a schedule: tensor, value, address and vector accesses."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.scalar_graph import Value
from thunder_fuser.lower.vectors.lane_windows import VectorAccess


@dataclass(frozen=True, slots=True)
class Store:
    """Store of an output's value at a point.

    windows  vector accesses; empty: lane by lane
    streams  it bypasses the caches (non-temporal)
    """

    tensor: TensorView
    value: Value
    address: Form
    windows: tuple[VectorAccess, ...]
    streams: bool = False


def streams(tensor: TensorView, body: KernelBody, device: DeviceInfo) -> bool:
    """True if an output is to be stored past the caches: the kernel moves more than they hold, so
    that its consumers find none of it there, and a store past them does not read the lines first.
    Newly mapped pages are in the caches already, cleared, and are written there.
    """
    beyond, fresh = device.outer_cache_bytes, device.fresh_bytes
    if not beyond or tensor in body.updates or tensor.bytes <= device.l2_bytes:
        return False
    if fresh and tensor.bytes >= fresh:
        return False
    return sum(t.bytes for t in (*body.loads, *body.stores)) > beyond
