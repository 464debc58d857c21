"""The scan template: threads that share a row take a tile of it at a time, a vector each, and pass
their prefix on to each other and to the next tile.

The elements of a thread are contiguous in memory. It scans them in registers, the threads of a warp
scan each other's sums, and the warps of a block theirs through shared memory. A row of any length
takes as many tiles as it needs; values computed from a scan, point by point, are stored from their
tile. Nothing is read twice.

On the host one thread walks a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from thunder_fuser.device import WARP_SIZE, DeviceInfo
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.tables import scans
from thunder_fuser.kernel_ir import WORD
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.register_budget import ARRAY_ACCESSES
from thunder_fuser.lower.rows.row_threads import power_of_two
from thunder_fuser.lower.rows.scan_program import PulledScans, pull_scans
from thunder_fuser.lower.scalar_graph import Conjunction, ScalarGraph, Value
from thunder_fuser.lower.store import Store
from thunder_fuser.lower.vectors.lanes import Lanes
from thunder_fuser.lower.vectors.vectorize import RegisterArray, plan_accesses, plan_store

THREADS = 256
"""Threads of a block, if rows are enough for all multiprocessors; else a row may have more."""
_SLOT_BYTES = 16
"""Alignment in bytes of a row's slots."""


@dataclass(frozen=True, slots=True)
class RowScan:
    """One scan of the elements `value`; `fold` is the reduction whose prefixes it computes."""

    tensor: TensorView
    op: str
    fold: str
    accumulate: DataType
    value: Value


@dataclass(frozen=True, slots=True)
class ScanSchedule:
    """Schedule of a scan kernel.

    scans    scans, in an order in which a tile can compute them
    stores   stores at every point
    inside   predicate of columns that exist, where the last vector has lanes too many
    threads  threads that share a row: a power of two
    """

    template: ClassVar[str] = "scan"

    rows: int
    columns: int
    scans: tuple[RowScan, ...]
    stores: tuple[Store, ...]
    graph: ScalarGraph
    accesses: tuple[RegisterArray, ...]
    lanes: Lanes
    inside: Conjunction
    threads: int
    rows_per_block: int

    @property
    def blocks(self) -> int:
        return -(-self.rows // self.rows_per_block)

    @property
    def block_threads(self) -> int:
        return self.threads * self.rows_per_block

    @property
    def graphs(self) -> tuple[ScalarGraph, ...]:
        return (self.graph,)

    @property
    def tiles(self) -> int:
        """Tiles of a row."""
        return -(-self.lanes.vectors // self.threads)

    # ---- shared memory

    @property
    def takes_turns(self) -> bool:
        """True if slots are double buffered: the previous tile's may still be read."""
        return self.tiles > 1 and self.threads > WARP_SIZE

    def slot_offset(self, n: int) -> int:
        """Return bytes before the slots of the n-th scan of a row, one for each warp."""
        warps = self.threads // WARP_SIZE if self.threads > WARP_SIZE else 0
        sizes = (max(scan.accumulate.itemsize, WORD) * warps for scan in self.scans[:n])
        return sum(-(-size // _SLOT_BYTES) * _SLOT_BYTES for size in sizes)

    @property
    def slot_bytes(self) -> int:
        """Bytes of the slots of all scans of one row, for one tile."""
        return self.slot_offset(len(self.scans))

    @property
    def shared_bytes(self) -> int:
        return self.slot_bytes * self.rows_per_block * (2 if self.takes_turns else 1)

    def __str__(self) -> str:
        names = ", ".join(f"{scan.tensor.name}: {scan.op}" for scan in self.scans)
        return (
            f"scan: {self.rows} rows x {self.columns} columns, vector {self.lanes.vector}, "
            f"{self.threads} threads a row, {self.rows_per_block} rows a block, {self.tiles} "
            f"tile{'' if self.tiles == 1 else 's'} ({names})"
        )


def schedule_scan(body: KernelBody, device: DeviceInfo) -> ScanSchedule | Refusal:
    """Schedule the scans of one segment, or refuse."""
    found = pull_scans(body)
    if isinstance(found, Refusal):
        return found
    vector = _lanes_of_vector(found, device)
    pulled = pull_scans(body, vector)
    assert not isinstance(pulled, Refusal)
    padded = -(-max(pulled.columns, 1) // vector) * vector
    lanes = Lanes(pulled.column, padded, 0, vector)
    threads, rows_per_block = _threads(lanes.vectors, pulled.rows, device)
    return ScanSchedule(
        pulled.rows,
        pulled.columns,
        tuple(
            RowScan(scan.output, scan.op, scans.lookup(scan.op).fold, scan.accumulate, value)
            for scan, value in pulled.scans
        ),
        tuple(_stores(pulled, lanes, body)),
        pulled.graph,
        plan_accesses(pulled.graph, lanes, body.memory(device)),
        lanes,
        pulled.inside,
        threads,
        rows_per_block,
    )


def _lanes_of_vector(pulled: PulledScans, device: DeviceInfo) -> int:
    """Return the lanes that fill an access of the narrowest type, within registers for the widest
    one, unless rows are shorter.
    """
    points = pulled.rows * pulled.columns
    tensors = [tensor for tensor, _, _ in pulled.stores]
    tensors += [load.tensor for load in pulled.graph.loads if 2 * load.tensor.numel > points]
    itemsizes = [t.dtype.itemsize for t in tensors]
    widest = ARRAY_ACCESSES * device.vector_bytes // max(itemsizes)
    widest = min(widest, device.vector_bytes // min(itemsizes))
    vector = 1
    while vector * 2 <= min(widest, pulled.columns):
        vector *= 2
    whole = vector
    while pulled.columns % whole:
        whole //= 2
    # Rows that only a much narrower vector divides get a partial last vector: not where one thread
    # would test each lane of a row.
    return whole if 2 * whole >= vector or device.threads_are_serial else vector


def _threads(vectors: int, rows: int, device: DeviceInfo) -> tuple[int, int]:
    """Return (threads per row, rows per block)."""
    if device.threads_are_serial:
        return 1, 1
    resident = device.sm_count * (device.threads_per_sm // THREADS)
    most = THREADS if 2 * rows >= resident else device.max_threads_per_block
    threads = min(most, power_of_two(vectors))
    owned = max(1, THREADS // threads)
    # At least a warp, and a block for each multiprocessor.
    while owned * threads > WARP_SIZE and owned > 1 and -(-rows // owned) < device.sm_count:
        owned //= 2
    return threads, owned


def _stores(pulled: PulledScans, lanes: Lanes, body: KernelBody) -> Iterator[Store]:
    for tensor, value, address in pulled.stores:
        aligned = body.stores[tensor].alignment
        windows = plan_store(address, lanes, tensor.dtype.itemsize, aligned)
        # Lanes beyond the row are guarded one by one.
        yield Store(tensor, value, address, () if pulled.inside else windows)
