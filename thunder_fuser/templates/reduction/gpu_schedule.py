"""Schedule of a reduction kernel on a GPU: of the mapping that its rows have, or of one that keeps
more on chip, with two smaller blocks per multiprocessor or thread block clusters.
"""

from __future__ import annotations

from thunder_fuser.device import DeviceInfo
from thunder_fuser.templates.reduction.choose_cluster import (
    MappingOf,
    Scheduled,
    cached_in_cluster,
    summed_in_cluster,
    tiled_in_cluster,
)
from thunder_fuser.templates.reduction.mapping.clusters import in_two_blocks
from thunder_fuser.templates.reduction.mapping.mapped_rows import MappedRows
from thunder_fuser.templates.reduction.mapping.thread_mapping import ThreadMapping
from thunder_fuser.templates.reduction.on_chip.decide import on_chip
from thunder_fuser.templates.reduction.on_chip.row_cache import MAX_STEPS
from thunder_fuser.templates.reduction.schedule import ReductionSchedule


def schedule_on_gpu(
    mapped: MappedRows, mapping_of: MappingOf, device: DeviceInfo
) -> ReductionSchedule:
    """Return the schedule of mapped rows; `mapping_of` maps their work to clusters."""
    made = on_chip(mapped, device)
    if mapped.lane_axis == "rows" or mapped.grid_split == "columns":
        return made

    def scheduled(mapping: ThreadMapping) -> ReductionSchedule:
        return on_chip(mapped.on(mapping), device)

    if mapped.grid_split == "none":
        return cached_in_cluster(_in_two_blocks(made, scheduled, device), scheduled, device)
    tiled = tiled_in_cluster(made, mapping_of, scheduled, device)
    return summed_in_cluster(tiled, mapping_of, scheduled, device)


def _in_two_blocks(
    made: ReductionSchedule, scheduled: Scheduled, device: DeviceInfo
) -> ReductionSchedule:
    """Return a schedule of two blocks per multiprocessor if each has room for a row: one leaves
    memory idle while its threads wait for each other. Not in registers and shared memory at once:
    what is computed of either needs as many registers again. Rows read lane by lane ask for each
    sector several times, and caches have room for few of them.
    """
    vectors = made.lanes.vectors
    mapping = in_two_blocks(made.mapping, vectors, made.rows, device)
    if mapping is None or made.inside or mapping.steps(vectors) > MAX_STEPS:
        return made
    found = scheduled(mapping)
    cache = found.row_cache
    return made if cache.reread or (cache.registers and cache.shared) else found
