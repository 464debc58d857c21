"""Memory of a program's traces: as the plan says, and as storages on the host are counted."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import thunder
import torch
from thunder.core.dtypes import to_torch_dtype
from thunder.core.prims import PrimIDs
from thunder.core.trace import TraceCtx

import thunder_fuser
from tests.frontends.thunder.memory import text_of
from tests.fuzz.compare import Difference
from tests.fuzz.kernels import Rehearsal
from tests.fuzz.observe import run
from tests.fuzz.program import Program

_TOLERANCE = 0.02


def misjudged_peaks(
    program: Program, function: Callable[..., Any], rehearsal: Rehearsal
) -> list[Difference]:
    """The halves whose peak is not what the plan of the trace says, of a function that runs.

    Of attention by parts nobody knows what it saves (torch chooses that on a CPU, for heads of few
    elements); and a trace knows nothing of arguments that share memory or lie in another order.
    """
    given = program.inputs(0)
    is_known = "dot_product_attention" not in program.source
    are_known = all(t.is_contiguous() for t in given) and len(dict(_storages(given))) == len(given)
    if not (is_known and are_known):
        return []
    if run(program, function, 0).error is not None:
        return []
    given = program.inputs(0)
    entry, inputs, _ = thunder.compile_data(function).get_computation_and_inputs(*given)
    forward, *backward = (t[-1] for t in (entry.computation_traces, entry.backward_traces) if t)
    plans = thunder_fuser.segments(function)
    values = dict(zip([p.name for p in forward.args], inputs, strict=True))
    peaks = [_peak(forward, values, rehearsal, _held(given, (), values))]
    for trace in backward:
        results, (saved, others) = forward.bound_symbols[-1].args
        outputs = [values[p.name] for p in results["flat_output"] if hasattr(p, "name")]
        unpacked = (
            b.output
            for b in trace.bound_symbols
            if b.sym.id is PrimIDs.UNPACK_SEQUENCE and b.args[0].name == "cotangents"
        )
        given_back = next(unpacked, ())  # None that a backward of zeros reads.
        arguments = {
            "saved_for_backward": [[values[p.name] for p in saved], list(others)],
            "cotangents": [
                None if p is None else torch.ones(p.shape, dtype=to_torch_dtype(p.dtype))
                for p in given_back
            ],
        }
        kept = _held(given, outputs, arguments)
        peaks.append(_peak(trace, arguments, rehearsal, kept))
    return [
        Difference("peak", plan.name, real, plan.peak_bytes)
        for plan, real in zip(plans, peaks, strict=True)
        if abs(plan.peak_bytes - real) > _TOLERANCE * real
    ]


def _held(
    given: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], arguments: dict[str, Any]
) -> dict[int, int]:
    """What the caller holds of a trace's arguments, address and bytes: the rest is no part of its
    plan. What it gave counts as if it had no gaps; one that is expanded has fewer bytes than
    elements would take.
    """
    read = dict(_storages(arguments))
    found: dict[int, int] = {}
    for t in given:
        ((place, size),) = _storages(t)
        found[place] = max(found.get(place, 0), min(t.nbytes, size))
    found = dict(_storages(outputs)) | found
    return {place: size for place, size in found.items() if place in read}


def _peak(
    trace: TraceCtx, values: dict[str, Any], rehearsal: Rehearsal, own: Mapping[int, int]
) -> int:
    """Most bytes at once; `values` are the arguments, by name, and in the end what is left. `own`,
    address and bytes, is held to the end.
    """
    found = 0
    held = dict(_storages(values)) | dict(own)
    made: list[weakref.ref[torch.Tensor]] = []

    def allocated(t: torch.Tensor) -> None:
        nonlocal found
        if t.dim() == 1 and (t.dtype is torch.uint8 or (t.dtype, *t.shape) == (torch.int32, 2)):
            return  # what kernels work with, and wait at: no plan has it
        made.append(weakref.ref(t))
        alive = [x for ref in made if (x := ref()) is not None]
        found = max(found, sum((dict(_storages(alive)) | held).values()))

    rehearsal.allocated = allocated
    try:
        with torch.no_grad():
            for bsym in trace.bound_symbols:
                if bsym.sym.id is PrimIDs.RETURN:
                    break
                made.clear()
                # A trace's text imports torch before anything else.
                exec(text_of(bsym, trace), {"torch": torch, **trace.python_ctx()}, values)
                held = dict(_storages(values)) | dict(own)
                found = max(found, sum(held.values()))
    finally:
        rehearsal.allocated = None
    return found


def _storages(values: Any) -> Iterator[tuple[int, int]]:
    """Addresses and bytes."""
    if isinstance(values, torch.Tensor):
        storage = values.untyped_storage()
        yield storage.data_ptr(), storage.nbytes()
    elif isinstance(values, dict):
        yield from _storages(list(values.values()))
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _storages(value)
