"""Kernel body: the part of a fusion that one kernel computes, from its loads to its stores.

The body of a segment is its whole fusion. While a plan is made, candidate bodies are parts of the
planned fusion, delimited by their loads.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.domain import Layout, static
from thunder_fuser.ir.fusion import Expr, ReductionOp, ScanOp, TensorView, Val
from thunder_fuser.ir.integer.symint import Form


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a tensor.

    alignment  alignment of its first element, in bytes
    elements   extent from the first to the last element
    anywhere   vector loads may be unaligned, as on a CPU
    tail_apart the loop over vectors is peeled: only its last iteration has tests, so that
               neighbours are loaded one by one, which a compiler makes vectors of
    """

    alignment: int
    elements: Form | int
    anywhere: bool = False
    tail_apart: bool = False

    @staticmethod
    def of(
        tensor: TensorView, layout: Layout, anywhere: bool = False, tail_apart: bool = False
    ) -> Memory:
        """Return the memory of a tensor whose root domain has the layout."""
        steps = zip(tensor.domain.root, layout.strides, strict=True)
        elements = 1 + sum((d.size - 1) * stride for d, stride in steps)
        return Memory(layout.alignment, elements, anywhere, tail_apart)


@dataclass(frozen=True, eq=False)
class KernelBody:
    """Computation of a kernel, with the memory layouts of its inputs and outputs.

    definitions  result -> expression
    loads        layouts of tensors that are read from memory instead of computed
    outputs      tensors that it stores
    folds        reductions that it computes, in SSA order, perhaps in another form than the
                 fusion's (`lower/rows/online_reductions.py`)
    stores       layouts of the outputs; empty while only legality is checked
    updates      output -> input whose memory it overwrites
    scans        scans that it computes, in SSA order
    expected     layouts of outputs as far as they are known while only legality is checked
    given        values that depend on none of its folds, so that it has them at every point: while
                 only legality is checked, nobody asks how they are computed
    """

    definitions: Mapping[Val, Expr]
    loads: Mapping[TensorView, Layout]
    outputs: Sequence[TensorView] = ()
    folds: Sequence[ReductionOp] = ()
    stores: Mapping[TensorView, Layout] = field(default_factory=dict)
    updates: Mapping[TensorView, TensorView] = field(default_factory=dict)
    scans: Sequence[ScanOp] = ()
    expected: Mapping[TensorView, Layout] = field(default_factory=dict)
    given: Container[Val] = ()

    def memory(self, device: DeviceInfo, tail_apart: bool = False) -> dict[int, Memory]:
        """Return the memory of each load on `device`, by tensor id."""
        anywhere = device.threads_are_serial
        return {
            t.id: Memory.of(t, layout, anywhere, tail_apart) for t, layout in self.loads.items()
        }

    def bytes_in_memory(self, tensor: TensorView) -> int:
        """Return the size of a loaded tensor; what is repeated by a stride of 0 counts once."""
        steps = zip(tensor.domain.root, self.loads[tensor].strides, strict=True)
        return math.prod(static(d.size) for d, stride in steps if stride) * tensor.dtype.itemsize

    def producer(self, value: Val) -> Expr | None:
        """Return the expression by which the kernel computes a value; None for loads and inputs."""
        return None if value in self.loads else self.definitions.get(value)

    def operands(self, value: Val) -> tuple[Val, ...]:
        """Return the inputs of the expression by which the kernel computes a value, if any."""
        expr = self.producer(value)
        return () if expr is None else expr.inputs
