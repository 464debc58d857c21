"""SegmentedFusion, the plan: segments of a fusion, boundary tensors between them, and reasons.

A plan is data. It exists without a tensor, a GPU or a compiler, and costs nothing but planning
time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from thunder_fuser.analysis.aliases import View
from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import (
    FoldOp,
    Fusion,
    ReductionOp,
    ScanOp,
    TensorView,
    Val,
    with_values,
)
from thunder_fuser.ir.integer.counts import Condition
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.segment.liveness import Liveness, Step
from thunder_fuser.segment.placement import Buffer, Placement, Updates
from thunder_fuser.segment.repro import script
from thunder_fuser.time_model.estimate import Estimate

Kind = Literal["pointwise", "reduction", "scan", "opaque", "alias", "concat"]
"""Three kinds of kernels; a torch call; views of existing memory; a tensor whose pieces kernels
have written into its memory.
"""

MENTIONED_BYTES = 1024
"""Fewest unneeded bytes in sectors that are read for which a segment prints its sector bytes."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One step of a plan: a kernel, a torch call, or views and cats that launch nothing.

    inputs         tensors whose memory the segment reads, in order of first use
    outputs        tensors that it writes, or provides as views
    fusion         its computation as a fusion of its own with canonical numbers: equal segments
                   have equal ones. Its inputs are the segment's loads, its outputs `outputs`, its
                   updates those that are written in place
    values         the plan's value for each number of `fusion`
    layouts        of the tensor inputs, then of the outputs, of `fusion`
    bytes_read     distinct bytes of `inputs` that computing `outputs` needs, each counted once
    bytes_written  bytes of `outputs`, written once
    sector_bytes   bytes of the memory sectors that are read, more than `bytes_read` for strided
                   accesses; for the representative sizes, where sizes are open
    kernels        launches (0 for views, and for cats written in pieces)
    views          for an alias segment: how each output lies in the memory of another tensor
    folds          the reductions and scans that it does, in order
    refusals       why it is not fused with earlier kernels that share data with it
    flops          arithmetic of a torch call
    awaited_by     the segment that waits for a collective; -1: it completes before the call returns
    estimator      estimates its time on the device that the plan is for
    """

    index: int
    kind: Kind
    inputs: tuple[TensorView, ...]
    outputs: tuple[TensorView, ...]
    operations: tuple[str, ...]
    fusion: Fusion
    values: tuple[Val, ...] = field(repr=False)
    layouts: tuple[Layout, ...]
    bytes_read: int = 0
    bytes_written: int = 0
    sector_bytes: int = 0
    kernels: int = 0
    views: tuple[View, ...] = ()
    folds: tuple[FoldOp, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    flops: int = 0
    awaited_by: int | None = None
    estimator: Callable[[Segment], Estimate] | None = field(default=None, compare=False, repr=False)

    @property
    def estimate(self) -> Estimate | None:
        """Estimate of the kernel by its template, or lower bound of the torch call; None without
        either, and with open sizes.
        """
        runs = self.kernels or self.kind == "opaque"
        return self.estimator(self) if runs and self.estimator is not None else None

    @property
    def seconds(self) -> float:
        """Estimated seconds of its kernel or torch call; 0 if unknown."""
        found = self.estimate
        return 0.0 if found is None else found.seconds

    @property
    def alias_of(self) -> TensorView | None:
        """Base tensor of a segment of views; None for others."""
        return self.views[0].base if self.views else None

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    @property
    def body(self) -> KernelBody:
        """Body of its kernel, in the values of `fusion`."""
        fusion = self.fusion
        tensors = fusion.tensor_inputs
        loads = self.layouts[: len(tensors)]
        stores = self.layouts[len(tensors) :]
        new = {old: v for v in fusion.values() for old in (self.values[v.id],)}
        folds = [with_values(fold, new) for fold in self.folds]
        return KernelBody(
            fusion.definitions(),
            dict(zip(tensors, loads, strict=True)),
            fusion.outputs,
            tuple(fold for fold in folds if isinstance(fold, ReductionOp)),
            dict(zip(fusion.outputs, stores, strict=True)),
            {update.value: update.target for update in fusion.updates},
            tuple(fold for fold in folds if isinstance(fold, ScanOp)),
        )

    def repro(self, device: str = "cpu") -> str:
        """Return a script that runs this segment alone, on inputs with the plan's layouts."""
        title = f"Segment {self.index} ({self.kind}) of a plan, alone."
        layouts = self.layouts[: len(self.fusion.tensor_inputs)]
        return script(self.fusion, title, device, layouts)

    @property
    def kernel_key(self) -> Hashable:
        """Everything that the segment's kernel depends on: segments with equal keys share it."""
        folds = tuple((fold.op, fold.input) for fold in self.body.folds)
        return self.kind, self.fusion, self.layouts, folds

    @property
    def head(self) -> str:
        """Index, kind, inputs and outputs, as text."""
        inputs = ", ".join(t.name for t in self.inputs)
        outputs = ", ".join(t.name for t in self.outputs)
        return f"segment {self.index} ({self.kind}): ({inputs}) -> ({outputs})"

    def __str__(self) -> str:
        if self.kind == "opaque":
            cost = f"{self.bytes_read:,} B read, {self.bytes_written:,} B written"
            work = f", {self.flops:,} FLOPs" if self.flops else ""
            if self.awaited_by is not None:
                end = "the end" if self.awaited_by < 0 else f"segment {self.awaited_by}"
                return f"{self.head}: {self.operations[0]}, {cost}, in flight until {end}"
            return f"{self.head}: torch's {self.operations[0]}, {cost}{work}"
        if not self.kernels:
            why = (
                "written in place" if self.kind == "concat" else "views" if self.views else "empty"
            )
            return f"{self.head}: {why}, no kernel"
        unneeded = self.sector_bytes - self.bytes_read
        wasted = 4 * unneeded > self.bytes_read and unneeded >= MENTIONED_BYTES
        sectors = f" ({self.sector_bytes:,} B of sectors)" if wasted else ""
        cost = f"{self.bytes_read:,} B read{sectors}, {self.bytes_written:,} B written"
        return f"{self.head}: {self.kernels} kernel, {cost}: {', '.join(self.operations) or 'copy'}"


@dataclass(frozen=True, slots=True)
class Boundary:
    """A tensor that one segment writes and others read. `reason` says why it is not recomputed."""

    tensor: TensorView
    producer: int
    consumers: tuple[int, ...]
    bytes: int
    reason: str

    def __str__(self) -> str:
        readers = ", ".join(map(str, self.consumers))
        return (
            f"boundary {self.tensor.name} ({self.bytes:,} B): "
            f"segment {self.producer} -> {readers}: {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class OpenSizes:
    """Open sizes of a definition. Bytes are formulas in them (`ir/integer/counts.py`).

    places  dimensions of inputs with each size, by its name
    values  representative sizes that the plan is for
    """

    places: Mapping[str, tuple[str, ...]]
    values: Mapping[str, int]

    def __str__(self) -> str:
        return ", ".join(
            f"{name} = {' = '.join(places)} (here {self.values[name]:,})"
            for name, places in self.places.items()
        )


@dataclass(frozen=True, slots=True)
class SegmentedFusion:
    """A fusion cut into segments, in execution order.

    placement   of every tensor in memory, with its layout
    sizes       open sizes, with the representative ones; None if the definition is static
    conditions  under which formulas of bytes in open sizes hold, for sizes of at least 2
    device      whose time is minimised
    """

    fusion: Fusion
    segments: tuple[Segment, ...]
    boundaries: tuple[Boundary, ...]
    placement: Placement
    bytes_ideal: int
    sizes: OpenSizes | None = None
    conditions: tuple[Condition, ...] = ()
    device: DeviceInfo | None = field(default=None, compare=False, repr=False)

    @property
    def kernels(self) -> int:
        """Kernel launches per call of the plan, copies included."""
        return sum(s.kernels for s in self.segments) + self.copies

    @property
    def calls(self) -> int:
        """Number of torch calls, regardless of the kernels that these launch."""
        return sum(s.kind == "opaque" for s in self.segments)

    @property
    def copies(self) -> int:
        """Number of updates that cannot be written in place, and are copied after all segments."""
        return len(self._copied)

    @property
    def _copied(self) -> list[TensorView]:
        written = self.placement.of(Updates)
        return [u.value for u in self.fusion.updates if u.value not in written]

    @property
    def bytes(self) -> int:
        """Bytes moved by kernels, torch calls and copies: distinct inputs plus outputs of each."""
        return sum(s.bytes for s in self.segments) + sum(2 * t.bytes for t in self._copied)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of partial results that blocks write to workspaces and read; not in `bytes`. They
        belong to the schedules, which the device's multiprocessors and caches decide; 0 without a
        device.
        """
        found = (s.estimate for s in self.segments if s.kernels)
        return sum(e.workspace_bytes for e in found if e is not None)

    @property
    def seconds(self) -> float:
        """Estimated seconds of kernels, torch calls and copies, in sequence; 0 if unknown."""
        device, copied = self.device, self._copied
        if device is None or not copied:
            return sum(s.seconds for s in self.segments)
        moved = sum(2 * int(t.bytes) for t in copied)
        copies = moved / device.copy_bandwidth
        return sum(s.seconds for s in self.segments) + copies + len(copied) * device.launch_seconds

    @property
    def copy_fraction(self) -> float:
        """Time of copying the plan's bytes, as a fraction of `seconds`; 0 if unknown."""
        found = [s.estimate for s in self.segments]
        copied = sum(e.copy_seconds for e in found if e is not None)
        return copied / self.seconds if copied else 0.0

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Allocated memory (inputs are not), in order, with lifetimes."""
        return tuple(self.placement.of(Buffer).values())

    @property
    def peak_bytes(self) -> int:
        """Most bytes alive at once that the plan allocates (outputs and boundaries; not inputs)."""
        gives: list[set[int]] = [set() for _ in self.segments]
        reads: list[set[int]] = [set() for _ in self.segments]
        for k, buffer in enumerate(self.buffers):
            gives[buffer.first].add(k)
            if buffer.last is not None:
                reads[buffer.last].add(k)
        steps = tuple(Step(frozenset(r), frozenset(g)) for r, g in zip(reads, gives, strict=True))
        kept = frozenset(k for k, buffer in enumerate(self.buffers) if buffer.last is None)
        return Liveness(steps, [buffer.bytes for buffer in self.buffers], kept).peak()

    def __str__(self) -> str:
        return self.listing()

    def listing(self, times: bool = False) -> str:
        """Return a line for each segment and boundary. `times`: with estimated times, which change
        as kernels do.
        """
        calls = f" and {counted(self.calls, 'torch call')}" if self.calls else ""
        head = (
            f"plan: {counted(self.kernels, 'kernel')}{calls}, {self.bytes:,} B moved "
            f"(ideal {self.bytes_ideal:,} B), "
            f"peak {self.peak_bytes:,} B"
        )
        if times and self.device is not None and self.seconds:
            speed = f"{self.copy_fraction:.0%} of a copy's speed"
            head += f"; estimated {1e6 * self.seconds:.1f} us on {self.device.name}, {speed}"
            if self.workspace_bytes:
                head += f"; {self.workspace_bytes:,} B through workspaces"
        told = {boundary.reason for boundary in self.boundaries}
        rows: list[object] = []
        for segment in self.segments:
            rows.append(segment)
            if times and (estimate := segment.estimate) is not None:
                rows.append(f"  estimated: {estimate}")
            rows += [f"  apart: {r}" for r in segment.refusals if str(r) not in told]
        rows += self.boundaries
        if self.sizes is not None:
            rows.append(f"sizes {self.sizes}")
        if self.conditions:
            rows.append(f"formulas hold where {', '.join(map(str, self.conditions))}")
        return "\n".join([head, *(f"  {row}" for row in rows)])


def counted(number: int, thing: str) -> str:
    """Return a number with a noun: `1 kernel`, `2 kernels`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
