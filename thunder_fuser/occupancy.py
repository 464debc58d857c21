"""Occupancy: how many blocks of a kernel a multiprocessor holds at a time.

Threads, registers, shared memory and the number of blocks itself are limited, each by itself. A
kernel whose blocks wait for each other (a cooperative one) can be launched only if all of them are
on the device at once, so that this is asked while it is scheduled. Registers are known only when
it is compiled: `__launch_bounds__` holds the compiler to as many as leave room for its blocks.

The rules are those of NVIDIA's occupancy calculator, which are the same from sm_75 to sm_120.
"""

from __future__ import annotations

from thunder_fuser.device import WARP_SIZE, DeviceInfo

_PARTITIONS = 4
"""Of a multiprocessor: each has a quarter of its registers and of its warps."""
_REGISTER_UNIT = 256
"""Registers are given to whole warps in such units, which is 8 for each thread."""
_SHARED_UNIT = 128
FEWEST_REGISTERS = 48
"""Of each thread, below which kernels that reduce spill."""


def resident_blocks(
    device: DeviceInfo, threads: int, registers: int = FEWEST_REGISTERS, shared_bytes: int = 0
) -> int:
    """How many blocks of so many threads, with so many registers each, and so much shared memory a
    multiprocessor holds at a time; 0 where not even one.
    """
    warps = -(-threads // WARP_SIZE)
    of_warp = -(-registers * WARP_SIZE // _REGISTER_UNIT) * _REGISTER_UNIT
    warps_by_registers = device.registers_per_sm // _PARTITIONS // max(of_warp, 1) * _PARTITIONS
    limits = [
        device.blocks_per_sm,
        device.threads_per_sm // (warps * WARP_SIZE),
        warps_by_registers // warps,
    ]
    taken = -(-shared_bytes // _SHARED_UNIT) * _SHARED_UNIT + device.shared_bytes_reserved
    limits += [device.shared_bytes_per_sm // taken] if taken else []
    fits = threads <= device.max_threads_per_block and shared_bytes <= device.shared_bytes_per_block
    return min(limits) if fits else 0


def registers_of_thread(device: DeviceInfo, threads: int, blocks: int) -> int:
    """Registers that each thread may have where so many blocks of so many threads share a
    multiprocessor.
    """
    warps = -(-threads // WARP_SIZE) * blocks
    of_warp = device.registers_per_sm // _PARTITIONS // -(-warps // _PARTITIONS)
    return min(255, of_warp // _REGISTER_UNIT * _REGISTER_UNIT // WARP_SIZE)


def shared_bytes_of_block(device: DeviceInfo, blocks: int) -> int:
    """Shared memory that each of so many blocks of a multiprocessor may have."""
    each = device.shared_bytes_per_sm // max(blocks, 1) - device.shared_bytes_reserved
    return min(device.shared_bytes_per_block, each // _SHARED_UNIT * _SHARED_UNIT)
