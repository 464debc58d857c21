"""Bandwidth loss of reduction kernels, estimated from sizes: too few active threads, uncoalesced
loads, rows re-read because they do not fit on chip.

What waits for a reduction of its row is computed by the threads of that row. Where rows are few
these leave most of a device idle, and rows that do not fit on chip are read once more in each pass.
Reductions that nothing in their kernel waits for pay a barrier at most: blocks share them.

An estimate from sizes alone. Schedules, which come later, know better; this is to tell which sets
of anchors had better be several kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from thunder_fuser.device import WARP_SIZE
from thunder_fuser.ir.fusion import ScanOp, TensorView
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.memory_order import Orders
from thunder_fuser.lower.row_space import Space
from thunder_fuser.lower.row_threads import (
    FEWEST_OUTER_ROWS,
    OUTER_COLUMNS,
    OUTER_ROWS,
    VECTORS_PER_THREAD,
)
from thunder_fuser.segment.anchors import AnchorGraph, Anchors, members, union
from thunder_fuser.segment.legality import Legal, Legality


@dataclass(frozen=True, slots=True)
class BandwidthLoss:
    """What a kernel suffers from: `rows` that its threads have to themselves, of `columns`.

    share      of the threads that can use all of the device's bandwidth
    sectors    bytes moved for each that is wanted, because neighbouring threads read far apart
    again      bytes that are read once more
    is_waited  something waits for the rows: blocks cannot share them
    is_strided blocks share the rows behind totals, and threads have columns that lie apart
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
        """Blocks can share the rows, and lose no more than a barrier takes."""
        return not (self.is_waited or self.is_strided)

    def lost(self, read: int) -> int:
        """Bytes that could be moved in the time that a kernel loses which reads so many: threads
        wait for what they read, and not for what they write.
        """
        # Those that wait for sectors have more of them under way.
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
    """The loss of sets of anchors."""

    def __init__(self, graph: AnchorGraph, legality: Legality) -> None:
        self.graph = graph
        self.legality = legality
        self.device = graph.prices.device
        folds = [a.fold for a in graph.anchors]
        self._scans = union(1 << k for k, f in enumerate(folds) if isinstance(f, ScanOp))
        # What rows an anchor has: a scan as many as a reduction of the same dimension.
        self._results = [
            int(a.tensor.numel) // (max(f.input.sizes[f.dim], 1) if isinstance(f, ScanOp) else 1)
            for a, f in zip(graph.anchors, folds, strict=True)
        ]
        # Where an anchor is computed, or folded, and reductions whose rows it then passes over.
        self._points = [
            int((a.tensor if a.fold is None else a.fold.input).numel) for a in graph.anchors
        ]
        self._passed = [
            union(1 << k for k in members(a.reach.folds) if n > self._results[k])
            for n, a in zip(self._points, graph.anchors, strict=True)
        ]
        self._spaces: dict[int, Space] = {}
        self._orders: Orders = {}

    def of(self, anchors: Anchors, read: int) -> BandwidthLoss | None:
        """What slows a kernel of these anchors, which reads so many bytes."""
        loss = self._loss(anchors, 0, read)
        if loss is None or not loss.lost(read):
            return None
        # Fewer passes, where a reduction that waits for another can be done along with it.
        alone = self.legality.singles(anchors)
        return self._loss(anchors, alone, read) if alone else loss

    def is_waited(self, anchors: Anchors) -> bool:
        """Whether something in a kernel of these waits for a reduction of its rows."""
        return self._waited_for(anchors, anchors) is not None

    def _loss(self, anchors: Anchors, alone: Anchors, read: int) -> BandwidthLoss | None:
        """Reductions that are `alone` wait for none."""
        number = waited = self._waited_for(anchors & ~alone, anchors)
        if scans := anchors & self._scans:
            # Its elements wait for those before them.
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
        """A reduction whose rows lie side by side, if their kernel has totals of its columns, too,
        and no other way to run. (Where something waits for such rows, copies in another order are
        tried: layout_conversion.py.)
        """
        folds = [k for k in members(anchors) if self.graph.anchors[k].fold is not None]
        outer = [k for k in folds if self._points[k] and self._space(k).is_outer]
        if not outer or len({self._results[k] for k in folds}) == 1:
            return None
        kernel = self.legality.of(anchors)
        return outer[0] if isinstance(kernel, Legal) and kernel.is_strided else None

    def _waited_for(self, waiting: Anchors, anchors: Anchors) -> int | None:
        """The last reduction that something waits for which then passes over its rows."""
        waited = union(self._passed[k] for k in members(waiting)) & anchors
        return waited.bit_length() - 1 if waited else None

    def _ways(
        self, number: int, stages: Mapping[int, int], is_waited: bool, is_strided: bool
    ) -> Iterator[BandwidthLoss]:
        """How the rows of a reduction can be read."""
        device, rows = self.device, self._results[number]
        columns = self._points[number] // rows
        passes = self._passes(rows, stages)
        itemsizes = [t.dtype.itemsize for t in passes] or [4]
        lanes = max(1, device.vector_bytes // min(itemsizes))
        # Threads with more under way than others need be fewer.
        usual = 2 * device.bytes_in_flight_per_sm / device.threads_per_sm
        weight = max(1.0, lanes * sum(itemsizes) / usual)
        kept = {t: self.graph.bytes_of(t) for t, n in passes.items() if n > 1}
        row = sum(kept.values()) / rows

        def loss(threads: float, together: float, sectors: int) -> BandwidthLoss:
            """So many threads, in blocks that work on so many rows together."""
            again = sum(kept[t] * (n - 1) for t, n in passes.items() if n > 1)
            is_held = row * together <= device.shared_bytes_per_block * device.largest_cluster
            is_near = device.keeps(row * min(rows, together * device.sm_count))
            reread = 0 if is_held or is_near else again
            share = device.share(weight * threads)
            return BandwidthLoss(rows, columns, share, sectors, reread, is_waited, is_strided)

        # Lanes are columns, or rows that lie side by side, of which blocks have some vectors.
        is_outer = self._space(number).is_outer
        apart = max(1, device.sector_bytes // min(itemsizes)) if is_outer else 1
        yield loss(rows * self._threads_of(columns / lanes), 1, apart)
        if is_outer and not (is_strided or self._scans >> number & 1):
            many = min(OUTER_ROWS, rows / lanes / device.sm_count)
            beside = max(FEWEST_OUTER_ROWS, many)
            each = max(1, min(device.max_threads_per_block / beside, columns / OUTER_COLUMNS))
            yield loss(rows / lanes * each, lanes * beside, 1)

    def _stages(self, anchors: Anchors, alone: Anchors) -> dict[int, int]:
        """Which pass over a row computes each anchor. Those that are `alone` wait for none; what
        waits for a scan is computed where the scan is.
        """
        stages: dict[int, int] = {}
        for k in members(anchors):
            waits = 0 if alone >> k & 1 else self.graph.anchors[k].reach.folds & anchors
            again = (stages[f] + (not self._scans >> f & 1) for f in members(waits))
            stages[k] = max(again, default=0)
        return stages

    def _passes(self, rows: int, stages: Mapping[int, int]) -> Counter[TensorView]:
        """How many passes over the rows read each tensor that has more than one element a row."""
        return Counter(
            source
            for source, _ in {
                (source, stage)
                for k, stage in stages.items()
                if self._points[k] > rows
                for source in self.graph.anchors[k].reach.sources
                if int(source.numel) > rows
            }
        )

    def _space(self, number: int) -> Space:
        if number not in self._spaces:
            graph, fold = self.graph, self.graph.anchors[number].fold
            assert fold is not None
            body = KernelBody(graph.definitions, self.legality.memory)
            self._spaces[number] = Space.of(fold, body, self._orders)
        return self._spaces[number]

    def _threads_of(self, vectors: float) -> float:
        """Threads that share a row: a vector each, or several where they are more than a warp."""
        most = self.device.max_threads_per_block
        return min(most, max(1.0, min(WARP_SIZE, vectors), vectors / VECTORS_PER_THREAD))
