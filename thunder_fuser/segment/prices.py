"""What moving bytes, arithmetic and launches cost beside each other, in fp32 instructions.

Orders of magnitude of current GPUs, not measurements: plans must not depend on the machine that
makes them.
"""

from __future__ import annotations

import math

from thunder_fuser.ir.fusion import TensorView, Val

PER_BYTE = 16
"""Instructions that take as long as moving a byte, most of them hidden behind other bytes."""

LAUNCH = (16 << 20) * PER_BYTE
"""A kernel's launch: 16 MiB could move meanwhile."""


def distinct_bytes(value: Val) -> int:
    """Bytes of a tensor in memory, where broadcast dimensions count once; numbers have none."""
    if not isinstance(value, TensorView):
        return 0
    sizes = (
        n for n, d in zip(value.sizes, value.domain.logical, strict=True) if not d.is_broadcast
    )
    return math.prod(sizes) * value.dtype.itemsize
