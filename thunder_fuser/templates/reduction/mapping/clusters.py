"""Thread mappings of rows that one block has no room for: two smaller blocks per multiprocessor,
and thread block clusters, whose blocks reach each other's shared memory.
"""

from __future__ import annotations

from dataclasses import replace

from thunder_fuser.device import WARP_SIZE, DeviceInfo
from thunder_fuser.templates.reduction.mapping.thread_mapping import (
    MAX_THREADS,
    ThreadMapping,
    sharing,
)


def in_two_blocks(
    mapping: ThreadMapping, vectors: int, rows: int, device: DeviceInfo
) -> ThreadMapping | None:
    """Return the mapping with blocks of half the threads, two per multiprocessor; None where it
    holds two anyway, or has at most one row to work on.
    """
    if mapping.threads_per_row <= MAX_THREADS // 2 or rows <= device.sm_count:
        return None
    threads = sharing(vectors, MAX_THREADS // 2)
    return replace(mapping, threads_per_row=threads, blocks_per_sm=2)


def in_cluster(
    mapping: ThreadMapping, vectors: int, rows: int, cluster: int, blocks_per_sm: int
) -> ThreadMapping:
    """Return the mapping with rows shared by `cluster` blocks, `blocks_per_sm` of them on each
    multiprocessor.
    """
    threads = sharing(-(-vectors // cluster), MAX_THREADS // blocks_per_sm)
    return replace(
        mapping,
        threads_per_row=max(threads, 2 * WARP_SIZE),
        rows_per_block=1,
        blocks=rows * cluster,
        column_tiles=cluster,
        blocks_per_sm=blocks_per_sm,
        cluster=cluster,
    )


def can_meet(mapping: ThreadMapping, cluster: int) -> bool:
    """True if the blocks of a cluster have rows of one row group, and each some of its columns."""
    is_even = mapping.blocks % cluster == 0 and mapping.portions_of_group % cluster == 0
    return is_even and not mapping.walks_portions and mapping.threads_per_row >= WARP_SIZE


def in_tiles(mapping: ThreadMapping, cluster: int) -> ThreadMapping:
    """Return the mapping with `cluster` neighbouring blocks that have all columns between them."""
    blocks = mapping.blocks * cluster
    return replace(mapping, blocks=blocks, column_tiles=cluster, cluster=cluster)
