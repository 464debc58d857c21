"""Occupancy: resident blocks of a kernel per multiprocessor.

Threads, registers, shared memory and blocks are limited independently. A cooperative kernel (grid
barrier) can be launched only if all of its blocks are resident, so occupancy is computed during
scheduling. Register counts are known only after compilation: `__launch_bounds__` limits the
compiler to as many as leave room for the blocks.

The rules are those of NVIDIA's occupancy calculator, which are the same from sm_75 to sm_120.
"""

from __future__ import annotations

from thunder_fuser.device import WARP_SIZE, DeviceInfo

_PARTITIONS = 4
"""Partitions of a multiprocessor, each with a quarter of its registers and warps."""
_REGISTER_UNIT = 256
"""Allocation granularity of registers per warp, which is 8 per thread."""
_SHARED_UNIT = 128


def resident_blocks(device: DeviceInfo, threads: int, registers: int, shared_bytes: int = 0) -> int:
    """Resident blocks per multiprocessor; 0 if not even one block fits.

    threads       per block
    registers     per thread
    shared_bytes  per block
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
    """Most registers per thread with `blocks` resident blocks of `threads` threads."""
    warps = -(-threads // WARP_SIZE) * blocks
    of_warp = device.registers_per_sm // _PARTITIONS // -(-warps // _PARTITIONS)
    return min(255, of_warp // _REGISTER_UNIT * _REGISTER_UNIT // WARP_SIZE)


def shared_bytes_of_block(device: DeviceInfo, blocks: int) -> int:
    """Most bytes of shared memory per block with `blocks` resident blocks."""
    each = device.shared_bytes_per_sm // max(blocks, 1) - device.shared_bytes_reserved
    return min(device.shared_bytes_per_block, each // _SHARED_UNIT * _SHARED_UNIT)
