"""Launch limits of a device, checked before the launch.

A driver rejects an impossible launch with "invalid value"; here the message names the kernel, the
limit and both values.
"""

from __future__ import annotations

import math

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.device import WARP_SIZE, DeviceInfo
from thunder_fuser.errors import REPORT, LimitError

# Threads per block along each axis, equal for every compute capability.
_MAX_BLOCK = (1024, 1024, 64)
# Bytes, from Volta and CUDA 12.1 on; plans stay below the earlier 4,096 (`segment/legality.py`).
_MAX_PARAMETERS = 32764


def check_limits(
    kernel: Kernel, info: DeviceInfo, *, registers: int = 0, static_shared_bytes: int = 0
) -> None:
    """Raise LimitError if `kernel` cannot be launched on `info`.

    `registers` (per thread) and `static_shared_bytes` (per block) are known after compilation.
    """
    threads = math.prod(kernel.block)
    warps = -(-threads // WARP_SIZE)
    demands = [
        ("threads in a block", threads, info.max_threads_per_block),
        *_axes("block", kernel.block, _MAX_BLOCK),
        *_axes("grid", kernel.grid, info.max_grid),
        (
            "bytes of shared memory in a block",
            kernel.shared_bytes + static_shared_bytes,
            info.shared_bytes_per_block,
        ),
        ("registers in a block", registers * warps * WARP_SIZE, info.registers_per_sm),
        ("bytes of parameters", sum(_bytes(p.ctype) for p in kernel.params), _MAX_PARAMETERS),
    ]
    for what, asked, limit in demands:
        if asked > limit:
            raise LimitError(
                f"kernel {kernel.name} cannot run on {info.name} ({info.arch}): {asked} {what}, "
                f"the limit is {limit}; {REPORT}"
            )


def _bytes(ctype: str) -> int:
    """Bytes of a kernel parameter with the padding behind it; pointers precede scalars."""
    return 4 if ctype in ("float", "int", "unsigned") else 8


def _axes(
    what: str, extents: tuple[int, ...], limits: tuple[int, ...]
) -> list[tuple[str, int, int]]:
    names = (f"along {axis} in the {what}" for axis in "xyz")
    return list(zip(names, extents, limits, strict=True))
