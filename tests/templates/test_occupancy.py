"""Occupancy: all blocks of a kernel that wait for each other fit onto every device at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.zoo.groups import column_variances, grouped
from tests.zoo.norms import NORMS
from tests.zoo.reductions import REDUCTIONS
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, DEVICES, H200, RTX_4090, T4
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.occupancy import registers_of_thread, resident_blocks, shared_bytes_of_block
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.reduction.on_chip.shared_memory import shared_bytes
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

BFloat16, Float, Double = DataType.BFloat16, DataType.Float, DataType.Double
ROWS = (1, 8, 57, 265, 1024, 8192, 57344)
COLUMNS = (8, 100, 1024, 4096, 5120, 8192, 16384, 40960, 131072)
DTYPES = (BFloat16, Float, Double)
MOST = 2**31
"""Elements of the largest tensor."""
FEWEST_REGISTERS = 48
"""Below which a kernel that reduces would spill."""


def plans(share: int) -> Iterator[tuple[str, SegmentedFusion]]:
    """Of every `share`-th combination of definition, sizes and dtype."""
    chosen = {"layer_norm_backward", "gelu_backward", "full_sum", "softmax", "column_sum"}
    made = {p.name: p.definition for p in (*REDUCTIONS, *NORMS) if p.name in chosen}
    made["column_variances"] = column_variances
    made["groups of 8"] = lambda r, c, d: grouped(r, 8, c, d)
    made["groups of 64"] = lambda r, c, d: grouped(r, 64, c, d)
    combinations = itertools.product(made.items(), ROWS, COLUMNS, DTYPES)
    for (name, define), rows, columns, dtype in itertools.islice(combinations, 0, None, share):
        each = int(name.split()[-1]) if "groups" in name else 1
        if rows * columns * each <= MOST:
            yield f"{name} [{rows}, {columns}] {dtype.name}", define(rows, columns, dtype).plan()


def misfits(schedule: ReductionSchedule, device: DeviceInfo) -> list[str]:
    """What does not fit of a kernel as it is launched."""
    threads, shared = schedule.block_threads, shared_bytes(schedule)
    together = max(schedule.mapping.blocks_per_sm, 1)
    registers = registers_of_thread(device, threads, together)
    found = []
    if registers < FEWEST_REGISTERS:
        found.append(f"{together} blocks of {threads} threads leave {registers} registers each")
    resident = resident_blocks(device, threads, registers, shared)
    if resident < together:
        found.append(f"{resident} of {together} blocks fit: {threads} threads, {shared:,} B shared")
    cluster = schedule.mapping.cluster
    if cluster > 1 and cluster not in dict(device.clusters):
        found.append(f"the device has no clusters of {cluster}")
    if schedule.reductions.of_grid and schedule.blocks > resident * device.sms_of_clusters(cluster):
        of = f" in clusters of {cluster}" if cluster > 1 else ""
        found.append(
            f"{schedule.blocks} blocks{of} wait for each other, {resident} a multiprocessor"
        )
    return found


def check(share: int) -> None:
    wrong, waiting, walking, clusters = [], 0, 0, 0
    for what, plan in plans(share):
        for segment, device in itertools.product(plan.segments, DEVICES):
            if segment.kind == "reduction":
                schedule = schedule_segment(segment, device)
                assert isinstance(schedule, ReductionSchedule)
                waiting += bool(schedule.reductions.of_grid)
                walking += schedule.mapping.walks_portions
                clusters += schedule.mapping.cluster > 1
                wrong += [f"{what} on {device.name}: {m}" for m in misfits(schedule, device)]
    assert wrong == []
    assert waiting > 5000 / share
    assert walking > 500 / share
    assert clusters > 200 / share


def test_every_kernel_fits() -> None:
    check(37)


@pytest.mark.campaign
def test_every_kernel_of_all_shapes_fits() -> None:
    check(1)


@pytest.mark.parametrize(
    ("device", "threads", "registers", "shared", "blocks"),
    [
        # By threads, by registers, by shared memory, and by blocks: NVIDIA's occupancy calculator.
        (H200, 1024, 32, 0, 2),
        (H200, 1024, 33, 0, 1),
        (H200, 256, 64, 0, 4),
        (H200, 96, 168, 0, 4),
        (H200, 32, 16, 0, 32),
        (H200, 128, 32, 113 << 10, 2),
        (H200, 128, 32, (113 << 10) + 1, 1),
        (H200, 128, 32, 228 << 10, 0),
        (A100, 512, 64, 0, 2),
        (RTX_4090, 1024, 32, 0, 1),
        (RTX_4090, 256, 40, 0, 6),
        (T4, 1024, 64, 64 << 10, 1),
        (T4, 64, 32, 0, 16),
        (H200, 1024, 65, 0, 0),
        (H200, 2048, 16, 0, 0),
    ],
)
def test_blocks_of_a_multiprocessor(
    device: DeviceInfo, threads: int, registers: int, shared: int, blocks: int
) -> None:
    assert resident_blocks(device, threads, registers, shared) == blocks


def test_what_blocks_may_have_lets_as_many_fit() -> None:
    for device, threads in itertools.product(DEVICES, (32, 96, 256, 768, 1024)):
        for blocks in range(1, resident_blocks(device, threads, 16) + 1):
            registers = registers_of_thread(device, threads, blocks)
            shared = shared_bytes_of_block(device, blocks)
            assert resident_blocks(device, threads, registers, shared) >= blocks
            more = resident_blocks(device, threads, registers + 8)
            assert more < blocks or registers > 255 - 8
