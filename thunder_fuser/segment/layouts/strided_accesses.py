"""Strided accesses: loads and stores of a kernel with steps of a memory sector or more along the
innermost loop that changes the address, of one element or a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from thunder_fuser.analysis.layout import loop_order
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Context, Form
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.pull import Pull
from thunder_fuser.lower.rows.row_program import pull_rows
from thunder_fuser.lower.rows.row_space import Arrangement, arrangements
from thunder_fuser.lower.rows.scan_program import pull_scans

MANY_BYTES = 1 << 16
"""Smallest tensor, in bytes, whose access order matters: smaller ones stay in caches."""


@dataclass(frozen=True, slots=True)
class Access:
    """An access: tensor, address, and names of the loop variables around it, innermost first."""

    tensor: TensorView
    address: Form
    loops: tuple[str, ...]

    def run(self, sector: int) -> tuple[int, int]:
        """Return the adjacent elements along the innermost loop that changes the address, and the
        stride, in elements, to the next run of them. The stride is `sector` bytes or more, after a
        run of at most half a sector; (0, 0) for smaller strides or longer runs.
        """
        elements = max(1, sector // self.tensor.dtype.itemsize)
        variables = {variable.name: variable for variable in self.address.variables()}
        start = dict.fromkeys(variables, 0)
        for loop in self.loops:
            if loop not in variables:
                continue
            most = variables[loop].hi
            place = first = self.address.evaluate(start)
            for k in range(1, 1 + min(max(1, elements // 2), elements if most is None else most)):
                here = self.address.evaluate(start | {loop: k})
                if abs(here - place) >= elements:
                    return k, abs(here - first)
                place = here
            if place != first:
                return 0, 0
        return 0, 0


def strided_accesses(body: KernelBody, sector: int) -> list[Access]:
    """Return one access to each tensor with strides of `sector` bytes or more, in the arrangement
    of the kernel that has the fewest bytes of such tensors.
    """
    ways = [_strided(accesses, sector) for accesses in _ways(body)]
    return min(ways, key=lambda way: sum(a.tensor.bytes for a in way), default=[])


def _strided(accesses: Iterable[Access], sector: int) -> list[Access]:
    found = {a.tensor: a for a in accesses if a.run(sector)[0]}
    return list(found.values())


def _ways(body: KernelBody) -> Iterator[Iterable[Access]]:
    if body.folds:
        yield from filter(None, (_row_accesses(body, way) for way in arrangements(body)))
    else:
        yield _scan_accesses(body) if body.scans else _map_accesses(body)


def _map_accesses(body: KernelBody) -> Iterator[Access]:
    for tensor in body.outputs:
        context = Context()
        index = [context.var(f"d{k}", 0, max(n - 1, 0)) for k, n in enumerate(tensor.sizes)]
        pull = Pull(body, context)
        pull.emit(tensor, index)
        order = loop_order(tensor, body.stores[tensor])
        loops = tuple(f"d{k}" for k in reversed(order) if tensor.sizes[k] > 1)
        for load in pull.graph.loads:
            yield Access(load.tensor, load.address, loops[:1])


def _scan_accesses(body: KernelBody) -> Iterator[Access]:
    found = pull_scans(body)
    if not isinstance(found, Refusal):
        for load in found.graph.loads:
            yield Access(load.tensor, load.address, ("c", "r"))
        for tensor, _, address in found.stores:
            yield Access(tensor, address, ("c", "r"))


def _row_accesses(body: KernelBody, arrangement: Arrangement) -> list[Access]:
    """Return the accesses of a reduction kernel; none if it cannot run in this arrangement."""
    found = pull_rows("columns", 1, arrangement, body)
    if isinstance(found, Refusal):
        return []
    # With a grid split, the innermost loop goes over columns, even in an outer reduction.
    is_outer = arrangement.space.is_outer and arrangement.grid_split == "none"
    loops = ("r", "c") if is_outer else ("c", "r")
    stored = [
        (tensor, address) for tensor, _, address in (*found.element_stores, *found.row_stores)
    ]
    loaded = [(load.tensor, load.address) for load in found.graph.loads]
    return [Access(tensor, address, loops) for tensor, address in (*loaded, *stored)]
