"""Bytes that the accesses of a kernel move: of sectors, once for what threads of a block touch
together.

What is read again comes from the L2 cache where all that the device touches in between fits into
it, else from memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thunder_fuser.device import DeviceInfo
from thunder_fuser.lower import kernel_ir as ir
from thunder_fuser.lower.instruction_values import Access, Region

_L1_BYTES = 64 * 1024
"""Tensors so small stay in a multiprocessor's own cache."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of all blocks, and shares of them.

    memory    that memory moves
    cache     that the L2 cache gives
    asked     of the sectors that are asked for
    wanted    of the elements
    distinct  that memory would move if it moved each once
    loaded    the share of loads in `memory`
    ahead     the share of what is asked for by loads that nobody waits for before the next row
    """

    memory: float
    cache: float
    asked: float
    wanted: float
    distinct: float
    loaded: float
    ahead: float


class _Asked(NamedTuple):
    """Sectors that an access asks for.

    moved   bytes of sectors, of all threads
    wanted  bytes of the elements
    window  of a thread, for each row that its block begins
    """

    moved: float
    wanted: float
    window: float


def traffic_of(
    kernel: ir.KernelIR,
    regions: Sequence[Region],
    sizes: Mapping[str, int],
    resident: int,
    busy: int,
    device: DeviceInfo,
) -> Traffic:
    """What a kernel moves whose `regions` access tensors of such `sizes`, in bytes, while `busy`
    multiprocessors have `resident` blocks each.
    """
    threads = kernel.blocks * kernel.threads
    asked: defaultdict[tuple[str, bool], float] = defaultdict(float)
    together: defaultdict[tuple[int, str, bool], list[_Asked]] = defaultdict(list)
    ahead = cache = window = 0.0
    for region in regions:
        for a in region.accesses:
            times = _times(region, a) * threads
            moved = times * a.sectors
            asked[a.tensor, a.is_store] += moved
            each = _Asked(moved, times * a.bytes, _row_share(region) * a.sectors)
            together[id(region.waiting), a.tensor, a.is_store].append(each)
            ahead += moved if a.is_ahead else 0.0
    for (_, tensor, _), found in together.items():
        # What a block reads side by side, or all of them read, is in its own cache; loads of
        # neighbours in one place of a tensor touch it once.
        size, every = sizes[tensor], sum(x.moved for x in found)
        apart = max(1.0, every / (sum(x.wanted for x in found) or 1.0))
        most = max(x.moved for x in found)
        held = size * busy if size <= _L1_BYTES else max(most, size * apart)
        cache += min(every, held)
        touched = sum(x.window for x in found)
        window += touched * min(1.0, held / every) if len(found) > 1 and every else touched
    between = window * kernel.threads * resident * busy
    memory = loaded = distinct = 0.0
    for (tensor, is_store), bytes in asked.items():
        size = sizes[tensor]
        least = min(bytes, size)
        distinct += least
        moved = least if device.keeps(min(between, size)) else bytes
        memory += moved
        loaded += 0.0 if is_store else moved
    wanted = sum(x.wanted for found in together.values() for x in found)
    loads = sum(bytes for (_, is_store), bytes in asked.items() if not is_store)
    return Traffic(
        memory,
        cache,
        float(sum(asked.values())),
        wanted,
        distinct,
        loaded / memory if memory else 0.0,
        ahead / loads if loads else 0.0,
    )


def _row_share(region: Region) -> float:
    """How often a thread does a region for each time that its block begins a row: once more than
    the loop around all of them goes on. Of the parts of a kernel a block does one.
    """
    loops = [r for r in region.line if r.is_loop and r.total]
    return region.total / loops[-1].total if loops else region.total


def _times(region: Region, access: Access) -> float:
    """How often a thread asks memory for an access: behind the last iteration of a loop nothing is
    loaded ahead, or once more what is at hand.
    """
    if not access.is_ahead:
        return region.total
    loop = next(r for r in region.line if r.is_loop)
    return region.total * max(0.0, 1 - 1 / loop.times)
