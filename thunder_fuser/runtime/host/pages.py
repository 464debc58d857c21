"""Huge pages for large host allocations: one page fault per 2 MiB instead of one per 4 KiB.

The system clears new pages when they are first touched. For a kernel that only moves memory these
faults are most of its time: 16,384 of them for 64 MiB. Linux gives huge pages on madvise
(`/sys/kernel/mm/transparent_hugepage/enabled`: madvise or always); on other systems this does
nothing.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

# `DeviceInfo.fresh_bytes` of the host: from DEFAULT_MMAP_THRESHOLD_MAX on, glibc maps every
# allocation again, whatever was freed before (mallopt(3)).
FRESH_BYTES = 32 << 20


def _advise() -> Callable[[int, int, int], int] | None:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    found: Callable[[int, int, int], int] = madvise
    return found


_madvise = _advise()


def ask_for_huge_pages(address: int, size: int) -> bool:
    """Ask for huge pages for the whole pages within `size` bytes at `address`.

    Returns True if the system accepted the advice; harmless without huge pages.
    """
    if _madvise is None:
        return False
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
    return begin < end and _madvise(begin, end - begin, mmap.MADV_HUGEPAGE) == 0
