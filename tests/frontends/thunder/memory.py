"""What a trace holds in memory: as Thunder estimates it, and as it really is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import thunder
import torch
from thunder.core.prims import PrimIDs
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.examine.memory_calculation import get_alloc_memory

import thunder_fuser
from thunder_fuser.frontends.thunder import FusionReport
from thunder_fuser.frontends.thunder.plans.report import fusions_of_trace


@dataclass(frozen=True, slots=True)
class Half:
    """Forward or backward. `peak` is Thunder's estimate."""

    trace: TraceCtx

    @property
    def peak(self) -> int:
        peak: int = get_alloc_memory(self.trace)[0]
        return peak

    @property
    def fusions(self) -> tuple[FusionReport, ...]:
        return fusions_of_trace(self.trace)

    @property
    def kernels(self) -> int:
        return sum(report.plan.kernels for report in self.fusions)

    @property
    def bytes_over_ideal(self) -> float:
        plans = [report.plan for report in self.fusions]
        return sum(p.bytes for p in plans) / sum(p.bytes_ideal for p in plans)


def halves(
    program: Callable[..., Any], *inputs: Any, torch_alone: bool = False, **options: Any
) -> tuple[Half, ...]:
    """The final traces of a program: forward and, if inputs require gradients, backward."""
    executors = [] if torch_alone else [thunder_fuser.executor]
    compiled = thunder.jit(program, executors=executors, **options)
    entry, _, _ = thunder.compile_data(compiled).get_computation_and_inputs(*inputs)
    return tuple(Half(t[-1]) for t in (entry.computation_traces, entry.backward_traces) if t)


def held(trace: TraceCtx, values: dict[str, Any]) -> list[tuple[str, int]]:
    """Each symbol that runs, and the bytes that are in memory after it; `values` are the arguments,
    by name, and in the end what is left.

    The trace runs one statement at a time. Memory that several tensors share counts once; what a
    symbol allocates and frees does not show.
    """
    # The caller has its arguments until the end, unless it gives them away in a list.
    arguments = [x for x in values.values() if isinstance(x, torch.Tensor)]
    found = []
    with torch.no_grad():
        for bsym in trace.bound_symbols:
            if bsym.sym.id is PrimIDs.RETURN:
                break
            exec(text_of(bsym, trace), {"torch": torch, **trace.python_ctx()}, values)
            found.append((bsym.sym.name, _bytes([*values.values(), *arguments])))
    return found


def text_of(bsym: BoundSymbol, trace: TraceCtx) -> str:
    """The statement; its trace names what text cannot spell, such as a memory format."""
    with tracectx(trace):
        return "\n".join(bsym.python(0, print_depth=1))


def _bytes(values: Any) -> int:
    storages = [t.untyped_storage() for t in _tensors(values)]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
