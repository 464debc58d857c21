"""Scan program: values that one kernel computes by scanning rows, or the reason why it cannot.

Rows are scanned from their first element to the last. At each point the scan is available at that
point only, so everything that the kernel stores must be pulled there. As for reductions, legality
is whether that succeeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thunder_fuser.analysis.layout import address_at, unflatten
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.domain import shape_text
from thunder_fuser.ir.fusion import ScanOp, TensorView
from thunder_fuser.ir.integer.symint import Context, Form
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.pull import Pull, Unreadable
from thunder_fuser.lower.scalar_graph import Conjunction, ScalarGraph, Value


@dataclass(frozen=True, slots=True)
class PulledScans:
    """Values of a scan kernel at the points of `rows` x `columns`.

    scans   scans with the value of their elements, dependencies first
    stores  tensors, with values and addresses
    column  variable `c`, padded to whole vectors; `inside` holds if the column exists
    """

    rows: int
    columns: int
    graph: ScalarGraph
    scans: tuple[tuple[ScanOp, Value], ...]
    stores: tuple[tuple[TensorView, Value, Form], ...]
    column: Form
    inside: Conjunction


def refuse_scans(body: KernelBody) -> Refusal | None:
    """Return why one scan kernel cannot compute a body, or None; independent of the device."""
    found = pull_scans(body)
    return found if isinstance(found, Refusal) else None


def pull_scans(body: KernelBody, vector: int = 1) -> PulledScans | Refusal:
    """Pull all values at a row and a column; a Refusal if a scan is needed at another point.
    `vector`: lanes; columns are padded to a multiple of it.
    """
    first = body.scans[0]
    sizes, dim = first.input.sizes, first.dim
    for scan in body.scans:
        if scan.input.sizes != sizes or scan.dim != dim:
            text = f"it scans {_scanned(scan)}, {first.output.name} scans {_scanned(first)}"
            way_out = "a kernel has one set of rows, so that each needs its own"
            return Refusal("space", f"{text}: {way_out}", scan.output.name)
    columns, kept = sizes[dim], [k for k in range(len(sizes)) if k != dim]
    rows = first.output.numel // max(columns, 1)
    context = Context()
    row = context.var("r", 0, max(rows - 1, 0))
    padded = -(-max(columns, 1) // vector) * vector
    column = context.var("c", 0, padded - 1)
    inside: Conjunction = () if padded == columns else (columns - 1 - column,)
    place = unflatten(row, sizes, kept) | {dim: column}
    index = [place[k] for k in range(len(sizes))]
    pull = Pull(body, context, inside, column)
    scanned: list[tuple[ScanOp, Value]] = []
    stores: list[tuple[TensorView, Value, Form]] = []
    try:
        for scan in body.scans:
            scanned.append((scan, pull.emit(scan.input, index)))
            pull.fold_at(scan.output, index)
        for tensor in body.outputs:
            point = _placed(tensor, sizes, index, context.const(0))
            if point is None:
                text = (
                    f"iteration space {shape_text(tensor.sizes)} differs from that of the scan, "
                    f"{shape_text(sizes)}; it needs a kernel of its own"
                )
                return Refusal("shape", text, tensor.name)
            layout = body.stores.get(tensor)
            # Any address will do while only legality is checked.
            address = context.const(0) if layout is None else address_at(point, layout, context)
            stores.append((tensor, pull.emit(tensor, point), address))
    except Unreadable as error:
        return Refusal("stage", str(error), error.tensor.name)
    return PulledScans(rows, columns, pull.graph, tuple(scanned), tuple(stores), column, inside)


def _scanned(scan: ScanOp) -> str:
    return f"dimension {scan.dim} of {shape_text(scan.input.sizes)}"


def _placed(
    tensor: TensorView, sizes: Sequence[int], index: Sequence[Form], zero: Form
) -> Sequence[Form] | None:
    """Return the index of a tensor of equal sizes up to dimensions of size 1, or None."""
    ahead = iter([i for n, i in zip(sizes, index, strict=True) if n != 1])
    if [n for n in tensor.sizes if n != 1] != [n for n in sizes if n != 1]:
        return None
    return [zero if n == 1 else next(ahead) for n in tensor.sizes]
