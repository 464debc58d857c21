"""Software prefetches of a host, whose own prefetcher is late in loops that compute much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.lower.vectors.lanes import Lanes
from thunder_fuser.lower.vectors.vectorize import RegisterArray

AHEAD_BYTES = 4096
"""Distance in bytes of a prefetch ahead of its load: a page, at whose end hardware stops."""


def far_reads(
    accesses: Sequence[RegisterArray], device: DeviceInfo
) -> Iterator[tuple[TensorView, Form, int]]:
    """Yield (tensor, address, bytes) of vectors of tensors that no near cache of a host core holds.

    A core has few loads in flight, those of the instructions that it looks ahead, and waits for
    them. Addresses of gathers depend on data: those of later vectors are not known.
    """
    for access in accesses if device.prefetches_by_software else ():
        tensor = access.loads[0].tensor
        is_known = not any(load.positions for load in access.loads)
        # Without windows where no lane is inside of what is read.
        windows = access.variants[0].windows if len(access.variants) == 1 else ()
        if is_known and windows and access.is_vector and tensor.bytes > device.l2_bytes:
            moved = sum(w.width for w in windows) * tensor.dtype.itemsize
            yield tensor, windows[0].address, moved


def prefetches(
    accesses: Sequence[RegisterArray], lanes: Lanes, device: DeviceInfo
) -> tuple[tuple[TensorView, Form], ...]:
    """Return prefetches of later vectors, of all accesses that `prefetch` has one for."""
    found = (prefetch(access, lanes, device) for access in accesses)
    return tuple(each for each in found if each is not None)


def prefetch(
    access: RegisterArray, lanes: Lanes, device: DeviceInfo
) -> tuple[TensorView, Form] | None:
    """Return the prefetch of a later vector of an access: tensor and address; None if it has none.

    Contiguous memory is among them: with it an exp of bf16 takes .6 of the time on a Xeon, and a
    third where others use its memory; a relu, which a core follows by itself, takes no longer.
    Addresses may be wrong beyond the end, which a prefetch tolerates.
    """
    for tensor, address, moved in far_reads([access], device):
        if _goes_on(address):
            later = lanes.u + max(1, AHEAD_BYTES // moved)
            return tensor, address.substitute({lanes.u: later})
    return None


def _goes_on(address: Form) -> bool:
    """True if later vectors read other memory, not the same row again."""
    return any(digit.e is None for digit, _ in address.terms)
