"""Estimated time of a segment: that of the kernel that its template lowers it to."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.fusion import OpaqueOp
from thunder_fuser.segment.communication_overlap import collective_of, link_seconds
from thunder_fuser.segment.plan import Segment, SegmentedFusion
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.lower import lower
from thunder_fuser.time_model.estimate import Estimate, estimate_kernel


def estimate_segment(segment: Segment, device: DeviceInfo) -> Estimate:
    """Estimate the time of a segment's kernel, or of its torch call, on `device`. Its copy time
    is that of the plan's bytes.
    """
    if segment.kind == "opaque":
        return _estimate_call(segment, device)
    return _estimate(_Program(segment.kernel_key, segment), device, int(segment.bytes))


def estimated(plan: SegmentedFusion, device: DeviceInfo) -> SegmentedFusion:
    """Return the plan with segments that estimate their time on `device`, each when it is first
    asked.
    """
    estimator = functools.partial(estimate_segment, device=device)
    segments = tuple(replace(s, estimator=estimator) for s in plan.segments)
    return replace(plan, segments=segments, device=device)


def estimate_call(
    moved: int, flops: int, itemsize: int, device: DeviceInfo, sector_bytes: float | None = None
) -> Estimate:
    """Estimate a library kernel by its lower bound: to move its bytes, or to do its arithmetic at
    the rate of elements of `itemsize` bytes, whichever takes longer.
    """
    parts = {
        "launch": device.launch_seconds,
        "memory": moved / (device.bandwidth * device.copy_share),
        "arithmetic": flops / device.product_rate(itemsize),
    }
    work = max(parts["memory"], parts["arithmetic"])
    return Estimate(
        seconds=parts["launch"] + work,
        bound=max(parts, key=parts.__getitem__),
        bytes=float(moved),
        cache_bytes=float(moved),
        sector_bytes=float(moved) if sector_bytes is None else sector_bytes,
        wanted_bytes=float(moved),
        instructions={},
        resident=0,
        waves=0.0,
        copy_seconds=parts["memory"],
        bandwidth=device.bandwidth * device.copy_share,
        parts=parts,
    )


def _estimate_call(segment: Segment, device: DeviceInfo) -> Estimate:
    sizes = [t.dtype.itemsize for t in segment.inputs if t.dtype.is_floating]
    sectors = float(segment.sector_bytes + segment.bytes_written)
    moved, flops = int(segment.bytes), int(segment.flops)
    found = estimate_call(moved, flops, next(iter(sizes), 4), device, sectors)
    call = collective_of(segment)
    return found if call is None else _of_collective(found, call, device)


def _of_collective(found: Estimate, call: OpaqueOp, device: DeviceInfo) -> Estimate:
    """Estimate a collective: its steps and the bytes a ring sends, or its memory traffic if that
    takes longer. Devices without a known link do not wait for each other.
    """
    links = link_seconds(call, device)
    if links is None:
        return found
    parts = {"launch": device.collective_seconds, "memory": found.parts["memory"], "links": links}
    return replace(
        found,
        seconds=parts["launch"] + max(links, parts["memory"]),
        bound=max(parts, key=parts.__getitem__),
        parts=parts,
    )


@dataclass(frozen=True, slots=True)
class _Program:
    """Cache key of an estimate: equal programs share that of the first segment."""

    program: Hashable
    segment: Segment = field(compare=False)


@functools.lru_cache(maxsize=256)
def _estimate(program: _Program, device: DeviceInfo, moved: int) -> Estimate:
    schedule = schedule_segment(program.segment, device)
    body = program.segment.body
    kernel = lower(schedule, body.updates, body.definitions)
    found = estimate_kernel(kernel, device)
    return replace(found, copy_seconds=moved / device.copy_bandwidth)
