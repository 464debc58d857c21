"""From a workload to what our compiler makes of it, without running anything.

Fake tensors stand for the arguments, so that plans and kernels for a GPU exist on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import thunder
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.contenders import jit
from benchmarks.workloads import Size, Workload
from thunder_fuser import FusionReport, fusions_of_trace


@dataclass(frozen=True, slots=True)
class Planned:
    """All fusions of a program, and how many operations are left to torch between them."""

    fusions: tuple[FusionReport, ...]
    in_torch: int

    @property
    def kernels(self) -> int:
        return sum(f.plan.kernels for f in self.fusions)

    @property
    def bytes(self) -> int:
        return sum(f.plan.bytes for f in self.fusions)

    @property
    def bytes_ideal(self) -> int:
        return sum(f.plan.bytes_ideal for f in self.fusions)


def planned(workload: Workload, size: Size, device: torch.device | str) -> Planned:
    """What Thunder and our executor make of a workload on `device`, which need not exist."""
    with FakeTensorMode():
        arguments = workload.arguments(size, device)
    compiled = jit(workload)
    entry, _, _ = thunder.compile_data(compiled).get_computation_and_inputs(*arguments)
    trace = entry.computation_traces[-1]
    others = [b for b in trace.bound_symbols if b.sym.executor and not b.sym.is_fusion]
    return Planned(fusions_of_trace(trace), len(others))
