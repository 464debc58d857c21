"""Kernel body: what one kernel computes, from what it loads to what it stores.

The body of a segment is its whole fusion. While a plan is made, bodies are asked about that are
parts of the fusion which is planned: what is loaded cuts them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import Expr, ReductionOp, ScanOp, TensorView, Val
from thunder_fuser.ir.integer.symint import Form


@dataclass(frozen=True, slots=True)
class Memory:
    """Where a tensor lies.

    alignment  of its first element, in bytes
    elements   from the first to the last one
    anywhere   a vector may begin at any element, as a CPU reads it
    """

    alignment: int
    elements: Form | int
    anywhere: bool = False

    @staticmethod
    def of(tensor: TensorView, layout: Layout, anywhere: bool = False) -> Memory:
        """Of a tensor, whose root has the layout."""
        steps = zip(tensor.domain.root, layout.strides, strict=True)
        elements = 1 + sum((d.size - 1) * stride for d, stride in steps)
        return Memory(layout.alignment, elements, anywhere)


@dataclass(frozen=True, eq=False)
class KernelBody:
    """What a kernel computes, and where that lies in memory.

    definitions  expressions by their results
    loads        layouts of tensors in memory, at which computing ends
    outputs      tensors that it stores
    folds        reductions that it does, in SSA order; one may be done in another form than the
                 fusion's (`lower/online_reductions.py`)
    stores       layouts of the outputs; none while only legality is asked about
    updates      input whose memory an output overwrites
    scans        that it does, in SSA order
    expected     layouts that outputs have as far as is known, while only legality is asked about
    """

    definitions: Mapping[Val, Expr]
    loads: Mapping[TensorView, Layout]
    outputs: Sequence[TensorView] = ()
    folds: Sequence[ReductionOp] = ()
    stores: Mapping[TensorView, Layout] = field(default_factory=dict)
    updates: Mapping[TensorView, TensorView] = field(default_factory=dict)
    scans: Sequence[ScanOp] = ()
    expected: Mapping[TensorView, Layout] = field(default_factory=dict)

    def memory(self, device: DeviceInfo) -> dict[int, Memory]:
        """Of what is loaded, by number, as `device` reads it."""
        anywhere = device.threads_are_serial
        return {t.id: Memory.of(t, layout, anywhere) for t, layout in self.loads.items()}

    def producer(self, value: Val) -> Expr | None:
        """The expression that the kernel computes a value with; None of what it loads or is
        given.
        """
        return None if value in self.loads else self.definitions.get(value)

    def operands(self, value: Val) -> tuple[Val, ...]:
        """What the kernel computes a value from."""
        expr = self.producer(value)
        return () if expr is None else expr.inputs
