"""Bandwidth loss of reduction kernels, estimated from sizes: too few active threads, uncoalesced
loads, rows re-read because they do not fit on chip.

Consumers of a row's reduction are computed by the threads of that row. If rows are few, these
threads leave most of a device idle, and rows that do not fit on chip are re-read in each pass.
Reductions without consumers in their kernel pay a barrier at most: blocks share their rows.

Schedules, which are chosen later, are more accurate; this estimate selects the sets of anchors that
should be split into several kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from thunder_fuser.device import WARP_SIZE
from thunder_fuser.ir.fusion import ScanOp, TensorView
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.memory_order import Orders
from thunder_fuser.lower.rows.row_space import Space
from thunder_fuser.lower.rows.row_threads import (
    FEWEST_OUTER_ROWS,
    OUTER_COLUMNS,
    OUTER_ROWS,
    VECTORS_PER_THREAD,
)
from thunder_fuser.segment.anchors.anchors import Anchors, members, union
from thunder_fuser.segment.anchors.graph import AnchorGraph
from thunder_fuser.segment.legality import Legal, Legality


@dataclass(frozen=True, slots=True)
class BandwidthLoss:
    """Bandwidth loss of a kernel whose reduction has `rows` x `columns`.

    share      fraction running of the threads that are needed for full bandwidth
    sectors    bytes moved per byte needed, because of uncoalesced accesses
    again      bytes that are re-read
    is_waited  the row's reduction has consumers, so that blocks cannot share rows
    is_strided blocks share rows through column accumulators, and a thread's columns are strided
    """

    rows: int
    columns: int
    share: float
    sectors: int
    again: int
    is_waited: bool
    is_strided: bool

    @property
    def is_shared(self) -> bool:
        """True if blocks can share rows, so that the loss is a barrier at most."""
        return not (self.is_waited or self.is_strided)

    def lost(self, read: int) -> int:
        """Return the time lost by a kernel that reads `read` bytes, as bytes at full bandwidth.
        Writes do not count: threads wait for loads only.
        """
        # Threads with uncoalesced loads have more sectors in flight.
        return round((read + self.again) * max(self.sectors, 1 / self.share)) - read

    def __str__(self) -> str:
        rows = f"{self.rows:,} row{'' if self.rows == 1 else 's'}"
        if self.share < 1 / self.sectors:
            lost = f"{self.share:.1%} of the threads needed for full bandwidth would run"
        elif self.sectors > 1:
            lost = f"they would move {self.sectors} times the bytes that they read"
        else:
            lost = f"{self.again:,} B would be read once more"
        if self.is_strided:
            return (
                f"{rows} x {self.columns:,}: registers have room for totals of the columns only, "
                f"which are not neighbours in memory, so that {lost}"
            )
        return (
            f"{rows} x {self.columns:,}: consumers of a whole-row reduction cannot be split across "
            f"blocks, so that {lost}"
        )


class BandwidthModel:
    """Bandwidth loss of sets of anchors."""

    def __init__(self, graph: AnchorGraph, legality: Legality) -> None:
        self.graph = graph
        self.legality = legality
        self.device = graph.prices.device
        folds = [a.fold for a in graph.anchors]
        self._scans = union(1 << k for k, f in enumerate(folds) if isinstance(f, ScanOp))
        # Rows of each anchor; a scan has as many as a reduction of its dimension.
        self._results = [
            int(a.tensor.numel) // (max(f.input.sizes[f.dim], 1) if isinstance(f, ScanOp) else 1)
            for a, f in zip(graph.anchors, folds, strict=True)
        ]
        # Points at which an anchor is evaluated or reduced, and reductions whose rows it re-reads.
        self._points = [
            int((a.tensor if a.fold is None else a.fold.input).numel) for a in graph.anchors
        ]
        self._passed = [
            union(1 << k for k in members(a.reach.folds) if n > self._results[k])
            for n, a in zip(self._points, graph.anchors, strict=True)
        ]
        self._numel = {t: int(t.numel) for t in graph.stops}
        self._spaces: dict[int, Space] = {}
        self._orders: Orders = {}

    def of(self, anchors: Anchors, read: int) -> BandwidthLoss | None:
        """Return the loss of a kernel of these anchors that reads `read` bytes, or None."""
        loss = self._loss(anchors, 0, read)
        if loss is None or not loss.lost(read):
            return None
        # Fewer passes where a dependent reduction can be done in the pass of the one before it.
        alone = self.legality.singles(anchors)
        return self._loss(anchors, alone, read) if alone else loss

    def is_waited(self, anchors: Anchors) -> bool:
        """True if a kernel of these anchors has consumers of a whole-row reduction."""
        return self._waited_for(anchors, anchors) is not None

    def _loss(self, anchors: Anchors, alone: Anchors, read: int) -> BandwidthLoss | None:
        """Return the least loss of all ways to run the kernel, or None without reductions.
        Reductions in `alone` are taken to depend on no other one.
        """
        number = waited = self._waited_for(anchors & ~alone, anchors)
        if scans := anchors & self._scans:
            # Elements of a scan depend on those before them.
            number = waited = scans.bit_length() - 1
        if number is None:
            folds = (k for k in members(anchors) if self.graph.anchors[k].fold is not None)
            number = max(folds, key=self._points.__getitem__, default=None)
        if number is None or not self._points[number]:
            return None
        strided = self._strided(anchors) if waited is None else None
        number = number if strided is None else strided
        stages, is_waited = self._stages(anchors, alone), waited is not None
        ways = self._ways(number, stages, is_waited, strided is not None)
        return min(ways, key=lambda way: way.lost(read))

    def _strided(self, anchors: Anchors) -> int | None:
        """Return an outer reduction, if its kernel has column accumulators as well and can only run
        with strided columns. (For consumers of such rows, `layout_conversion.py` tries copies in
        another order.)
        """
        folds = [k for k in members(anchors) if self.graph.anchors[k].fold is not None]
        outer = [k for k in folds if self._points[k] and self._space(k).is_outer]
        if not outer or len({self._results[k] for k in folds}) == 1:
            return None
        kernel = self.legality.of(anchors)
        return outer[0] if isinstance(kernel, Legal) and kernel.is_strided else None

    def _waited_for(self, waiting: Anchors, anchors: Anchors) -> int | None:
        """Return the last reduction with a consumer that re-reads its rows, or None."""
        waited = union(self._passed[k] for k in members(waiting)) & anchors
        return waited.bit_length() - 1 if waited else None

    def _ways(
        self, number: int, stages: Mapping[int, int], is_waited: bool, is_strided: bool
    ) -> Iterator[BandwidthLoss]:
        """Yield the loss of each thread mapping for the rows of a reduction."""
        device, rows = self.device, self._results[number]
        columns = self._points[number] // rows
        passes = self._passes(rows, stages)
        itemsizes = [t.dtype.itemsize for t in passes] or [4]
        lanes = max(1, device.vector_bytes // min(itemsizes))
        # Threads with more bytes in flight than usual saturate the bandwidth in smaller numbers.
        usual = 2 * device.bytes_in_flight_per_sm / device.threads_per_sm
        weight = max(1.0, lanes * sum(itemsizes) / usual)
        kept = {t: self.graph.bytes_of(t) for t, n in passes.items() if n > 1}
        row = sum(kept.values()) / rows

        def loss(threads: float, together: float, sectors: int) -> BandwidthLoss:
            """Return the loss with `threads` threads, in blocks of `together` rows."""
            again = sum(kept[t] * (n - 1) for t, n in passes.items() if n > 1)
            is_held = row * together <= device.shared_bytes_per_block * device.largest_cluster
            is_near = device.keeps(row * min(rows, together * device.sm_count))
            reread = 0 if is_held or is_near else again
            share = device.share(weight * threads)
            return BandwidthLoss(rows, columns, share, sectors, reread, is_waited, is_strided)

        # Lanes are columns, or, in an outer reduction, adjacent rows, of which a block has vectors.
        is_outer = self._space(number).is_outer
        apart = max(1, device.sector_bytes // min(itemsizes)) if is_outer else 1
        yield loss(rows * self._threads_of(columns / lanes), 1, apart)
        if is_outer and not (is_strided or self._scans >> number & 1):
            many = min(OUTER_ROWS, rows / lanes / device.sm_count)
            beside = max(FEWEST_OUTER_ROWS, many)
            each = max(1, min(device.max_threads_per_block / beside, columns / OUTER_COLUMNS))
            yield loss(rows / lanes * each, lanes * beside, 1)

    def _stages(self, anchors: Anchors, alone: Anchors) -> dict[int, int]:
        """Return the pass over a row that computes each anchor. Anchors in `alone` depend on none;
        consumers of a scan are computed in the scan's own pass.
        """
        stages: dict[int, int] = {}
        for k in members(anchors):
            waits = 0 if alone >> k & 1 else self.graph.anchors[k].reach.folds & anchors
            again = (stages[f] + (not self._scans >> f & 1) for f in members(waits))
            stages[k] = max(again, default=0)
        return stages

    def _passes(self, rows: int, stages: Mapping[int, int]) -> Counter[TensorView]:
        """Count the passes that read each source with more than one element per row."""
        read: dict[int, set[TensorView]] = {}
        for k, stage in stages.items():
            if self._points[k] > rows:
                read.setdefault(stage, set()).update(self.graph.anchors[k].reach.sources)
        numel = self._numel
        return Counter(t for sources in read.values() for t in sources if numel[t] > rows)

    def _space(self, number: int) -> Space:
        if number not in self._spaces:
            graph, fold = self.graph, self.graph.anchors[number].fold
            assert fold is not None
            body = KernelBody(graph.definitions, self.legality.memory)
            self._spaces[number] = Space.of(fold, body, self._orders)
        return self._spaces[number]

    def _threads_of(self, vectors: float) -> float:
        """Return threads per row: one vector each, or several if they exceed a warp."""
        most = self.device.max_threads_per_block
        return min(most, max(1.0, min(WARP_SIZE, vectors), vectors / VECTORS_PER_THREAD))
